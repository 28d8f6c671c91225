"""Saves of several processes meet: nobody fails, and each reader sees one save."""

import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tensordict import TensorDict, to_safetensors
from tensordict.storage import verify

pytestmark = pytest.mark.filterwarnings("ignore:This process")

INDEX = ".safetensors.index.json"
LAYOUTS = ["x", "x.tdz", "x.safetensors", "x.cons", f"x{INDEX}"]


def make(value: int) -> TensorDict:
    """A collection of one value, whose sizes and dtypes are those of few others."""
    dtypes = [torch.int64, torch.int32, torch.float64]
    leaves = {
        f"k{i}": torch.full((size + value % 5,), value, dtype=dtypes[(i + value) % 3])
        for i, size in enumerate([3000, 50, 7])
    }
    return TensorDict({**leaves, "n": {"last": torch.full((10,), value)}})


def save(value: int, target: Path) -> TensorDict | None:
    td = make(value)
    if target.suffix == ".cons":
        return td.consolidate(target)
    if target.suffix == ".safetensors":
        return to_safetensors(td, target)
    if target.name.endswith(INDEX):
        name = target.name.removesuffix(".index.json")
        return to_safetensors(td, target.with_name(name), shards=3)
    return td.save(target)


def names_in(folder: Path) -> list[str]:
    """The files of a folder, but for three shards beside an index."""
    names = os.listdir(folder)
    shards = [name for name in names if "-of-00003.safetensors" in name]
    assert len(shards) == (3 if f"x{INDEX}" in names else 0)
    return [name for name in names if name not in shards]


def values_of(td: TensorDict) -> set[float]:
    return {float(v) for leaf in td.values(True, True) for v in leaf.unique()}


def in_processes(*works: Callable[[], None]) -> None:
    """Run functions, each in a process, at the same time.

    Raises:
        AssertionError: one of them raised.
    """
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            try:
                work()
                os._exit(0)
            finally:
                # Nobody else tells what was raised in a process that ends so.
                os.write(2, traceback.format_exc().encode())
                os._exit(1)
        children.append(child)
    states = [os.waitpid(child, 0)[1] for child in children]
    assert states == [0] * len(works)


def for_a_while(work: Callable[[int], None], seconds: float = 0.3) -> None:
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        work(number)
        number += 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_first_saves_at_the_same_time(name, tmp_path):
    for number in range(4):
        target = tmp_path / str(number) / "deeper" / name
        in_processes(*[lambda v=v, t=target: save(v, t) for v in range(4)])
        assert len(values_of(TensorDict.load(target))) == 1
        assert names_in(target.parent) == [name]


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_writers_and_a_reader(name, tmp_path):
    target = tmp_path / name
    save(0, target)

    def write(value: int) -> None:
        # A save gives back its own rows, whatever took its place since.
        saved = save(value, target)
        assert saved is None or values_of(saved) == {value}

    def read(number: int) -> None:
        assert len(values_of(TensorDict.load(target))) == 1
        report = verify(target)
        assert not report.is_damaged, str(report)

    in_processes(
        lambda: for_a_while(write),
        lambda: for_a_while(lambda number: write(1000 + number)),
        lambda: for_a_while(read),
    )
    assert names_in(tmp_path) == [name]


def test_files_that_are_put_into_the_target_meanwhile_stay(tmp_path):
    target = tmp_path / "x"
    large = TensorDict({f"k{i}": torch.ones(30_000) for i in range(4)})
    for number in range(10):
        large.save(target)

        def note(wait: float = number * 0.001) -> None:
            time.sleep(wait)
            (target / "notes.txt").write_text("mine")

        in_processes(lambda: large.save(target), note)
        assert (target / "notes.txt").read_text() == "mine"
        assert TensorDict.load(target)["k3"].eq(1).all()
        assert os.listdir(tmp_path) == ["x"]
        shutil.rmtree(target)


def test_a_leaf_is_linked_only_to_the_file_that_is_mapped(tmp_path):
    target = tmp_path / "x"
    save(0, target)

    def add(number: int) -> None:
        td = TensorDict.load(target)
        before = values_of(td)
        td["new"] = torch.full((3,), next(iter(before)))
        td.memmap_(target)
        assert values_of(td) == before

    def read(_: int) -> None:
        assert len(values_of(TensorDict.load(target))) == 1
        assert not verify(target).is_damaged

    in_processes(
        lambda: for_a_while(add),
        lambda: for_a_while(lambda number: save(number, target)),
        lambda: for_a_while(read),
    )


def test_what_save_returns_is_what_was_saved(tmp_path):
    target = tmp_path / "x.safetensors"

    def save_and_look(value: int) -> None:
        torch.set_num_threads(1)
        for _ in range(15):
            assert values_of(make(value).save(target)) == {value}

    in_processes(lambda: save_and_look(1), lambda: save_and_look(2))


def test_a_kill_among_first_saves_of_shards_leaves_a_save_that_loads(tmp_path):
    chance = random.Random(5)
    for number in range(12):
        target = tmp_path / str(number) / f"x{INDEX}"
        target.parent.mkdir()
        children = []
        for value in (1, 2, 3):
            child = os.fork()
            if child == 0:
                try:
                    torch.set_num_threads(1)
                    save(value, target)
                finally:
                    os._exit(0)
            children.append(child)
        time.sleep(chance.random() * 0.02)
        os.kill(children[number % 3], signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        assert len(values_of(TensorDict.load(target))) == 1
        assert not verify(target).is_damaged
        save(4, target)
        assert names_in(target.parent) == [target.name]
        assert values_of(TensorDict.load(target)) == {4}
