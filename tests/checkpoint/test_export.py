"""Steps in the formats of others, and checkpoints of programs on several ranks as steps."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from ranks import Raised, Ranks
from tensordict import _rust, cli, from_safetensors
from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint.lazy_state import LazyTensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]

if not torch.distributed.is_available():
    pytest.skip("this torch has no ranks", allow_module_level=True)

from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


class Net(nn.Module):
    """A model with uneven and tiny parameters, a buffer, and bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(5, 6)
        self.down = nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Linear(3, 1, dtype=torch.bfloat16)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.down(self.up(batch).relu()))
        return self.scale(hidden.bfloat16())


def make(seed: int, spread: str = "") -> tuple[Net, torch.optim.Optimizer]:
    """A model and an optimizer with two groups, which have stepped."""
    torch.manual_seed(seed)
    net = Net()
    if spread:
        mesh = init_device_mesh("cpu", (2,))
        if spread == "tp":
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(net, mesh, plan)
        else:
            fully_shard(net, mesh=mesh)
    weights = [each for name, each in net.named_parameters() if "bias" not in name]
    others = [each for name, each in net.named_parameters() if "bias" in name]
    groups = [
        {"params": weights, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01 * seed)
    for place, parameter in enumerate(net.parameters()):
        parameter.grad = torch.ones_like(parameter) * (place + 1)
    optimizer.step()
    return net, optimizer


def states(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The tensors of both by name, whole, on every rank."""
    found, groups = get_state_dict(
        net, optimizer, options=StateDictOptions(full_state_dict=True)
    )
    return dict(found) | {
        f"{name}.{key}": value
        for name, state in groups["state"].items()
        for key, value in state.items()
    }


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


def call(capsys: Any, *arguments: Any) -> tuple[int, str]:
    status = cli.main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out + err


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(2, tmp_path_factory.mktemp("two"))
    yield ranks
    ranks.close()


# One process --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 64, "1KB"])
def test_a_folder_of_hugging_face(tmp_path: Path, size: Any) -> None:
    net, optimizer = make(1)
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    checkpointer.save(3, model=net, optimizer=optimizer)
    out = checkpointer.export(tmp_path / "out", max_shard_size=size)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    weights = index["weight_map"]
    expected = net.state_dict()
    sizes = {
        name: each.numel() * each.element_size() for name, each in expected.items()
    }
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert set(os.listdir(out)) == {*weights.values(), "model.safetensors.index.json"}
    open_file = pytest.importorskip("safetensors").safe_open
    found: dict[str, Any] = {}
    for file in set(weights.values()):
        with open_file(out / file, "pt") as opened:
            assert opened.metadata()["format"] == "pt"
            names = set(opened.keys())
            assert names == {name for name, place in weights.items() if place == file}
            found |= {name: opened.get_tensor(name) for name in names}
        if size == 64:
            assert len(names) == 1 or sum(map(sizes.__getitem__, names)) <= 64
    assert_equal(found, dict(expected))
    assert torch.equal(from_safetensors(out)["up", "weight"], net.up.weight)


def test_no_more_than_one_shard_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(6)))
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    checkpointer.save(1, model=net)
    read, counts = LazyTensors.read, []

    def counting(self: LazyTensors, tensors: Any) -> Any:
        found = read(self, tensors)
        counts.append(sum(each.numel() * each.element_size() for each in found))
        return found

    monkeypatch.setattr(LazyTensors, "read", counting)
    checkpointer.export(tmp_path / "hf", max_shard_size=600)
    assert counts == [512, 512, 512]
    counts.clear()
    checkpointer.export(tmp_path / "dcp", format="dcp")
    assert counts == [256] * 6


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_open_it(tmp_path: Path, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config).bfloat16()
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    checkpointer.save(1, model=model)
    out = checkpointer.export(tmp_path / "out", max_shard_size="1KB")
    weights = json.loads((out / "model.safetensors.index.json").read_text())[
        "weight_map"
    ]
    assert ("lm_head.weight" in weights) is not tied
    loaded, info = transformers.LlamaForCausalLM.from_pretrained(
        out, output_loading_info=True, dtype=torch.bfloat16
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert_equal(dict(loaded.state_dict()), dict(model.state_dict()))


def test_a_directory_of_dcp(tmp_path: Path) -> None:
    net, optimizer = make(1)
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    checkpointer.save(1, model=net, optimizer=optimizer, epoch=4)
    out = checkpointer.export(tmp_path / "out", format="dcp")
    other, other_optimizer = make(2)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=out)
    assert_equal(dict(state), dict(net.state_dict()))
    items = ["model", "optimizer", "epoch"]
    out = checkpointer.export(tmp_path / "all", item=items, format="dcp")
    names, groups = get_state_dict(other, other_optimizer)
    both = {"model": names, "optimizer": groups, "epoch": 0}
    dcp.load(both, checkpoint_id=out)
    set_state_dict(
        other,
        other_optimizer,
        model_state_dict=both["model"],
        optim_state_dict=both["optimizer"],
    )
    assert both["epoch"] == 4
    assert_equal(states(other, other_optimizer), states(net, optimizer))
    found, expected = (each.param_groups for each in (other_optimizer, optimizer))
    for key in ("lr", "weight_decay", "betas"):
        assert [group[key] for group in found] == [group[key] for group in expected]


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"scale": 2, "history": torch.arange(3)}

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def test_what_the_formats_cannot_hold(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    model = nn.Sequential(Extra(2, 1))
    model.register_buffer("wide", torch.ones(2, dtype=torch.complex128))
    checkpointer.save(1, model=model, weights={"a": {"b": torch.ones(2)}}, text="x")
    out = checkpointer.export(tmp_path / "dcp", format="dcp")
    state = nn.Sequential(Extra(2, 1)).state_dict()
    state["wide"] = torch.zeros(2, dtype=torch.complex128)
    dcp.load(state, checkpoint_id=out)
    assert torch.equal(state["wide"], model.wide)
    assert torch.equal(state["0._extra_state"]["history"], torch.arange(3))
    with pytest.raises(TypeError, match="wide"):
        checkpointer.export(tmp_path / "hf")
    out = checkpointer.export(tmp_path / "weights", item="weights")
    assert torch.equal(from_safetensors(out)["a", "b"], torch.ones(2))
    with pytest.raises(ValueError, match="'text'"):
        checkpointer.export(tmp_path / "text", item="text")
    del model.wide
    checkpointer.save(2, model=model)
    with pytest.warns(UserWarning, match="_extra_state"):
        checkpointer.export(tmp_path / "hf")
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        *("dcp", "hf", "run", "weights")
    ]


def test_wrong_wishes_leave_everything_as_it_was(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    checkpointer.save(1, model=nn.Linear(2, 1))
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine").touch()
    wishes: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (FileExistsError, "not replaced", {"path": there}),
        (FileNotFoundError, "no step 5", {"step": 5}),
        (KeyError, "'net': it has \\['model'\\]", {"item": "net"}),
        (ValueError, "'huggingface' or 'dcp'", {"format": "onnx"}),
        (ValueError, "one item", {"item": ["model"]}),
        (ValueError, "max_shard_size", {"max_shard_size": "many"}),
        (ValueError, "max_shard_size", {"max_shard_size": 9, "format": "dcp"}),
    ]
    for error, text, options in wishes:
        with pytest.raises(error, match=text):
            checkpointer.export(**{"path": tmp_path / "out", **options})
    file = tmp_path / "run" / "step-1" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for form in ("huggingface", "dcp"):
        with pytest.raises(RuntimeError, match="step-1/model.safetensors"):
            checkpointer.export(tmp_path / "out", format=form)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "there"]
    assert [each.name for each in there.iterdir()] == ["mine"]


def test_the_command(tmp_path: Path, capsys: Any) -> None:
    net, optimizer = make(1)
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    checkpointer.save(7, model=net, optimizer=optimizer, epoch=2)
    step, out = tmp_path / "run" / "step-7", tmp_path / "out"
    wishes = "--layout", "huggingface", "--max-shard-size", "100"
    status, text = call(capsys, "convert", step, out, *wishes)
    assert (status, "huggingface" in text) == (0, True)
    assert len(list(out.glob("*.safetensors"))) > 1
    assert torch.equal(from_safetensors(out)["up", "weight"], net.up.weight)
    status, text = call(capsys, "convert", step, out, "--layout", "dcp")
    assert (status, "--force" in text) == (2, True)
    items = "--item", "model", "--item", "optimizer", "--item", "epoch"
    status, text = call(
        capsys, "convert", step, out, "--layout", "dcp", *items, "--force", "--json"
    )
    assert json.loads(text)["num_bytes"] > 0
    assert (out / ".metadata").is_file()
    back = tmp_path / "back"
    assert call(capsys, "convert", out, back / "step-1")[0] == 0
    other = make(2)
    restored = Checkpointer(back).restore(model=other[0], optimizer=other[1])
    assert restored == {"epoch": 2}
    assert_equal(states(*other), states(net, optimizer))
    status, _ = call(capsys, "convert", out, tmp_path / "hf", "--layout", "huggingface")
    assert status == 0
    assert torch.equal(from_safetensors(tmp_path / "hf")["up", "weight"], net.up.weight)
    file, again = tmp_path / "run" / "step-7" / "model.safetensors", tmp_path / "again"
    assert call(capsys, "convert", file, again, "--layout", "huggingface")[0] == 0
    assert torch.equal(from_safetensors(again)["up", "weight"], net.up.weight)
    for wrong in (
        ("--item", "model"),
        ("--layout", "dcp", "--shards", "2"),
        ("--layout", "dcp", "--item", "nothing"),
    ):
        assert call(capsys, "convert", step, tmp_path / "no", *wrong)[0] == 2
    assert not (tmp_path / "no").exists()


# Ranks --------------------------------------------------------------------------------


def save_and_export(rank: int, folder: Path, spread: str) -> list[dict[str, Any]]:
    net, optimizer = make(1, spread)
    checkpointer = Checkpointer(folder / "run", durable=False)
    checkpointer.save(1, model=net, optimizer=optimizer, epoch=rank)
    reads = []
    read = LazyTensors.read

    def counting(self: LazyTensors, tensors: Any) -> Any:
        reads.append(len(tensors))
        return read(self, tensors)

    LazyTensors.read = counting  # type: ignore[method-assign]
    try:
        checkpointer.export(folder / "hf", max_shard_size=1)
        assert len(reads) in (5, 6)
        checkpointer.export(folder / "dcp", item=["model", "optimizer"], format="dcp")
    finally:
        LazyTensors.read = read  # type: ignore[method-assign]
    other = make(2, spread)
    names, groups = get_state_dict(*other)
    both = {"model": names, "optimizer": groups}
    dcp.load(both, checkpoint_id=folder / "dcp")
    set_state_dict(*other, model_state_dict=names, optim_state_dict=groups)
    return [states(net, optimizer), states(*other)]


@pytest.mark.parametrize("spread", ["fsdp", "tp"])
def test_ranks_write_together(two: Ranks, tmp_path: Path, spread: str) -> None:
    for expected, found in two.all(save_and_export, tmp_path, spread):
        assert_equal(found, expected)
    names = Net().state_dict()
    found = from_safetensors(tmp_path / "hf").flatten_keys(".").to_dict()
    assert_equal(found, {name: expected[name] for name in names})
    assert sorted(each.name for each in tmp_path.iterdir()) == ["dcp", "hf", "run"]
    # One process writes the same of the step of two.
    run = Checkpointer(tmp_path / "run")
    alone = from_safetensors(run.export(tmp_path / "alone"))
    assert_equal(alone.flatten_keys(".").to_dict(), found)
    state = {name: torch.zeros_like(each) for name, each in names.items()}
    dcp.load(state, checkpoint_id=run.export(tmp_path / "one", format="dcp"))
    assert_equal(state, found)


def llama() -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


def export_tied(rank: int, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model = llama()
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model.model.layers[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    checkpointer = Checkpointer(folder / "run", durable=False)
    checkpointer.save(1, model=model)
    checkpointer.export(folder / "hf")
    checkpointer.export(folder / "dcp", format="dcp")
    expected = {
        name: each.full_tensor().clone() for name, each in model.state_dict().items()
    }
    nn.init.zeros_(model.lm_head.weight)
    checkpointer.restore(model=model)
    assert torch.equal(model.lm_head.weight.full_tensor(), expected["lm_head.weight"])
    nn.init.zeros_(model.lm_head.weight)
    state = model.state_dict()
    dcp.load(state, checkpoint_id=folder / "dcp")
    for name, each in state.items():
        assert torch.equal(each.full_tensor(), expected[name]), name
    return expected


def test_tied_tensors_of_ranks_are_there_once(two: Ranks, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    expected = two.all(export_tied, tmp_path)[0]
    names = [
        name
        for path in (tmp_path / "run" / "step-1").glob("*.safetensors")
        for name, *_ in _rust.safetensors_header(str(path))[1]
    ]
    assert not any("lm_head" in name for name in names)
    assert any("embed_tokens" in name for name in names)
    index = json.loads((tmp_path / "hf/model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == expected.keys() - {"lm_head.weight"}
    loaded, info = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert_equal(dict(loaded.state_dict()), expected)
    # One process restores it, and a model that is not tied has both.
    model = llama()
    Checkpointer(tmp_path / "run").restore(model=model)
    assert_equal(dict(model.state_dict()), expected)
    state = Checkpointer(tmp_path / "run").load()["model"]
    assert torch.equal(state["lm_head", "weight"], expected["lm_head.weight"])


def export_damaged(rank: int, folder: Path) -> None:
    net, _ = make(1, "fsdp")
    checkpointer = Checkpointer(folder / "run", durable=False)
    checkpointer.save(1, model=net)
    if rank == 0:
        path = folder / "run" / "step-1" / "model-rank-00001.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    for form in ("huggingface", "dcp"):
        torch.distributed.barrier()
        with pytest.raises(RuntimeError, match="model-rank-00001") as met:
            checkpointer.export(folder / "out", format=form, max_shard_size=None)
        assert "/proc/" not in str(met.value)
    torch.distributed.barrier()


def test_damage_is_refused_on_all_ranks(two: Ranks, tmp_path: Path) -> None:
    two.all(export_damaged, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def export_over(rank: int, folder: Path) -> None:
    checkpointer = Checkpointer(folder / "run", durable=False)
    checkpointer.save(1, model=nn.Linear(2, 1))
    checkpointer.export(folder / "there")


def test_what_one_rank_meets_is_raised_on_all(two: Ranks, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").touch()
    first, second = two.try_all(export_over, tmp_path)
    assert isinstance(first, Raised)
    assert isinstance(second, Raised)
    assert first.name == "FileExistsError"
    assert "Rank 0 could not export" in second.text


def save_with_torch(rank: int, folder: Path, spread: str, form: str) -> dict[str, Any]:
    net, optimizer = make(1, spread)
    options = StateDictOptions(flatten_optimizer_state_dict=form != "named")
    model, groups = get_state_dict(net, optimizer, options=options)
    state: dict[str, Any] = {"model": model, "optimizer": groups, "epoch": 3}
    if form == "app":
        state = {"app": state}
    elif form == "top":
        state = {**model, "optimizer": groups, "epoch": 3}
    elif form == "flat":
        state = {**model, **groups, "epoch": 3}
    dcp.save(state, checkpoint_id=folder / "dcp")
    return states(net, optimizer)


@pytest.mark.parametrize(
    ("spread", "form"),
    [
        *(("fsdp", form) for form in ("named", "nested", "app", "top", "flat")),
        ("tp", "flat"),
    ],
)
def test_directories_of_other_programs_become_steps(
    two: Ranks, tmp_path: Path, capsys: Any, spread: str, form: str
) -> None:
    expected = two.all(save_with_torch, tmp_path, spread, form)[0]
    step = tmp_path / "run" / "step-5"
    status, text = call(capsys, "convert", tmp_path / "dcp", step)
    assert status == 0, text
    net, optimizer = make(2)
    restored = Checkpointer(tmp_path / "run").restore(model=net, optimizer=optimizer)
    assert restored == {"epoch": 3}
    assert_equal(states(net, optimizer), expected)
    groups = optimizer.param_groups
    assert [group["lr"] for group in groups] == [0.01, 0.01]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [tuple(group["betas"]) for group in groups] == [(0.9, 0.999)] * 2


def test_states_of_optimizers_without_names_and_states(
    tmp_path: Path, capsys: Any
) -> None:
    net = nn.Linear(2, 1)
    for number, momentum in enumerate((0.0, 0.9)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=momentum)
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        source = tmp_path / f"dcp-{number}"
        state = {"net": net.state_dict(), "optim": optimizer.state_dict()}
        dcp.save(state, checkpoint_id=source, no_dist=True)
        step = tmp_path / "run" / f"step-{number}"
        assert call(capsys, "convert", source, step)[0] == 0
        fresh = nn.Linear(2, 1)
        other = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=momentum)
        Checkpointer(tmp_path / "run").restore(net=fresh, optim=other)
        assert torch.equal(fresh.weight, net.weight)
        assert other.param_groups[0]["lr"] == 0.3
        assert_equal(states(fresh, other), states(net, optimizer))
