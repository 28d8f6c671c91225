"""A small program for a machine that is slow: imports, saves, loads, gathers, compares."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

import tensordict
from tensordict import TensorDict, _rust
from tensordict.data import gather

ROWS = 200


def check(is_same: object, what: str) -> None:
    """End with an error where something is other than it was."""
    if not is_same:
        sys.exit(f"{what} is not as it was")


def main() -> None:
    """Fail where something comes back other than it was."""
    print(tensordict.__version__, _rust.__file__, _rust.shortcuts())
    generator = torch.Generator().manual_seed(0)
    td = TensorDict(
        pixels=torch.randint(256, (ROWS, 3, 4), dtype=torch.uint8, generator=generator),
        nested=TensorDict(x=torch.randn(ROWS, generator=generator), batch_size=[ROWS]),
        text="a value",
        batch_size=[ROWS],
    )
    rows = torch.randperm(ROWS, generator=generator)[:50]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        td.memmap(folder / "tree")
        td.save(folder / "archive.tdz")
        td.exclude("text").save(folder / "file.safetensors")
        for path in sorted(folder.iterdir()):
            loaded = TensorDict.load(path)
            shared = td.exclude("text") if path.suffix == ".safetensors" else td
            check((loaded == shared).all(), path.name)
            check(
                (gather(loaded, rows) == shared[rows]).all(), f"{path.name}, gathered,"
            )
            print(f"{path.name}: saved, loaded, {len(rows)} rows gathered")
        check(TensorDict.load(folder / "tree")["text"] == "a value", "a text")
    check((torch.stack([td, td])[1] == td).all(), "a stack")
    print("all is as it was")


if __name__ == "__main__":
    main()
