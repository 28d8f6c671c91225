"""A save that goes on after the call, in every layout."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tensordict
from tensordict import TensorDict, TensorDictParams, lazy_stack, tensorclass
from tensordict.storage import future as futures
from tensordict.storage.layouts import directory as directory_layout
from tensordict.utils import TensorDictFuture

LATER = {"num_threads": 2, "return_early": True}

LAYOUTS = {
    "tree": lambda td, path: td.memmap(path / "x", **LATER),
    "archive": lambda td, path: td.memmap(path / "x.tdz", **LATER),
    "compressed": lambda td, path: td.memmap(
        path / "x.tdz", compression="deflate", **LATER
    ),
    "safetensors": lambda td, path: td.save(path / "x.safetensors", **LATER),
    "consolidated": lambda td, path: td.consolidate(path / "x", **LATER),
}

layouts = pytest.mark.parametrize("layout", LAYOUTS)


@tensorclass
class Fields:
    a: torch.Tensor
    text: str


def make():
    return TensorDict(
        {"a": torch.arange(6.0), "n": {"b": torch.ones(5)}, "text": "hello"}
    )


def load(path):
    (file,) = path.iterdir()
    return tensordict.load(file)


class Held(ThreadPoolExecutor):
    """Begins when the test says so."""

    go = threading.Event()

    def submit(self, work, /, *args, **kwargs):
        def wait_and_work():
            assert self.go.wait(20)
            return work(*args, **kwargs)

        return super().submit(wait_and_work)


@pytest.fixture
def held(monkeypatch):
    monkeypatch.setattr(Held, "go", threading.Event())
    monkeypatch.setattr(futures, "ThreadPoolExecutor", Held)
    return Held.go


@layouts
def test_result_is_the_save(layout, tmp_path):
    td = make()
    future = LAYOUTS[layout](td, tmp_path)
    assert isinstance(future, TensorDictFuture)
    saved = future.result()
    assert future.done()
    assert not future.cancel()
    done, total = future.progress()
    assert done == total > 0
    for found in (saved, load(tmp_path)):
        assert (found == td).all()
        assert found["text"] == "hello"


@layouts
def test_entries_are_those_of_the_call(layout, held, tmp_path):
    td = make()
    expected = td.clone()
    future = LAYOUTS[layout](td, tmp_path)
    assert not future.done()
    td["c"] = torch.zeros(2)
    td["n", "d"] = torch.zeros(2)
    td["n", "b"] = torch.zeros(5)
    td["text"] = "bye"
    del td["a"]
    held.set()
    for found in (future.result(), load(tmp_path)):
        assert list(found.keys(True, True)) == list(expected.keys(True, True))
        assert (found == expected).all()
        assert found["text"] == "hello"
    assert sorted(td.keys()) == ["c", "n", "text"]


KINDS = {
    "stack": lambda: lazy_stack([make(), make()]),
    "tensorclass": lambda: Fields(a=torch.ones(3), text="hello"),
    "parameters": lambda: TensorDictParams(TensorDict(a=torch.ones(3)), lock=False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_entries_of_other_containers_are_those_of_the_call(kind, held, tmp_path):
    td = KINDS[kind]()
    now = td.memmap(tmp_path / "now")
    future = td.memmap(tmp_path / "later", **LATER)
    td.set("a", torch.full_like(td.get("a"), 7))
    held.set()
    later = future.result()
    assert type(later) is type(now)
    assert (later == now).all()
    assert (tensordict.load(tmp_path / "later") == now).all()
    assert (td.get("a") == 7).all()


@layouts
def test_values_may_change_once_it_is_done(layout, tmp_path):
    td = make()
    expected = td.clone()
    saved = LAYOUTS[layout](td, tmp_path).result()
    td["a"].fill_(-1)
    assert (saved == expected).all()
    assert (load(tmp_path) == expected).all()


@layouts
def test_a_snapshot_is_free_at_once(layout, held, tmp_path):
    td = make()
    expected = td.clone()
    future = LAYOUTS[layout](td.clone(), tmp_path)
    td["a"].fill_(-1)
    held.set()
    future.result()
    assert (load(tmp_path) == expected).all()


@layouts
def test_a_cancelled_save_leaves_nothing(layout, held, tmp_path):
    td = TensorDict({str(number): torch.ones(1 << 20) for number in range(8)})
    future = LAYOUTS[layout](td, tmp_path)
    assert future.cancel()
    held.set()
    with pytest.raises(RuntimeError, match="cancelled"):
        future.result()
    assert list(tmp_path.iterdir()) == []


@layouts
def test_a_cancelled_save_leaves_the_old_one(layout, held, tmp_path):
    held.set()
    LAYOUTS[layout](make(), tmp_path).result()
    held.clear()
    future = LAYOUTS[layout](TensorDict(a=torch.zeros(1 << 22)), tmp_path)
    future.cancel()
    held.set()
    with pytest.raises(RuntimeError, match="cancelled"):
        future.result()
    assert (load(tmp_path) == make()).all()


@layouts
def test_an_error_is_that_of_the_result(layout, held, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    future = LAYOUTS[layout](make(), folder)
    folder.rmdir()
    folder.touch()
    held.set()
    with pytest.raises(OSError, match="folder"):
        future.result()


@pytest.mark.parametrize("change", ["add", "replace", "remove"])
def test_a_container_that_changes_while_it_becomes_the_save(
    change, tmp_path, monkeypatch
):
    td = make()

    class Changing:
        """A plan during whose writing the container changes."""

        def __init__(self, *arguments):
            self.plan = real(*arguments)

        def __getattr__(self, name):
            return getattr(self.plan, name)

        def write(self, *arguments):
            if change == "add":
                td["c"] = torch.ones(6)
            elif change == "replace":
                td["a"] = torch.zeros(6)
            else:
                del td["a"]
            return self.plan.write(*arguments)

    real = directory_layout._rust.SavePlan
    monkeypatch.setattr(directory_layout._rust, "SavePlan", Changing)
    with pytest.raises(RuntimeError, match="while it was saved"):
        td.memmap_(tmp_path / "x")
    assert not td.is_memmap()
    assert (tensordict.load(tmp_path / "x") == make()).all()


def test_a_future_returns_the_collection_it_was_given_or_the_last_result():
    with ThreadPoolExecutor(1) as pool:
        done = [pool.submit(lambda n=n: n) for n in range(2)]
        td = make()
        assert TensorDictFuture(done, td).result() is td
        assert TensorDictFuture(done).result() == 1
        assert TensorDictFuture([]).result() is None
