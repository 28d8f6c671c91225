"""A power cut: what a durable save returned from is there, whatever the cache held."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ext4_disk import SECONDS, Disk, ext4_disk
from tensordict import TensorDict, to_safetensors
from tensordict.storage import verify

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process"),
    pytest.mark.timeout(280),
]

LAYOUTS = [
    "x",
    "many",
    "mixed",
    "in place",
    "x.tdz",
    "x.safetensors",
    "shards",
    "x.cons",
]


@pytest.fixture
def disk() -> Iterator[Disk]:
    with ext4_disk() as disk:
        yield disk


def make(value: int, count: int) -> TensorDict:
    leaves = {f"k{i}": torch.full((3000,), value) for i in range(count)}
    return TensorDict({**leaves, "n": {"last": torch.full((10,), value)}})


def save(layout: str, value: int, folder: Path) -> Path:
    """Save a value durably; what to load. Nothing stays mapped."""
    path = folder / "deeper" / "still" / (layout if "." in layout else "x")
    td = make(value, 400 if layout == "many" else 20)
    if layout == "x.cons":
        path.parent.mkdir(parents=True, exist_ok=True)
        td.consolidate(path, durable=True)
    elif layout == "shards":
        path = path.with_suffix(".safetensors")
        to_safetensors(td, path, shards=3, durable=True)
        path = Path(f"{path}.index.json")
    else:
        td.save(path, durable=True, atomic=False if layout == "in place" else None)
    return path


def values_of(path: Path) -> set[int]:
    loaded = TensorDict.load(path)
    return {
        int(v) for leaf in loaded.values(True, True) for v in (leaf.min(), leaf.max())
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_durable_save_is_there_after_a_power_cut(layout, disk):
    for value in (1, 2):
        path = save(layout, value, disk.place)
        disk.cut()
        disk.restart()
        assert values_of(path) == {value}
        assert {found.outcome for found in verify(path).findings} <= {"good"}
        if layout == "mixed" and value == 1:
            (path / "notes.txt").write_text("mine")


def save_for_ever(layout: str, value: int, folder: Path) -> int:
    """A process that saves one value after the other until the disk is gone."""
    child = os.fork()
    if child == 0:
        # Whatever happens, it ends.
        signal.alarm(SECONDS)
        torch.set_num_threads(1)
        try:
            while True:
                value += 1
                save(layout, value, folder)
        finally:
            os._exit(0)
    return child


@pytest.mark.parametrize(
    "layout", ["x", "many", "x.tdz", "x.safetensors", "shards", "x.cons"]
)
def test_a_power_cut_in_a_durable_save_leaves_the_old_or_the_new(layout, disk):
    path = save(layout, 1, disk.place)
    value = 1
    for wait in (0.002, 0.03, 0.1):
        child = save_for_ever(layout, value, disk.place)
        time.sleep(wait)
        disk.cut()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        disk.restart()
        found = values_of(path)
        assert len(found) == 1, "leaves of two saves"
        assert found.pop() >= value
        assert not verify(path).is_damaged
        value += 1000
        save(layout, value, disk.place)
        assert values_of(path) == {value}


def test_a_power_cut_in_a_durable_save_in_place_leaves_what_loads_or_is_refused(disk):
    path = save("in place", 1, disk.place)
    for wait in (0.002, 0.03, 0.1):
        child = save_for_ever("in place", 1, disk.place)
        time.sleep(wait)
        disk.cut()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        disk.restart()
        # The one form that is asked to mix old and new bytes: sizes and keys hold.
        assert len(TensorDict.load(path).keys()) == 21
        save("in place", 7, disk.place)
        assert values_of(path) == {7}
        assert not verify(path).is_damaged
