"""A save that several processes add to, and whose files are opened again."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    MemoryMappedTensor,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    lazy_stack,
    refresh_archive_checksums,
    tensorclass,
)
from tensordict.storage import seal


@tensorclass
class Fields:
    a: torch.Tensor
    text: str
    unset: torch.Tensor | None = None


def make() -> TensorDict:
    return TensorDict(
        {"a": torch.arange(6).view(3, 2), "n": {"b": torch.zeros(3, 2)}}, [3]
    )


def two_over(path: Path) -> tuple[TensorDict, TensorDict]:
    """Two containers over one directory, as two processes have them."""
    first = make().memmap_(path)
    return first, TensorDict.load_memmap(path).memmap_(path)


def metadata(path: Path) -> dict[str, Any]:
    return json.loads((path / "meta.json").read_text())


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a level as another process does that changes it."""
    directory = os.open(path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(directory)


# Opening again -------------------------------------------------------------------------


def test_refresh_writes_the_names_and_batch_sizes_that_were_set(tmp_path):
    td = make().memmap_(tmp_path)
    td.names = ["time"]
    td["n"].batch_size = [3, 2]
    td["n"].names = ["time", "x"]
    assert td.memmap_refresh_() is td
    loaded = TensorDict.load_memmap(tmp_path)
    for one in (td, loaded):
        assert one.names == ["time"]
        assert one["n"].batch_size == (3, 2)
        assert one["n"].names == ["time", "x"]
    td.names = None
    assert td.memmap_refresh_().names == [None]
    assert "_names" not in metadata(tmp_path)


def test_refresh_of_what_did_not_change_writes_nothing(tmp_path):
    td = make().memmap_(tmp_path)
    before = (tmp_path / "meta.json").stat()
    td.memmap_refresh_()
    after = (tmp_path / "meta.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_refresh_that_fails_changes_neither_the_container_nor_the_files(tmp_path):
    td, other = two_over(tmp_path)
    other.make_memmap("too short", (3,))
    td.batch_size = [3, 2]
    before = (tmp_path / "meta.json").read_bytes()
    with pytest.raises(RuntimeError, match="incompatible with the batch-size"):
        td.memmap_refresh_()
    assert (tmp_path / "meta.json").read_bytes() == before
    assert sorted(td.keys()) == ["a", "n"]


def test_refresh_of_a_tensorclass_and_of_one_in_a_container(tmp_path):
    one = Fields(torch.zeros(3, 2), "text", batch_size=[3]).memmap_(tmp_path / "x")
    one.names = ["time"]
    assert one.memmap_refresh_() is one
    assert Fields.load_memmap(tmp_path / "x").names == ["time"]
    td = TensorDict(c=one.clone(), batch_size=[3]).memmap_(tmp_path / "y")
    nested = td["c"]
    td["c"].batch_size = [3, 2]
    assert td.memmap_refresh_()["c"] is nested
    assert nested.is_locked
    assert TensorDict.load_memmap(tmp_path / "y")["c"].batch_size == (3, 2)


def test_refresh_of_a_lazy_stack_keeps_its_names(tmp_path):
    members = [TensorDict(a=torch.zeros(3), batch_size=[3]) for _ in range(2)]
    stack = LazyStackedTensorDict(*members, stack_dim=0).memmap_(tmp_path)
    stack.names = ["member", "time"]
    assert stack.memmap_refresh_() is stack
    assert TensorDict.load_memmap(tmp_path).names == ["member", "time"]


# Adding at once ------------------------------------------------------------------------


def test_what_another_process_adds_meanwhile_is_kept(tmp_path):
    td = make().memmap_(tmp_path)
    added = threading.Thread(target=td.make_memmap, args=("mine", (3,)))
    with held(tmp_path):
        added.start()
        # Whoever reads the metadata without waiting has done so by now, and writes it
        # again without what comes next.
        added.join(timeout=0.2)
        assert added.is_alive()
        known = metadata(tmp_path)
        other = {"device": "cpu", "shape": [3, 0], "dtype": "torch.int8"}
        (tmp_path / "meta.json").write_text(json.dumps({**known, "other": other}))
    added.join()
    assert {"mine", "other", "a", "n"} <= set(TensorDict.load_memmap(tmp_path).keys())


def test_no_entry_of_many_processes_is_lost(tmp_path):
    td = make().memmap_(tmp_path)
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            try:
                for i in range(10):
                    td.make_memmap(f"{number}-{i}", (3,)).fill_(number)
                    td.make_memmap(("both", f"{number}-{i}"), (3,))
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    loaded = TensorDict.load_memmap(tmp_path)
    names = {f"{number}-{i}" for number in range(4) for i in range(10)}
    assert set(loaded.keys()) == {"a", "n", "both", *names}
    assert set(loaded["both"].keys()) == names
    assert all((loaded[name] == int(name[0])).all() for name in names)


def test_a_process_that_was_killed_holds_nothing(tmp_path):
    td = make().memmap_(tmp_path)
    code = (
        "import fcntl, os, sys\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    td.make_memmap("z", (3,))
    assert "z" in metadata(tmp_path)


def test_who_waits_can_be_interrupted(tmp_path):
    td = make().memmap_(tmp_path)

    def give_up(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, give_up)
    try:
        with held(tmp_path), pytest.raises(KeyboardInterrupt):
            # Again and again, should the first come just before the wait.
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            td.make_memmap("z", (3,))
    finally:
        signal.signal(signal.SIGALRM, old)
    assert "z" not in metadata(tmp_path)
    assert "z" not in td.keys()
    td.make_memmap("z", (3,))


def test_an_entry_of_the_same_kind_is_shared(tmp_path):
    td, other = two_over(tmp_path)
    td.make_memmap("z", (3,)).fill_(1)
    assert other.make_memmap("z", (3,)).tolist() == [1, 1, 1]
    other["z"].fill_(2)
    assert td["z"].tolist() == [2, 2, 2]
    td.make_memmap_from_tensor("y", torch.ones(3))
    other.make_memmap_from_tensor("y", torch.full((3,), 5.0))
    assert td["y"].tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("z", ("z", "y")),
        (("z", "y"), "z"),
        pytest.param("z", "z", id="shape"),
    ],
)
def test_an_entry_of_another_kind_is_refused(first, second, tmp_path):
    td, other = two_over(tmp_path)
    td.make_memmap(first, (3,)).fill_(1)
    before = (tmp_path / "meta.json").read_bytes()
    with pytest.raises(RuntimeError, match="already exists within the directory"):
        other.make_memmap(second, (3, 2))
    assert (tmp_path / "meta.json").read_bytes() == before
    assert "z" not in other.keys()
    assert td[first].tolist() == [1, 1, 1]
    assert other.memmap_refresh_()[first].tolist() == [1, 1, 1]


def test_nested_entries_of_two_are_all_there(tmp_path):
    td, other = two_over(tmp_path)
    td.make_memmap(("q", "z"), (3,))
    other.make_memmap(("q", "y"), (3,))
    assert sorted(other["q"].keys()) == ["y", "z"]
    assert sorted(td.memmap_refresh_()["q"].keys()) == ["y", "z"]


def test_a_mapped_leaf_without_elements_stays_one_that_knows_its_file(tmp_path):
    td = TensorDict(a=torch.zeros(0, 2), n={"b": torch.ones(0)}, batch_size=[0])
    saved = td.memmap(tmp_path / "save")
    for reload in (
        saved.memmap_refresh_,
        lambda: saved.load_memmap_(tmp_path / "save"),
    ):
        reload()
        assert isinstance(saved["a"], MemoryMappedTensor)
        assert isinstance(saved["n", "b"], MemoryMappedTensor)


def test_a_nested_entry_of_memory_without_a_name():
    td = TensorDict({"a": torch.zeros(3)}, [3]).memmap_()
    td.make_memmap(("n", "b"), torch.Size([3]), dtype=torch.float32).fill_(2)
    assert td["n"].is_memmap()
    assert td["n", "b"].tolist() == [2.0] * 3


# Containers of other classes ----------------------------------------------------------

ADD = {
    "make_memmap": lambda td, key: td.make_memmap(key, (*td.batch_size, 2)),
    "make_memmap_from_tensor": lambda td, key: td.make_memmap_from_tensor(
        key, torch.ones(*td.batch_size, 2)
    ),
    "make_memmap_from_storage": lambda td, key: td.make_memmap_from_storage(
        key, MemoryMappedTensor.ones(*td.batch_size, 2).untyped_storage(), (3, 2)
    ),
}


def names_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("method", ["make_memmap", "make_memmap_from_tensor"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_field_of_a_tensorclass_is_added(is_nested, method, tmp_path):
    fields = Fields(a=torch.ones(3), text="x", batch_size=[3])
    td = TensorDict({"f": fields}, [3]) if is_nested else fields
    td = td.memmap(tmp_path)
    key = ("f", "unset") if is_nested else "unset"
    added = ADD[method](td, key)
    assert added.shape == (3, 2)
    assert td.is_locked
    loaded = type(td).load_memmap(tmp_path)
    inner = loaded["f"] if is_nested else loaded
    added.fill_(5)
    assert (td["f"] if is_nested else td).unset.eq(5).all()
    assert inner.unset.eq(5).all()
    assert inner.text == "x"


@pytest.mark.parametrize("method", ADD)
def test_a_key_that_is_no_field_is_refused(method, tmp_path):
    td = Fields(a=torch.ones(3), text="x", batch_size=[3]).memmap(tmp_path)
    before = names_of(tmp_path)
    for key in ("other", ("other", "x")):
        with pytest.raises(AttributeError, match="no such field"):
            ADD[method](td, key)
    assert names_of(tmp_path) == before


@pytest.mark.parametrize("method", ADD)
@pytest.mark.parametrize(
    "make_it",
    [
        lambda: lazy_stack([TensorDict(a=torch.ones(2)) for _ in range(3)]),
        lambda: NonTensorStack("x", "y", "z"),
        lambda: NonTensorData("x", batch_size=[3]),
        lambda: TensorDict({"a": torch.ones(3)}, [3])._get_sub_tensordict(slice(0, 3)),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_what_takes_no_entry_says_so(is_nested, make_it, method, tmp_path):
    td = make_it()
    name = type(td).__name__
    td = (TensorDict({"x": td}, [3]) if is_nested else td).memmap(tmp_path)
    before = names_of(tmp_path)
    with pytest.raises(RuntimeError, match=f"Cannot call `{method}` on a {name}"):
        ADD[method](td, ("x", "new") if is_nested else "new")
    assert names_of(tmp_path) == before


def test_a_key_through_a_tensor_is_refused(tmp_path):
    td = make().memmap(tmp_path)
    before = names_of(tmp_path)
    with pytest.raises(AttributeError, match="the entry 'a' is a tensor"):
        td.make_memmap(("a", "x"), (3,))
    assert names_of(tmp_path) == before


@pytest.mark.parametrize("is_nested", [False, True])
def test_parameters_do_not_become_mapped_themselves(is_nested, tmp_path):
    params = TensorDictParams(TensorDict(w=torch.ones(3)))
    td = TensorDict(p=params, z=torch.ones(1)) if is_nested else params
    with pytest.raises(RuntimeError, match="Cannot build a memmap TensorDict in-place"):
        td.memmap_(tmp_path / "x")
    assert not (tmp_path / "x").exists()
    assert not td.is_memmap()


@pytest.mark.parametrize(
    "grow",
    [
        lambda td, path: td.make_memmap("new", (3,), dtype=torch.float32),
        lambda td, path: td.make_memmap_from_tensor("new", torch.ones(3)),
        lambda td, path: td.memmap_refresh_(),
    ],
    ids=["make_memmap", "make_memmap_from_tensor", "memmap_refresh_"],
)
def test_a_save_that_grows_is_not_exchanged(grow, tmp_path):
    path = tmp_path / "x"
    td = TensorDict(a=torch.arange(3)).memmap(path)
    reader = TensorDict.load_memmap(path)
    before = path.stat().st_ino, (path / "a.memmap").stat().st_ino
    grow(td, path)
    assert (path.stat().st_ino, (path / "a.memmap").stat().st_ino) == before
    td["a"].fill_(7)
    assert (reader["a"] == 7).all()


def test_an_archive_whose_sums_are_taken_anew_is_not_exchanged(tmp_path):
    path = tmp_path / "x.tdz"
    TensorDict(a=torch.arange(3)).memmap(path)
    before = path.stat().st_ino
    td = TensorDict.load_memmap(path, mode="r+")
    td["a"].fill_(7)
    refresh_archive_checksums(path)
    assert path.stat().st_ino == before
    assert (TensorDict.load_memmap(path)["a"] == 7).all()


SIZES = torch.tensor([[1, 2], [3, 2], [0, 2]])


def ragged() -> torch.Tensor:
    """A strided nested tensor with the sizes ``SIZES``."""
    parts = [
        torch.full(tuple(sizes), float(n)) for n, sizes in enumerate(SIZES.tolist())
    ]
    return torch.nested.nested_tensor(parts, layout=torch.strided)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("key", ["x", ("n", "x")])
@pytest.mark.parametrize("way", ["sizes", "values", "no values"])
def test_a_nested_tensor_is_added_in_place(way, key, tmp_path):
    td = TensorDict(a=torch.zeros(3), batch_size=[3]).memmap(tmp_path)
    if way == "sizes":
        td.make_memmap(key, SIZES)
    else:
        td.make_memmap_from_tensor(key, ragged(), copy_data=way == "values")
    expected = ragged().unbind() if way == "values" else [part * 0 for part in ragged()]
    for found in (td, TensorDict.load_memmap(tmp_path), td.memmap_refresh_()):
        for part, wanted in zip(found[key].unbind(), expected, strict=True):
            torch.testing.assert_close(part, wanted, rtol=0, atol=0)
    seal(tmp_path)
    TensorDict.load_memmap(tmp_path, verify=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_and_another_entry_do_not_share_a_file(tmp_path):
    td = TensorDict({"x.shape": torch.ones(3)}, [3]).memmap(tmp_path)
    td.make_memmap("y", SIZES)
    before = (tmp_path / "meta.json").read_bytes()
    with pytest.raises(RuntimeError, match=r"'x\.shape'"):
        td.make_memmap("x", SIZES)
    with pytest.raises(RuntimeError, match=r"'y\.shape'"):
        td.make_memmap("y.shape", (3,))
    assert (tmp_path / "meta.json").read_bytes() == before
    loaded = TensorDict.load_memmap(tmp_path)
    assert loaded["x.shape"].tolist() == [1, 1, 1]
    assert loaded["y"]._nested_tensor_size().tolist() == SIZES.tolist()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_that_another_container_added_is_named(tmp_path):
    td, other = two_over(tmp_path)
    other.make_memmap("x", SIZES)
    with pytest.raises(RuntimeError, match="a nested tensor of 3 components"):
        td.make_memmap("x", SIZES)
    assert td.memmap_refresh_()["x"]._nested_tensor_size().tolist() == SIZES.tolist()


def test_a_storage_without_a_file_loads_nothing_that_an_earlier_save_left(tmp_path):
    TensorDict(a=torch.zeros(3), batch_size=[3]).memmap(tmp_path / "s")
    td = TensorDict(batch_size=[3]).memmap_(tmp_path / "s")
    storage = torch.ones(3).untyped_storage()
    with pytest.warns(FutureWarning, match="without a file"):
        td.make_memmap_from_storage("a", storage, (3,), dtype=torch.float32)
    assert td["a"].tolist() == [1, 1, 1]
    assert "a" not in TensorDict.load_memmap(tmp_path / "s")
