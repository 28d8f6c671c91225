"""A disk without room: an exception, and what was there stays as it was."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from small_disk import four_megabytes
from tensordict import (
    TensorDict,
    TensorDictParams,
    lazy_stack,
    pack_memmap,
    tensorclass,
    to_safetensors,
    unpack_memmap,
)
from tensordict.storage import verify

LAYOUTS = ["x", "mixed", "x.tdz", "x.safetensors", "shards", "x.cons"]


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of four megabytes."""
    with four_megabytes() as place:
        yield place


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def make(value: int, size: int) -> TensorDict:
    leaves = {f"k{i}": torch.full((size,), value) for i in range(4)}
    return TensorDict({**leaves, "n": {"last": torch.full((10,), value)}})


def save(layout: str, td: TensorDict, folder: Path, durable: bool = False) -> Path:
    """Save; what to load."""
    if layout == "x.cons":
        td.consolidate(folder / layout, durable=durable)
    elif layout == "shards":
        to_safetensors(td, folder / "x.safetensors", shards=2, durable=durable)
        return folder / "x.safetensors.index.json"
    else:
        td.save(folder / (layout if "." in layout else "x"), durable=durable)
    return folder / (layout if "." in layout else "x")


@pytest.mark.parametrize("layout", LAYOUTS)
# More than the disk has, and more than the old save leaves of it.
@pytest.mark.parametrize("size", [1 << 18, 90_000])
@pytest.mark.parametrize("durable", [False, True])
def test_a_full_disk_is_an_exception_and_the_old_save_stays(
    durable, size, layout, disk
):
    path = save(layout, make(1, 45_000), disk)
    if layout == "mixed":
        (path / "notes.txt").write_text("mine")
    before = digest(disk)
    with pytest.raises(OSError, match="No space left on device"):
        save(layout, make(2, size), disk, durable)
    assert digest(disk) == before
    assert not verify(path).is_damaged
    # There is room for what is small, still.
    save(layout, make(3, 10), disk)
    leaves = TensorDict.load(path).values(True, True)
    assert all(leaf.eq(3).all() for leaf in leaves)


@pytest.mark.parametrize("size", [1 << 18, 90_000])
def test_archives_of_directories_on_a_full_disk(size, disk, tmp_path):
    make(1, 45_000).save(tmp_path / "old")
    make(2, size).save(tmp_path / "new")
    pack_memmap(tmp_path / "old", disk / "x.tdz")
    before = digest(disk)
    with pytest.raises(OSError, match="No space left on device"):
        pack_memmap(tmp_path / "new", disk / "x.tdz")
    assert digest(disk) == before
    assert not verify(disk / "x.tdz").is_damaged


def test_unpacking_on_a_full_disk(disk, tmp_path):
    make(2, 1 << 18).save(tmp_path / "new.tdz")
    with pytest.raises(OSError, match=r"No space left on device"):
        unpack_memmap(tmp_path / "new.tdz", disk / "x")
    assert list(disk.iterdir()) == []
    make(3, 10).save(tmp_path / "small.tdz")
    unpack_memmap(tmp_path / "small.tdz", disk / "x")
    assert not verify(disk / "x").is_damaged


@tensorclass
class Data:
    a: torch.Tensor
    s: str


LARGE = {
    "plain": lambda: make(2, 1 << 18),
    "stack": lambda: lazy_stack([make(2, 1 << 17) for _ in range(4)]),
    "parameters": lambda: TensorDictParams(TensorDict(a=torch.zeros(1 << 21))),
    "tensorclass": lambda: Data(a=torch.zeros(1 << 21), s="text"),
    "ragged": lambda: TensorDict(
        a=torch.nested.nested_tensor([torch.zeros(1 << 20), torch.zeros(1 << 20)])
    ),
    "part": lambda: TensorDict(
        a=torch.zeros(4, 1 << 19), batch_size=4
    )._get_sub_tensordict(slice(0, 3)),
}


@pytest.mark.parametrize("name", ["y", "y.tdz"])
@pytest.mark.parametrize("kind", LARGE)
def test_space_that_is_set_aside_on_a_full_disk(kind, name, disk):
    make(1, 45_000).save(disk / "x")
    before = digest(disk)
    with pytest.raises(OSError, match="No space left on device"):
        LARGE[kind]().memmap_like(disk / name, preallocate=True)
    assert digest(disk) == before
    assert os.listdir(disk) == ["x"]
    # Without it nothing takes space before it is stored to.
    LARGE[kind]().memmap_like(disk / name)
    assert os.path.exists(disk / name)


@pytest.mark.parametrize("name", ["y", "y.tdz"])
def test_space_that_is_set_aside_is_taken(name, disk):
    like = TensorDict(a=torch.zeros(1 << 19)).memmap_like(disk / name, preallocate=True)
    with pytest.raises(OSError, match="No space left on device"):
        make(1, 1 << 17).save(disk / "z")
    like["a"].fill_(1)
    assert TensorDict.load(disk / name)["a"].eq(1).all()
