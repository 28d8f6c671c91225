"""Leftovers of processes killed while replacing files: the next call sweeps them."""

import fcntl
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tensordict import MemoryMappedTensor, TensorDict, pack_memmap, unpack_memmap
from tensordict.storage import seal, verify

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="owners are found in /proc"),
    pytest.mark.filterwarnings("ignore:This process"),
]


def leftovers(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.tdtmp"))


def kill_at(num_bytes: int, work: Callable[[], object], folder: Path) -> None:
    """Let a process work that is killed when it writes beyond so many bytes of a file."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the process was not killed"
    assert os.WTERMSIG(status) == signal.SIGXFSZ
    (area,) = leftovers(folder)
    assert list(area.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    TensorDict({"a": torch.ones(3), "n": {"b": torch.zeros(2)}}).save(tmp_path / "x")
    return tmp_path / "x"


def test_a_file_of_one_tensor(tmp_path):
    big = torch.ones(1 << 20)
    path = tmp_path / "t"
    make = MemoryMappedTensor.from_tensor
    kill_at(1 << 20, lambda: make(big, filename=path), tmp_path)
    assert not path.exists()
    make(torch.zeros(2), filename=path)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_an_entry_that_is_added_to_a_save(saved):
    big = torch.ones(1 << 20)
    td = TensorDict.load_memmap(saved).memmap_(saved)
    kill_at(1 << 20, lambda: td["n"].make_memmap_from_tensor("k", big), saved)
    left = leftovers(saved)
    assert left == [saved / "n" / ".k.memmap.tdtmp"]
    # Nobody takes it for a part of the save.
    assert set(TensorDict.load(saved).keys(True, True)) == {"a", ("n", "b")}
    pack_memmap(saved, saved.with_suffix(".tdz"))
    packed = {found.path for found in verify(saved.with_suffix(".tdz")).findings}
    assert not any("tdtmp" in path for path in packed)
    assert leftovers(saved) == left
    # The next save sweeps it, and takes the place of the whole directory.
    inode = saved.stat().st_ino
    TensorDict({"a": torch.ones(1), "n": {"b": torch.zeros(2)}}).save(saved)
    assert leftovers(saved.parent) == []
    assert saved.stat().st_ino != inode


def test_the_sums_of_a_save(saved):
    kill_at(30, lambda: seal(saved), saved)
    assert {found.outcome for found in verify(saved).findings} == {"good"}
    seal(saved)
    assert leftovers(saved) == []
    assert {found.outcome for found in verify(saved).findings} == {"good"}


def test_the_metadata_of_files_to_be_filled(tmp_path):
    td = TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(2)}})
    kill_at(30, lambda: td.memmap_like(tmp_path / "x"), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"meta\.json"):
        TensorDict.load(tmp_path / "x")
    td.memmap_like(tmp_path / "x")
    assert leftovers(tmp_path) == []
    assert TensorDict.load(tmp_path / "x")["a"].tolist() == [0, 0, 0]


def test_the_metadata_of_a_save_in_place(saved):
    td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.ones(2)}})
    kill_at(30, lambda: td.memmap(saved, atomic=False), saved)
    found = TensorDict.load(saved)
    assert (found == td).all()
    assert not verify(saved).is_damaged
    td.memmap(saved, atomic=False)
    assert leftovers(saved) == []


def test_what_a_process_works_with_is_no_leftover(saved):
    # A directory that only looks so is not deleted: somebody may put files there.
    (saved / ".mine.tdtmp").mkdir()
    (saved / ".mine.tdtmp" / "notes.txt").write_text("mine")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        lock = os.open(saved / ".mine.tdtmp" / "notes.txt", os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(write_end, b".")
        signal.pause()
    try:
        os.read(read_end, 1)
        TensorDict({"a": torch.ones(1)}).save(saved)
        assert (saved / ".mine.tdtmp" / "notes.txt").read_text() == "mine"
        assert TensorDict.load(saved)["a"].tolist() == [1]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read_end)
        os.close(write_end)


def test_what_showed_where_many_files_are_made_quickly(tmp_path):
    td = TensorDict({f"k{number}": torch.tensor(number) for number in range(300)})
    path = tmp_path / "x"
    for _ in range(3):
        td.save(path)
        assert [each.name for each in tmp_path.iterdir()] == ["x"]
        names = {each.name for each in path.iterdir() if not each.name.startswith(".")}
        assert names == {"meta.json", *(f"{key}.memmap" for key in td.keys())}
    assert (TensorDict.load(path) == td).all()
    td.save(tmp_path / "x.tdz")
    unpack_memmap(tmp_path / "x.tdz", tmp_path / "y")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["x", "x.tdz", "y"]
    assert (TensorDict.load(tmp_path / "y") == td).all()
