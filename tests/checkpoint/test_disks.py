"""Disks that are full, read only, or lose their power: what was there stays."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ext4_disk import SECONDS, Disk, ext4_disk
from small_disk import four_megabytes
from tensordict.checkpoint import Checkpointer

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process"),
    pytest.mark.timeout(280),
]


def items(value: int, size: int = 3000) -> dict[str, torch.Tensor]:
    return {f"k{number}": torch.full((size,), value) for number in range(4)}


def values_of(checkpointer: Checkpointer) -> set[int]:
    restored = checkpointer.restore(rng=False)
    return {int(each) for leaf in restored["x"].values() for each in leaf.unique()}


@pytest.fixture
def power() -> Iterator[Disk]:
    with ext4_disk() as disk:
        yield disk


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of four megabytes."""
    with four_megabytes() as place:
        yield place


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("dedupe", [False, True])
def test_a_full_disk(small_disk: Path, background: bool, dedupe: bool) -> None:
    checkpointer = Checkpointer(
        small_disk / "run", keep=1, background=background, dedupe=dedupe
    )
    checkpointer.save(1, x=items(1, 45_000))
    checkpointer.wait()
    with pytest.raises(OSError, match="No space left on device"):
        checkpointer.save(2, x=items(2, 90_000))
        checkpointer.wait()
    # The old step is not deleted before there is a new one.
    assert checkpointer.steps() == [1]
    assert values_of(checkpointer) == {1}
    assert os.listdir(small_disk / "run") == ["step-1"]
    checkpointer.save(3, x=items(3, 1000))
    checkpointer.wait()
    assert checkpointer.steps() == [3]
    assert values_of(checkpointer) == {3}


def test_a_disk_that_is_read_only(small_disk: Path) -> None:
    checkpointer = Checkpointer(small_disk / "run", background=True)
    checkpointer.save(1, x=items(1))
    checkpointer.wait()
    mount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(mount, check=True, timeout=120)
    checkpointer.save(2, x=items(2))
    with pytest.raises(OSError, match="Read-only file system"):
        checkpointer.wait()
    assert checkpointer.latest() == 1
    assert values_of(Checkpointer(small_disk / "run")) == {1}


def test_a_step_is_there_after_a_power_cut(power: Disk) -> None:
    folder = power.place / "deeper" / "run"
    for step, background in enumerate((False, True, False)):
        checkpointer = Checkpointer(folder, keep=2, background=background, dedupe=True)
        checkpointer.save(step, x=items(step))
        checkpointer.wait()
        assert checkpointer.latest() == step
        del checkpointer
        power.cut()
        power.restart()
        after = Checkpointer(folder)
        assert after.latest() == step
        assert values_of(after) == {step}


def save_for_ever(folder: Path, step: int) -> tuple[int, int]:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        torch.set_num_threads(1)
        try:
            checkpointer = Checkpointer(folder, keep=2, background=True)
            while True:
                step += 1
                checkpointer.save(step, x=items(step))
                os.write(writes, (checkpointer.latest() or 0).to_bytes(4, "big"))
        finally:
            os._exit(0)
    os.close(writes)
    return child, reads


def test_the_latest_step_is_never_ahead_of_the_disk(power: Disk) -> None:
    folder = power.place / "run"
    Checkpointer(folder).save(1, x=items(1))
    step = 1
    for wait in (0.002, 0.03, 0.1):
        child, reads = save_for_ever(folder, step)
        time.sleep(wait)
        power.cut()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said = os.read(reads, 1 << 20)
        os.close(reads)
        power.restart()
        checkpointer = Checkpointer(folder)
        latest = checkpointer.latest()
        assert latest is not None
        assert latest >= int.from_bytes(said[-4:], "big")
        assert values_of(checkpointer) == {latest}
        step = latest
