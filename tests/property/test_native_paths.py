"""Each primitive does a plain case natively, and as its namesake in Python does.

A native primitive that leaves the plain case to Python too would be right, and slow: so
while it runs, every namesake in Python raises.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch

from tensordict import MemoryMappedTensor, TensorDict, _rust, tensorclass
from tensordict.primitives import STEMS
from tensordict.primitives.protocol import CollectionProtocol

MODULES = [importlib.import_module(f"tensordict.primitives.{stem}") for stem in STEMS]

IN_PYTHON = {
    name: (module, function)
    for module in MODULES
    for name, function in vars(module).items()
    if inspect.isfunction(function)
    and function.__module__ == module.__name__
    and hasattr(_rust, name)
}
"""The primitives that are there on both sides: the module, and the function in Python."""

pytestmark = pytest.mark.skipif(
    not all(_rust.shortcuts().values()),
    reason="without its shortcuts the native code leaves more to Python",
)


@tensorclass
class Point:
    x: torch.Tensor
    name: str = "p"


def tree(start: int = 0) -> TensorDict:
    """A dense collection of batch size [2, 3] with a nested one."""
    # No view: of one the native code asks whether it is part of a graph.
    values = torch.arange(start, start + 6).reshape(2, 3).clone()
    return TensorDict({"a": values, "n": {"c": values + 10}}, [2, 3])


def numbers(start: int = 0) -> TensorDict:
    """The same with floating-point numbers."""
    return tree(start).float()


def members(count: int = 2) -> list[TensorDict]:
    """The members of a lazy stack."""
    return [tree(10 * number) for number in range(count)]


def locked() -> TensorDict:
    return tree().lock_()


def point() -> Any:
    return Point(torch.ones(2), batch_size=[2])


def unset(cls: Any) -> Any:
    """An instance without its state."""
    return cls.__new__(cls)


def a_module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))


def module_and_values() -> tuple[Any, Any]:
    module = a_module()
    return TensorDict.from_module(module).data.clone(), module


def swapped() -> tuple[Any, Any, Any]:
    values, module = module_and_values()
    return _rust.swap_module(values, module, True), module, values


def added(values: list[torch.Tensor], *lists: Any) -> Any:
    """A function of lists of leaves."""
    return torch._foreach_add(values, *lists)


def add_into(values: list[torch.Tensor], *lists: Any) -> None:
    """A function of lists that writes into the leaves."""
    torch._foreach_add_(values, *lists)


def moved(name: str, *args: Any) -> tuple[Any, ...]:
    """The arguments of a primitive that moves batch dims."""
    return (numbers(), *args, (name, args, {}))


SIZE = torch.Size([2, 3])

CASES: dict[str, Any] = {
    # access
    "get": lambda: (tree(), ("n", "c")),
    "contains": lambda: (tree(), ("n", "c")),
    "getitem": lambda: (tree(), ("n", "c")),
    # align
    "rebuild_as": lambda: (tree(), _rust.leaves(tree(5))),
    "align": lambda: (tree(), tree(5)),
    "leaf_batch_dims": lambda: (tree(),),
    "holds_any": lambda: (tree(), [tree()]),
    # apply
    "apply_nest": lambda: (tree(), torch.neg),
    # copy
    "write_tree": lambda: (tree(), tree(5), True),
    "fit_inplace": lambda: (tree(), "a", tree(5)["a"], tree()["a"]),
    "copy_into": lambda: (tree(), tree(5)),
    "fill": lambda: (tree(), 3),
    # dims
    "unsqueeze": lambda: moved("unsqueeze", 0),
    "squeeze": lambda: (numbers()[:1], 0, ("squeeze", (0,), {})),
    "transpose": lambda: moved("transpose", 0, 1),
    "permute": lambda: moved("permute", (1, 0)),
    "movedim": lambda: moved("movedim", 0, 1),
    "flatten": lambda: moved("flatten", 0, 1),
    "at_least": lambda: moved("at_least", 3),
    "reduce_dim": lambda: (numbers(), "sum", 0),
    "extrema": lambda: (numbers(), "max", 0),
    "unbind": lambda: (numbers(), 0),
    # fields
    "get_field": lambda: ("x", point()),
    "set_field": lambda: (point(), "x", torch.zeros(2)),
    "wrap_fields": lambda: (Point, TensorDict({"x": torch.ones(2)}, [2])),
    "fill_fields": lambda: (unset(Point), {"x": torch.ones(2)}, [2], None, None),
    # foreach
    "foreach": lambda: (numbers(), added, (numbers(5),)),
    "foreach_inplace": lambda: (numbers(), add_into, (numbers(5),)),
    "compare": lambda: (numbers(), torch.eq, numbers(), TensorDict),
    # gather
    "gather_into": lambda: (tree(), torch.tensor([1, 0]), tree(5)),
    # index
    "index_plan": lambda: (SIZE, (0, slice(1, None))),
    "index_shape": lambda: (SIZE, (0, slice(1, None))),
    "index": lambda: (tree(), (0, slice(1, None))),
    "set_index": lambda: (tree(), 0, tree(5)[0]),
    "write_fitting": lambda: (tree(), 0, tree(5)[0]),
    "write_members": lambda: (members(), [0, 1], [tree(5)[0], tree(7)[1]]),
    "view_shape": lambda: (SIZE, (-1, 2)),
    # items
    "walk": lambda: (tree(), 2, True, True),
    "containers": lambda: (tree(),),
    # join
    "stack": lambda: (members(), 0),
    "cat": lambda: (members(), 0),
    # key_views
    "string_keys": lambda: ({"a": 1, "b": 2},),
    # keys
    "select": lambda: (tree(), ("a",), False, True),
    "exclude": lambda: (tree(), ("a",), False),
    "flatten_keys": lambda: (tree(), ".", False),
    "unflatten_keys": lambda: (tree().flatten_keys("."), ".", False),
    # lazy
    "member_values": lambda: (members(), ("n", "c")),
    "stacked_values": lambda: (members(), ("n", "c"), 1),
    "common_keys": lambda: (members(),),
    "stacked_members": lambda: (members(), 0, TensorDict),
    "merged_size": lambda: (members(), 0),
    "member_leaves": lambda: (members(), []),
    "rebuilt_members": lambda: (members(1), _rust.leaves(tree(5)), TensorDict),
    "map_members": lambda: (members(), "neg", (), None, True, 0, 1),
    "cloned_members": lambda: (members(),),
    # lock
    "lock_tree": lambda: (tree(),),
    "unlock_tree": lambda: (locked(),),
    "keep_storage": lambda: (locked(), tree()),
    # map_leaves
    "map_leaves": lambda: (tree(), "neg"),
    # modules
    "swap_module": module_and_values,
    "restore_module": swapped,
    # nested_key
    "unravel_key_to_tuple": lambda: (("a", ("b", "c")),),
    "unravel_key": lambda: (("a", ("b", "c")),),
    "unravel_key_list": lambda: ([("a", ("b", "c")), "d"],),
    # set
    "validate": lambda: (tree(), "a", tree(5)["a"]),
    "set_entry": lambda: (tree(), ("n", "new"), torch.ones(2, 3)),
    # split
    "split_leaves": lambda: (tree(), "unbind", (0,), [torch.Size([3])] * 2, None),
    # tree
    "new": lambda: (TensorDict, {"a": torch.ones(2, 3)}, SIZE, None, None),
    "leaves": lambda: (tree(),),
    "is_empty": lambda: (tree(),),
    "is_filled": lambda: (tree(),),
    "on_host": lambda: (_rust.leaves(tree()),),
    "truth": lambda: (tree(1), "all"),
    "rebuild": lambda: (tree(), _rust.leaves(tree(5))),
    "data": lambda: (tree(),),
    "clone_structure": lambda: (tree(),),
    # update
    "init": lambda: (unset(TensorDict), {"a": torch.ones(2)}, [2], None, None, False),
    "update": lambda: (tree(), {"a": tree(5)["a"], "new": tree()}),
    "hang": lambda: (tree(), "new", tree(5)),
}
"""Arguments that the native code handles itself, made anew at each call."""


def told(value: Any) -> Any:
    """Return what can be compared of an argument or a result."""
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.tolist()
    if isinstance(value, torch.nn.Module):
        return type(value), told(dict(value.state_dict()))
    if isinstance(value, CollectionProtocol | Point):
        state = {key: each for key, each in vars(value).items() if key != "_last_op"}
        return type(value), told(state), value.is_locked if state else None
    if isinstance(value, dict):
        return [
            (key, told(each))
            for key, each in value.items()
            if key != "_lock_parents_weakrefs"
        ]
    if type(value).__name__ in ("StringKeys", "_StringKeys"):
        return list(value), "a" in value, len(value), repr(value)
    if isinstance(value, list | tuple):
        return type(value), [told(each) for each in value]
    return value


def refuse(*_args: Any, **_kwargs: Any) -> Any:
    """Take the place of a primitive in Python."""
    raise AssertionError("the native primitive leaves a plain case to Python")


def test_every_primitive_has_a_case() -> None:
    assert set(IN_PYTHON) == set(CASES)


@pytest.fixture
def without_python(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call a native primitive while all primitives in Python raise."""

    def call(name: str, args: tuple[Any, ...]) -> Any:
        with monkeypatch.context() as patch:
            for other, (module, _) in IN_PYTHON.items():
                patch.setattr(module, other, refuse)
            return getattr(_rust, name)(*args)

    return call


@pytest.mark.parametrize("name", CASES)
def test_a_plain_case_is_done_natively(name: str, without_python: Any) -> None:
    expected_args, args = CASES[name](), CASES[name]()
    expected = IN_PYTHON[name][1](*expected_args)
    found = without_python(name, args)
    assert told(found) == told(expected)
    assert told(args) == told(expected_args)


@pytest.mark.parametrize("index", [0, slice(1, None), (slice(None), 1), "a", None])
def test_getitem_is_native_for_usual_indices(index: Any, without_python: Any) -> None:
    expected = IN_PYTHON["getitem"][1](tree(), index)
    assert told(without_python("getitem", (tree(), index))) == told(expected)


def test_rows_are_read_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    source = tree().memmap_()
    expected = source[[1, 0]]
    monkeypatch.setattr(torch.Tensor, "__getitem__", refuse)
    found = source[torch.tensor([1, 0])]
    monkeypatch.undo()
    assert told(found) == told(expected)


@pytest.mark.parametrize("index", [0, slice(1, None), torch.tensor([1, 0])])
def test_rows_of_mapped_leaves_are_written_natively(
    index: Any, without_python: Any
) -> None:
    written, expected = tree().memmap_(), tree()
    rows = tree(5)[index]
    IN_PYTHON["set_index"][1](expected, index, rows)
    without_python("set_index", (written, index, rows))
    for key, leaf in expected.items(True, True):
        assert type(written[key]) is MemoryMappedTensor
        assert (written[key] == leaf).all()


@pytest.mark.parametrize("is_mapped", [True, False])
def test_nothing_is_written_where_a_subclass_refuses(is_mapped: bool) -> None:
    first, trained = torch.zeros(2), torch.zeros(2)
    if is_mapped:
        trained = MemoryMappedTensor.from_tensor(trained)
    td = TensorDict(a=first, b=trained.requires_grad_(), batch_size=[2])
    with pytest.raises(RuntimeError, match="leaf Variable"):
        td[0] = TensorDict(a=torch.ones(()), b=torch.ones(()))
    assert not first.any()


def test_a_case_that_is_left_to_python_is_noticed(without_python: Any) -> None:
    missing = TensorDict({}, []), "nothing"
    with pytest.raises(AssertionError, match="leaves a plain case to Python"):
        without_python("get", missing)
