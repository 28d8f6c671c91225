"""Fill the corpora of the fuzz targets with real files: ``python rust/fuzz/seeds.py``.

The package has to be importable. Then, with the nightly compiler and cargo-fuzz, in
``rust/fuzz``: ``cargo +nightly fuzz run archive -- -max_total_time=600``.
"""

import tempfile
from pathlib import Path

import torch

from tensordict import MetaData, NonTensorData, TensorDict, lazy_stack, to_safetensors

CORPUS = Path(__file__).parent / "corpus"


def collections() -> list[TensorDict]:
    """Small collections of every kind of entry."""
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 4)])
    return [
        TensorDict({}, [4]),
        TensorDict({"a": torch.arange(64, dtype=torch.uint8)}, names=[]),
        TensorDict({"a": torch.ones(3, 2), "n": {"b": torch.zeros(0)}}, [], names=None),
        TensorDict({"a b/%": torch.ones(2).to(torch.bfloat16), "é": torch.tensor(1j)}),
        TensorDict({"v": NonTensorData("text"), "m": MetaData({"k": [1, 2.5, None]})}),
        TensorDict(
            {"s": lazy_stack([TensorDict({"a": torch.ones(i)}) for i in (1, 2)])}
        ),
        TensorDict({"j": nested}),
    ]


def add(target: str, content: bytes) -> None:
    """Put a file into the corpus of a target."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{len(list(folder.iterdir())):03}").write_bytes(content)


def main() -> None:
    """Save every collection in every layout that takes it."""
    for number, td in enumerate(collections()):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            td.save(folder / "tree")
            for path in (folder / "tree").rglob("*.json"):
                target = "checksums" if path.name.startswith(".") else "tree"
                add(target, path.read_bytes())
            for compression in ("stored", "deflate", "bzip2", "lzma"):
                td.save(folder / "x.tdz", archive=True, compression=compression)
                add("archive", (folder / "x.tdz").read_bytes())
            if number != 6:  # No strided nested tensor goes into these.
                td.consolidate(folder / "cons")
                add("consolidated", (folder / "cons").read_bytes())
            if number not in (5, 6):
                to_safetensors(td, folder / "x.safetensors")
                add("safetensors", (folder / "x.safetensors").read_bytes())
                to_safetensors(td, folder / "y.safetensors", shards=2)
                add("index", (folder / "y.safetensors.index.json").read_bytes())
            for key in list(td.keys()):
                add("names", key.encode())


if __name__ == "__main__":
    main()
