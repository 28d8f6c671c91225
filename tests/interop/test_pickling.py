"""Pickles: ours, those of release 0.15.3, and what they name."""

from __future__ import annotations

import copy
import io
import pickle
import pickletools
import weakref
from pathlib import Path

import pytest
import torch

from separate_process import SERVER
from tensordict import TensorDict
from tensordict.nn import TensorDictParams
from tensordict.utils import _LockedSchema, _StringOnlyDict

RECORDED = Path(__file__).parents[1] / "compat" / "pickles_0_15_3"


class Sub(TensorDict):
    """A subclass with an attribute of its own."""


@pytest.fixture
def td():
    return TensorDict(
        {"a": torch.arange(6.0).view(3, 2), "n": {"b": torch.ones(3), "e": {}}},
        [3],
        names=["x"],
    )


def named(data: bytes) -> set[str]:
    """Every global that a pickle names."""
    found, strings = set(), []
    for operation, argument, _ in pickletools.genops(data):
        if operation.name == "GLOBAL":
            found.add(argument.replace(" ", "."))
        elif operation.name == "STACK_GLOBAL":
            found.add(".".join(strings[-2:]))
        elif isinstance(argument, str):
            strings.append(argument)
    return {name for name in found if name.startswith("tensordict")}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_round_trip(td, protocol):
    other = pickle.loads(pickle.dumps(td, protocol))
    assert type(other) is TensorDict
    assert other.names == ["x"]
    assert (other == td).all()
    assert list(other.keys(include_nested=True)) == list(td.keys(include_nested=True))


def test_pickles_name_what_the_release_has(td):
    assert named(pickle.dumps(td, 2)) == {
        "tensordict._reductions._make_td",
        "tensordict._td.TensorDict",
    }


def test_a_lock_is_taken_again(td):
    other = pickle.loads(pickle.dumps(td.lock_()))
    assert other.is_locked
    with pytest.raises(RuntimeError, match="part of a locked graph"):
        other["n"].unlock_()
    other.unlock_()
    assert not other["n"].is_locked


def test_what_belongs_to_the_process_stays_here(td):
    view = td.unsqueeze(0)
    assert view._last_op is not None
    state = pickle.loads(pickle.dumps(view)).__dict__
    assert set(state) == {"_tensordict", "_batch_size", "_device", "_td_dim_names"}


def test_subclass_keeps_its_attributes(td):
    sub = Sub(td)
    sub.comment = "mine"
    other = pickle.loads(pickle.dumps(sub))
    assert type(other) is Sub
    assert other.comment == "mine"


def test_torch_save_and_safe_load(td):
    for source in (td, td.clone().lock_()):
        file = io.BytesIO()
        torch.save(source, file)
        file.seek(0)
        other = torch.load(file, weights_only=True)
        assert (other == td).all()
        assert other.is_locked == source.is_locked


def test_copies(td):
    td.lock_()
    shallow, deep = copy.copy(td), copy.deepcopy(td)
    assert shallow["a"] is td["a"]
    assert deep["a"] is not td["a"]
    assert not shallow.is_locked
    assert not deep.is_locked


def test_weak_references(td):
    reference = weakref.ref(td)
    assert reference() is td


def _double(queue, taken, td):
    queue.put(td.apply(lambda x: x * 2))
    # The one who made the shared memory keeps it until it has been mapped.
    taken.wait(60)


def test_through_a_queue_of_processes(td):
    queue, taken = SERVER.Queue(), SERVER.Event()
    worker = SERVER.Process(target=_double, args=(queue, taken, td))
    worker.start()
    other = queue.get(timeout=60)
    taken.set()
    assert torch.equal(other["a"], td["a"] * 2)
    assert other.names == ["x"]
    del other
    worker.join(timeout=60)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "name", ["plain", "locked", "device", "empty", "subclassed_leaf", "params"]
)
def test_pickles_of_the_release_load(name, protocol):
    other = pickle.loads((RECORDED / f"{name}.{protocol}.pickle").read_bytes())
    if name == "params":
        assert type(other) is TensorDictParams
        assert [key for key, _ in other.named_parameters()] == ["a", "n.b"]
        assert other.is_locked
        other.unlock_()
        return
    assert type(other) is TensorDict
    assert other.is_locked == (name == "locked")
    if name == "empty":
        assert other.batch_size == torch.Size([2])
        return
    assert other["a"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert other.names == ["x"]
    assert other.device == (torch.device("cpu") if name == "device" else None)
    assert "_cache" not in vars(other)


def test_classes_that_other_releases_name():
    assert _StringOnlyDict is dict
    assert _LockedSchema(("a",)).keys == ("a",)
