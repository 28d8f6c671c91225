"""Convert the checkpoint of a language model: names, shapes, dtype, files.

Writes a small checkpoint in the form of model hubs (safetensors shards, one name for each
tensor of each layer) and maps it without reading it. Then joins the three projections of
each attention, stacks the layers to one tensor for each parameter, casts to bfloat16 and
saves new shards. Models of both checkpoints compute the same logits, up to rounding.
Prints a table of both checkpoints.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

from tensordict import TensorDict, TensorDictBase, stack, to_safetensors

VOCABULARY, WIDTH, HEADS = 128, 32, 4
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def make_checkpoint(layers: int) -> TensorDict:
    """Make the weights of a decoder under the flat names that hubs use."""
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    result = TensorDict()
    result["model.embed_tokens.weight"] = weight(VOCABULARY, WIDTH)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for name in (*PROJECTIONS, "o_proj"):
            result[f"{prefix}.self_attn.{name}.weight"] = weight(WIDTH, WIDTH)
        result[f"{prefix}.mlp.up_proj.weight"] = weight(4 * WIDTH, WIDTH)
        result[f"{prefix}.mlp.down_proj.weight"] = weight(WIDTH, 4 * WIDTH)
        result[f"{prefix}.input_layernorm.weight"] = torch.ones(WIDTH)
        result[f"{prefix}.post_attention_layernorm.weight"] = torch.ones(WIDTH)
    result["model.norm.weight"] = torch.ones(WIDTH)
    result["lm_head.weight"] = weight(VOCABULARY, WIDTH)
    return result


def convert(flat: TensorDictBase) -> TensorDict:
    """Return the weights with joined projections and stacked layers, in bfloat16."""
    tree = flat.unflatten_keys(".")
    layers = []
    for number in sorted(tree["model", "layers"].keys(), key=int):
        layer = tree["model", "layers", number].copy()
        attention = layer["self_attn"]
        joined = torch.cat([attention[name, "weight"] for name in PROJECTIONS])
        layer["self_attn"] = TensorDict(qkv=joined, out=attention["o_proj", "weight"])
        layers.append(layer)
    converted = TensorDict(
        embedding=tree["model", "embed_tokens", "weight"],
        norm=tree["model", "norm", "weight"],
        head=tree["lm_head", "weight"],
    )
    converted["layers"] = stack(layers)
    return converted.to(torch.bfloat16)


def block(x: torch.Tensor, layer: TensorDictBase, qkv: torch.Tensor) -> torch.Tensor:
    """Run one layer of the decoder on ``x`` [batch, tokens, WIDTH]."""
    linear = nn.functional.linear
    normed = nn.functional.rms_norm(x, (WIDTH,), layer["input_layernorm", "weight"])
    parts = linear(normed, qkv).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0)
    q, k, v = (part.transpose(1, 2) for part in parts)
    mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    attention = layer["self_attn"]
    out = attention["out"] if "out" in attention else attention["o_proj", "weight"]
    x = x + linear(mixed.transpose(1, 2).flatten(-2), out)
    normed = nn.functional.rms_norm(
        x, (WIDTH,), layer["post_attention_layernorm", "weight"]
    )
    hidden = linear(normed, layer["mlp", "up_proj", "weight"]).relu()
    return x + linear(hidden, layer["mlp", "down_proj", "weight"])


def logits_of_flat(flat: TensorDictBase, tokens: torch.Tensor) -> torch.Tensor:
    """Run the model with the published weights."""
    tree = flat.unflatten_keys(".")
    x = tree["model", "embed_tokens", "weight"][tokens]
    for number in sorted(tree["model", "layers"].keys(), key=int):
        layer = tree["model", "layers", number]
        joined = torch.cat([layer["self_attn", name, "weight"] for name in PROJECTIONS])
        x = block(x, layer, joined)
    x = nn.functional.rms_norm(x, (WIDTH,), tree["model", "norm", "weight"])
    return nn.functional.linear(x, tree["lm_head", "weight"])


def logits_of_converted(params: TensorDictBase, tokens: torch.Tensor) -> torch.Tensor:
    """Run the model with the converted weights, one row of ``layers`` a layer."""
    x = params["embedding"][tokens]
    for layer in params["layers"]:
        x = block(x, layer, layer["self_attn", "qkv"])
    x = nn.functional.rms_norm(x, (WIDTH,), params["norm"])
    return nn.functional.linear(x, params["head"])


def table(title: str, weights: TensorDictBase, limit: int) -> None:
    """Print keys, shapes, dtypes and sizes."""
    leaves = dict(weights.items(include_nested=True, leaves_only=True))
    size = sum(leaf.nbytes for leaf in leaves.values())
    print(f"\n{title}: {len(leaves)} tensors, {size / 1e3:.0f} kB")
    for number, (key, leaf) in enumerate(leaves.items()):
        if number == limit:
            print(f"  and {len(leaves) - limit} more")
            break
        name = key if isinstance(key, str) else " / ".join(key)
        dtype = str(leaf.dtype).removeprefix("torch.")
        print(f"  {name:46} {tuple(leaf.shape)!s:14} {dtype}")


def main() -> float:
    """Convert, compare, and return the largest deviation of the logits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    tokens = torch.arange(24).view(2, 12)
    with tempfile.TemporaryDirectory() as folder:
        published, converted = Path(folder, "hub"), Path(folder, "converted")
        for path in (published, converted):
            path.mkdir()
        to_safetensors(
            make_checkpoint(arguments.layers), published / "model.safetensors", shards=3
        )
        flat = TensorDict.load(published / "model.safetensors.index.json")
        to_safetensors(convert(flat), converted / "model.safetensors", shards=2)
        table("published", flat, limit=9)
        params = TensorDict.load(converted / "model.safetensors.index.json")
        table("converted", params, limit=20)
        print(
            "\nfiles: " + ", ".join(sorted(path.name for path in converted.iterdir()))
        )
        expected = logits_of_flat(flat.to(torch.bfloat16).float(), tokens)
        found = logits_of_converted(params.float(), tokens)
    deviation = (expected - found).abs().max().item()
    print(f"largest deviation of the logits: {deviation:.1e}")
    return deviation


if __name__ == "__main__":
    main()
