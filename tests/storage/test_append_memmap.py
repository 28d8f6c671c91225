"""``append_memmap``: rows at the end of a save, all of them or none."""

import errno
import json
import os

import pytest
import torch

from separate_process import run_separately
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    append_memmap,
    lazy_stack,
    tensorclass,
)
from tensordict.storage.growing import file as files
from tensordict.storage.growing import publish


@tensorclass
class Sample:
    a: torch.Tensor
    s: str


def nested(count: int = 3) -> TensorDict:
    return TensorDict(
        {
            "a": torch.arange(2.0 * count).view(count, 2),
            "n": {"b": torch.arange(count)},
        },
        [count],
    )


def test_rows_are_appended_at_all_levels(tmp_path):
    nested().save(tmp_path / "x")
    before = TensorDict.load_memmap(tmp_path / "x")
    assert append_memmap(tmp_path / "x", nested(2)) is None
    loaded = TensorDict.load_memmap(tmp_path / "x")
    assert loaded.batch_size == loaded["n"].batch_size == (5,)
    assert loaded["n", "b"].tolist() == [0, 1, 2, 0, 1]
    assert (before == nested()).all()
    assert os.listdir(tmp_path) == ["x"]


def test_a_collection_over_the_files_is_opened_again(tmp_path):
    td = nested().memmap_(tmp_path / "x")
    append_memmap(tmp_path / "x", nested(2))
    assert td.batch_size == (3,)
    td.memmap_refresh_()
    assert td.batch_size == td["n"].batch_size == (5,)
    assert td["a"].shape == (5, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda td: td.select("a"), "with the keys ['a'] to the saved tensordict"),
        (lambda td: td.set("z", torch.zeros(3)), "with the keys ['a', 'n', 'z']"),
        (lambda td: td.to(torch.float64), "of dtype torch.float64 and shape (3, 2)"),
        (lambda td: td[0], "must both have"),
        (lambda td: td.set("a", NonTensorStack("x", "y", "z")), "non-tensor data"),
        (lambda td: td.set(("n", "b"), nested()), "which is a tensor"),
        (lambda td: td.set("n", torch.zeros(3)), "which is a collection"),
        (lambda td: td.exclude(("n", "b")), "to the entry 'n'"),
        (lambda td: Sample(a=torch.zeros(3), s="", batch_size=[3]), "Cannot append a"),
    ],
)
def test_rows_that_do_not_fit_change_nothing(change, message, tmp_path):
    nested().save(tmp_path)
    with pytest.raises(ValueError, match=".") as raised:
        append_memmap(tmp_path, change(nested()))
    assert message in str(raised.value)
    assert (TensorDict.load_memmap(tmp_path) == nested()).all()
    assert not [name for name in os.listdir(tmp_path) if "lock" in name]


def test_values_must_be_those_that_were_saved(tmp_path):
    def with_value(value):
        return TensorDict(a=torch.zeros(2), v=value, batch_size=[2])

    with_value(NonTensorData("x", batch_size=[2])).save(tmp_path / "one")
    append_memmap(tmp_path / "one", with_value(NonTensorData("x", batch_size=[2])))
    assert TensorDict.load_memmap(tmp_path / "one")["v"] == "x"
    with pytest.raises(ValueError, match="share the saved non-tensor value 'x'"):
        append_memmap(tmp_path / "one", with_value(NonTensorData("y", batch_size=[2])))
    with_value(NonTensorStack("x", "y")).save(tmp_path / "stack")
    with pytest.raises(ValueError, match="cannot grow"):
        append_memmap(tmp_path / "stack", with_value(NonTensorStack("x", "y")))


def test_a_pickle_is_not_run_to_compare_values(tmp_path):
    value = NonTensorData({1, 2}, batch_size=[2])
    TensorDict(a=torch.zeros(2), v=value, batch_size=[2]).save(tmp_path)
    rows = TensorDict(a=torch.zeros(2), v=value, batch_size=[2])
    with pytest.raises(RuntimeError, match="pickle"):
        append_memmap(tmp_path, rows, allow_pickle=False)
    append_memmap(tmp_path, rows, allow_pickle=True)
    assert TensorDict.load_memmap(tmp_path, allow_pickle=True).batch_size == (4,)


def test_a_tensorclass_and_a_lazy_stack(tmp_path):
    data = Sample(a=torch.zeros(2), s="x", batch_size=[2])
    data.save(tmp_path / "class")
    append_memmap(tmp_path / "class", data)
    assert Sample.load_memmap(tmp_path / "class").a.tolist() == [0.0] * 4
    TensorDict(a=torch.zeros(2, 3), batch_size=[2]).save(tmp_path / "dense")
    rows = lazy_stack([TensorDict(a=torch.ones(3)), TensorDict(a=torch.ones(3))])
    append_memmap(tmp_path / "dense", rows)
    assert TensorDict.load_memmap(tmp_path / "dense").batch_size == (4,)
    rows.save(tmp_path / "stack")
    with pytest.raises(ValueError, match="LazyStackedTensorDict"):
        append_memmap(tmp_path / "stack", rows)


def test_columns_grow_too(tmp_path):
    rows = lazy_stack([TensorDict(a=torch.ones(n), t="x" * n) for n in (1, 2)])
    rows.memmap(tmp_path, ragged="columns")
    append_memmap(tmp_path, rows)
    loaded = TensorDict.load_memmap(tmp_path)
    assert isinstance(loaded, LazyStackedTensorDict)
    assert [len(row["a"]) for row in loaded] == [1, 2, 1, 2]
    assert [row["t"] for row in loaded] == ["x", "xx", "x", "xx"]


def test_what_is_no_save(tmp_path):
    rows = TensorDict(a=torch.zeros(2), batch_size=[2])
    with pytest.raises(TypeError, match="rows must be a tensordict"):
        append_memmap(tmp_path, {"a": torch.zeros(2)})
    with pytest.raises(FileNotFoundError):
        append_memmap(tmp_path, rows)
    with pytest.raises(ValueError, match=r"is not a directory.*nothing there"):
        append_memmap(tmp_path / "missing", rows)
    rows.save(tmp_path / "x.tdz")
    with pytest.raises(ValueError, match="unpack_memmap"):
        append_memmap(tmp_path / "x.tdz", rows)
    rows.save(tmp_path / "x.safetensors")
    with pytest.raises(
        ValueError, match=r"x.safetensors is not a .* A file cannot grow"
    ):
        append_memmap(tmp_path / "x.safetensors", rows)
    assert not (tmp_path / "missing").exists()


def test_a_file_that_was_cut_is_refused(tmp_path):
    nested().save(tmp_path)
    os.truncate(tmp_path / "a.memmap", 4)
    with pytest.raises(RuntimeError, match="was cut"):
        append_memmap(tmp_path, nested())
    assert os.path.getsize(tmp_path / "a.memmap") == 4


def test_sums_of_the_old_bytes_are_no_damage(tmp_path):
    nested().save(tmp_path)
    append_memmap(tmp_path, nested())
    loaded = TensorDict.load_memmap(tmp_path, verify=True)
    assert loaded.batch_size == (6,)


def test_a_full_disk_leaves_the_save(tmp_path, monkeypatch):
    nested().save(tmp_path)
    real = os.pwrite

    def full(descriptor, data, at):
        if len(data) == 16:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, at)

    monkeypatch.setattr(files.os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        append_memmap(tmp_path, nested(2))
    monkeypatch.undo()
    assert (TensorDict.load_memmap(tmp_path) == nested()).all()
    append_memmap(tmp_path, nested(2))
    assert TensorDict.load_memmap(tmp_path).batch_size == (5,)


def test_without_an_exchange_the_root_is_the_last(tmp_path, monkeypatch):
    nested().save(tmp_path / "x")
    monkeypatch.setattr(publish, "exchange", lambda *_: False)
    append_memmap(tmp_path / "x", nested())
    assert TensorDict.load_memmap(tmp_path / "x").batch_size == (6,)
    assert os.listdir(tmp_path) == ["x"]


def test_metadata_stays_that_of_the_published_format(tmp_path):
    nested().save(tmp_path)
    before = json.loads((tmp_path / "meta.json").read_text())
    append_memmap(tmp_path, nested())
    after = json.loads((tmp_path / "meta.json").read_text())
    before["a"]["shape"][0] = before["shape"][0] = 6
    assert after == before
    assert list(after) == list(before)


KILLED = """
import os, signal, sys, ctypes
import torch
from tensordict import TensorDict, append_memmap
from tensordict.storage.growing import publish

path = sys.argv[1]
torch.set_num_threads(1)

def rows(value):
    full = torch.full((50, 3), value)
    return TensorDict({"a": full, "n": {"b": full[:, 0].clone()}}, [50])

def dying(function, left):
    def wrapper(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return wrapper

names = ("pwrite", "open", "link", "mkdir", "replace", "unlink", "rmdir", "rename")
steps = 0
while True:
    steps += 1
    target = f"{path}/{steps}"
    rows(0).save(target)
    child = os.fork()
    if child == 0:
        left = [steps]
        for name in names:
            setattr(os, name, dying(getattr(os, name), left))
        publish.exchange = dying(publish.exchange, left)
        append_memmap(target, rows(1))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    loaded = TensorDict.load_memmap(target)
    count = loaded.batch_size[0]
    assert count in (50, 100), (steps, count)
    for key in ("a", ("n", "b")):
        values = loaded[key]
        assert len(values) == count, (steps, key)
        assert (values[:50] == 0).all() and (values[50:] == 1).all(), (steps, key)
    append_memmap(target, rows(2))
    again = TensorDict.load_memmap(target)
    assert again.batch_size[0] == count + 50
    assert (again["a"][count:] == 2).all()
    assert not os.path.exists(f"{path}/.{steps}.tdtmp"), steps
    if os.WIFEXITED(status):
        break
print(steps)
"""


@pytest.mark.filterwarnings("ignore:This process")
def test_a_kill_at_any_step_loses_nothing(tmp_path):
    done = run_separately(KILLED, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    # Each of the steps was the last one once.
    assert int(done.stdout) > 15
