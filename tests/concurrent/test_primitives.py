"""The native primitives let go of everything before Python runs, and of all they took."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref

import pytest
import torch

from tensordict import TensorDict, _rust

SIZE = torch.Size([2])


def flat(num_entries: int = 20) -> TensorDict:
    return TensorDict({f"k{at}": torch.ones(2, 3) for at in range(num_entries)}, [2])


class Meddler(torch.Tensor):
    """A leaf that changes its container whenever torch does something with it."""

    td: TensorDict | None = None

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if cls.td is not None:
            entries = cls.td._tensordict
            if "k5" in entries:
                del entries["k5"], entries["k0"]
            for at in range(50):
                entries[f"new{at}"] = torch.ones(2, 3)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.fixture
def meddled():
    td = flat()
    td._tensordict["k3"] = torch.ones(2, 3).as_subclass(Meddler)
    td._tensordict["n"] = flat()
    Meddler.td = td
    yield td
    Meddler.td = None


WALKS = {
    "map_leaves": lambda td: _rust.map_leaves(td, "clone"),
    "map_leaves/shape": lambda td: _rust.map_leaves(td, "view", ((2,),), SIZE, True, 1),
    "split_leaves": lambda td: _rust.split_leaves(td, "unbind", (0,), [SIZE[1:]] * 2)[
        0
    ],
    "index": lambda td: _rust.index(td, 0),
    "stack": lambda td: _rust.stack([td, td], 0),
    "cat": lambda td: _rust.cat([td, td], 0),
    "apply_nest": lambda td: _rust.apply_nest(td, torch.clone),
}


@pytest.mark.parametrize("walk", WALKS)
def test_a_leaf_that_changes_its_container_does_not_change_the_walk(meddled, walk):
    keys = list(meddled.keys())
    result = WALKS[walk](meddled)
    assert list(result.keys()) == keys
    assert "new0" in meddled._tensordict


@pytest.mark.parametrize("times", range(3))
def test_an_update_whose_values_change_the_target_does_not_crash(meddled, times):
    source = {f"k{at}": torch.zeros(2, 3) for at in range(20)}
    source["k3"] = torch.zeros(2, 3).as_subclass(Meddler)
    for _ in range(times + 1):
        _rust.update(meddled, source, False, True)
    assert (meddled["k19"] == 0).all()


def test_is_leaf_may_change_what_is_walked():
    td = TensorDict(
        {"a": torch.ones(2), "n": {"b": torch.ones(2)}, "z": torch.ones(2)}, [2]
    )

    def is_leaf(cls):
        td._tensordict.clear()
        return True

    assert _rust.walk(td, 0, True, True, is_leaf) == ["a", ("n", "b"), "n", "z"]
    assert not td._tensordict


def test_the_function_of_apply_may_change_what_is_walked():
    td = flat()
    keys = list(td.keys())

    def function(leaf):
        td._tensordict.clear()
        return leaf

    assert list(_rust.apply_nest(td, function).keys()) == keys


def test_the_default_of_a_dict_may_be_anything_with_equality():
    class Key(str):
        __slots__ = ()

        def __eq__(self, other):
            td._tensordict.clear()
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    td = flat()
    key = Key("k3")
    _rust.get(td, key, None)
    _rust.contains(td, key)
    _rust.select(td, (key,), False, False)


@pytest.mark.parametrize(
    "walk",
    [
        _rust.leaves,
        _rust.clone_structure,
        _rust.containers,
        _rust.lock_tree,
        lambda td: _rust.map_leaves(td, "clone"),
        lambda td: _rust.walk(td, 0, True, False),
        lambda td: _rust.index(td, 0),
        lambda td: _rust.stack([td, td], 0),
        lambda td: _rust.flatten_keys(td, ".", False),
        lambda td: _rust.rebuild(td, itertools.repeat(torch.ones(2, 3))),
        lambda td: _rust.align(td, td),
        lambda td: _rust.apply_nest(td, torch.clone),
        lambda td: _rust.update(td, td),
    ],
)
def test_a_container_that_holds_itself_is_a_recursion_error(walk):
    td = flat(1)
    td._tensordict["self"] = td
    with pytest.raises(RecursionError):
        walk(td)
    del td._tensordict["self"]


def test_a_key_nested_too_deep_is_a_recursion_error():
    key = "a"
    for _ in range(100_000):
        key = (key,)
    with pytest.raises(RecursionError):
        _rust.unravel_key(key)
    while isinstance(key, tuple):
        (key,) = key


CALLS = {
    **WALKS,
    "leaves": _rust.leaves,
    "rebuild": lambda td: _rust.rebuild(td, _rust.leaves(td)),
    "rebuild_as": lambda td: _rust.rebuild_as(td, _rust.leaves(td)),
    "clone_structure": _rust.clone_structure,
    "lock": lambda td: (_rust.lock_tree(td), _rust.unlock_tree(td)),
    "walk": lambda td: _rust.walk(td, 2, True, False),
    "get": lambda td: (_rust.get(td, ("n", "k1")), _rust.get(td, "x", None)),
    "set_entry": lambda td: _rust.set_entry(td, ("n", "k1"), td["k1"]),
    "select": lambda td: _rust.select(td, ("k1", ("n", "k2")), False, True),
    "exclude": lambda td: _rust.exclude(td, ("k1", ("n", "k2")), False),
    "flatten_keys": lambda td: _rust.unflatten_keys(
        _rust.flatten_keys(td, ".", False), ".", False
    ),
    "update": lambda td: _rust.update(td, _rust.clone_structure(td)),
    "copy_into": lambda td: _rust.copy_into(td, td),
    "set_index": lambda td: _rust.set_index(td, 0, _rust.index(td, 1)),
    "init": lambda td: TensorDict(dict(td._tensordict), [2], device="cpu"),
    "mask": lambda td: _rust.index(td, torch.tensor([True, False])),
    "write_tree": lambda td: _rust.write_tree(td, _rust.map_leaves(td, "clone"), True),
}
FAILURES = {
    "get": lambda td: _rust.get(td, "missing"),
    "set_entry": lambda td: _rust.set_entry(td, "k1", torch.ones(7)),
    "index": lambda td: _rust.index(td, 9),
    "map_leaves": lambda td: _rust.map_leaves(td, "no_such_method"),
    "update": lambda td: _rust.update(td, {"k1": torch.ones(7)}),
    "rebuild": lambda td: _rust.rebuild(td, []),
    "select": lambda td: _rust.select(td, ("missing",), False, True),
    "stack": lambda td: _rust.stack([td, flat(1)], 0),
}


def _swallowed(call):
    def run(td):
        with pytest.raises(Exception):  # noqa: B017
            call(td)

    return run


@pytest.fixture
def old_objects_aside():
    """Let collections pass over what the tests before have left: that takes seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize(
    "call",
    [*CALLS.values(), *map(_swallowed, FAILURES.values())],
    ids=[*CALLS, *(f"{name} fails" for name in FAILURES)],
)
def test_references_are_given_back(call, old_objects_aside):
    td = flat()
    td["n"] = flat()
    watched = [
        td,
        td["k1"],
        td["n"],
        td["n", "k1"],
        td._tensordict,
        td.batch_size,
        None,
    ]
    for _ in range(3):
        call(td)
    gc.collect()
    before = [sys.getrefcount(item) for item in watched]
    num_objects = len(gc.get_objects())
    num_calls = 100
    for _ in range(num_calls):
        call(td)
    gc.collect()
    after = [sys.getrefcount(item) for item in watched]
    # Caches may settle, and None is counted by every thread of the interpreter:
    # what is lost is lost in each call.
    *lost, lost_nones = (abs(b - a) for a, b in zip(before, after, strict=True))
    assert max(lost) <= 5, (before, after)
    assert lost_nones < num_calls // 2, (before[-1], after[-1])
    assert len(gc.get_objects()) - num_objects < 15


def test_a_cycle_through_a_container_is_collected():
    td = flat()
    td.payload = [td]
    reference = weakref.ref(td)
    del td
    gc.collect()
    assert reference() is None


def _run_threads(work, num_threads: int = 8) -> None:
    failures = []
    barrier = threading.Barrier(num_threads)

    def run(number):
        barrier.wait()
        try:
            work(number)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures


def test_threads_work_on_containers_of_their_own():
    def work(number):
        td = flat()
        td["n"] = flat()
        for _ in range(20):
            for call in CALLS.values():
                call(td)

    _run_threads(work)


def test_threads_read_a_container_that_one_changes():
    td = flat()
    td["n"] = flat()
    done = threading.Event()

    def work(number):
        if number == 0:
            for at in range(300):
                _rust.set_entry(td, f"new{at % 30}", torch.ones(2, 3))
                td._tensordict.pop(f"new{(at + 7) % 30}", None)
            done.set()
            return
        while not done.is_set():
            leaves = _rust.leaves(td)
            assert len(leaves) >= 40
            assert len(_rust.walk(td, 0, True, True)) >= 40
            _rust.clone_structure(td)
            _rust.map_leaves(td, "detach")
            assert _rust.get(td, ("n", "k3")).shape == (2, 3)

    _run_threads(work)
