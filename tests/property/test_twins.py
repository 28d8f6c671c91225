"""The native primitives and their Python twins give the same results on any container."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordict import TensorDict, TensorDictParams, UnbatchedTensor, _rust
from tensordict.compile.registration import twin_modules
from tensordict.primitives import (
    index as index_primitives,
)
from tensordict.primitives import (
    items as items_primitives,
)
from tensordict.primitives import (
    keys as keys_primitives,
)
from tensordict.primitives import (
    lock as lock_primitives,
)
from tensordict.primitives import (
    map_leaves as map_leaves_primitives,
)
from tensordict.primitives import (
    nested_key,
)
from tensordict.primitives import (
    tree as tree_primitives,
)
from tensordict.primitives import (
    update as update_primitives,
)
from tensordict.primitives.leaf_loops import special_keys
from tensordict.primitives.protocol import (
    NO_DEFAULT,
    NONE_IF_MISSING,
    CollectionProtocol,
)

sys.path.insert(0, str(Path(__file__).parent))
import trees  # noqa: E402

needs_shortcuts = pytest.mark.skipif(
    not _rust.shortcuts()["tensors"],
    reason="without them these leave to their twins what they do natively else",
)

TWINS = {
    name: getattr(module, name)
    for module in twin_modules()
    for name in dir(module)
    if not name.startswith("_")
    and inspect.isfunction(getattr(module, name))
    and getattr(module, name).__module__ == module.__name__
}
NATIVE = [name for name in TWINS if hasattr(_rust, name)]

relaxed = settings(deadline=None)


def both(name: str, td, *args, any_error: bool = False) -> None:
    """Assert that the native primitive and its twin agree on ``td``.

    With ``any_error`` it is enough that both raise one.
    """
    known = trees.known_objects(td)
    expected = trees.outcome(TWINS[name], td, *args, known=known)
    found = trees.outcome(getattr(_rust, name), td, *args, known=known)
    if any_error and expected[0] == found[0] == "raised":
        return
    assert found == expected


def fresh(argument):
    """An argument whose containers nobody else holds: a primitive may name their dims."""
    if isinstance(argument, CollectionProtocol):
        return trees.copy_tree(argument)
    if isinstance(argument, dict):
        return {key: fresh(value) for key, value in argument.items()}
    return argument


def both_on_copies(name: str, td, *args) -> None:
    """Compare both for a primitive that changes the container."""
    known = trees.known_objects(td)
    for key, value in list(known.items()):
        if not value.startswith("storage") and isinstance(value, CollectionProtocol):
            del known[key]
    results = []
    for function in (TWINS[name], getattr(_rust, name)):
        copy = trees.copy_tree(td)
        result = trees.outcome(function, copy, *map(fresh, args), known=known)
        results.append((result, trees.describe(copy, known)))
    assert results[1] == results[0]


def both_on_deep_copies(name: str, td, *args) -> None:
    """Compare both for a primitive that writes into the leaves."""
    results = []
    for function in (TWINS[name], getattr(_rust, name)):
        copy = map_leaves_primitives.map_leaves(
            td, torch.clone, (), None, True, 0, True
        )
        result = trees.outcome(function, copy, *map(fresh, args), known={})
        results.append((result, trees.describe(copy, {})))
    assert results[1] == results[0]


@pytest.mark.parametrize("name", NATIVE)
def test_signature_is_that_of_the_twin(name):
    native = inspect.signature(getattr(_rust, name)).parameters.values()
    twin = inspect.signature(TWINS[name]).parameters.values()
    assert [p.name for p in native] == [p.name for p in twin]
    for mine, theirs in zip(native, twin, strict=True):
        if mine.default is not ...:
            assert mine.default == theirs.default


key_parts = st.sampled_from([*trees.KEYS, "", "missing"]) | st.just(1) | st.just(())
# Three levels, written out: st.recursive() now and then takes them for no recursion.
key_tuples = st.lists(key_parts, max_size=3).map(tuple)
keys = key_parts | key_tuples | st.lists(key_parts | key_tuples, max_size=3).map(tuple)


@given(key=keys)
@relaxed
def test_unravel(key):
    for name in ("unravel_key", "unravel_key_to_tuple"):
        expected = trees.outcome(TWINS[name], key, known={})
        assert trees.outcome(getattr(_rust, name), key, known={}) == expected
    for given_keys in ([key, "a"], (key,), key):
        expected = trees.outcome(nested_key.unravel_key_list, given_keys, known={})
        assert trees.outcome(_rust.unravel_key_list, given_keys, known={}) == expected


@given(td=trees.containers(), dims=st.tuples(*[st.integers(-4, 4)] * 2), data=st.data())
@relaxed
def test_moved_dims(td, dims, data):
    call = ("name", dims, {})
    first, second = dims
    both("unsqueeze", td, first, call)
    both("squeeze", td, data.draw(st.none() | st.just(first)), call)
    both("transpose", td, first, second, call)
    both("movedim", td, first, second, call)
    both("flatten", td, first, second, call)
    both("at_least", td, abs(first), call)
    both("reduce_dim", td, "sum", first)
    both("extrema", td, "max", first)
    both("extrema", td, "cummax", first, True)
    both("unbind", td, first)
    order = data.draw(st.permutations(range(len(td.batch_size))))
    both("permute", td, data.draw(st.sampled_from([tuple(order), order, dims])), call)


@st.composite
def map_arguments(draw, td):
    k = len(td.batch_size)
    op, args, tail = draw(
        st.sampled_from(
            [
                ("clone", (), 0),
                ("abs", (), 0),
                ("no_such_method", (), 0),
                ("unsqueeze", (0,), 0),
                ("__getitem__", (0,), 0),
                ("view", ((1, *td.batch_size),), 1),
                ("reshape", (torch.Size([td.batch_size.numel()]),), 1),
                ("reshape", ([td.batch_size.numel()],), 1),
                ("reshape", ((),), 1),
                ("expand", ((2, *td.batch_size),), 1),
                ("permute", (tuple(reversed(range(k))),), 2),
                ("permute", (tuple(range(k)),), 2),
                ("repeat", ((1,) * k,), 3),
                ("repeat", ((2,) * k,), 3),
                ("repeat", ((2,) * k,), 3),
                ("tile", ((2,) * k,), 3),
                (torch.add, (1,), 0),
                (torch.reshape, (torch.Size([td.batch_size.numel()]),), 1),
                (torch.permute, (tuple(range(k)),), 2),
                ("sum", (), 1),
            ]
        )
    )
    prefix = draw(
        st.sampled_from([None, td.batch_size, torch.Size([7]), torch.Size([])])
    )
    size = k if prefix is None else len(prefix)
    names = draw(
        st.sampled_from(
            [
                True,
                None,
                [f"x{dim}" for dim in range(size)],
                tuple(draw(st.lists(st.integers(-1, max(k - 1, -1)), max_size=3))),
            ]
        )
    )
    return op, args, prefix, names, tail, draw(st.booleans()), draw(st.just(-1))


@given(data=st.data(), lock=st.booleans())
@relaxed
def test_map_leaves(data, lock):
    td = data.draw(trees.containers())
    if lock:
        lock_primitives.lock_tree(td)
    # The twin calls with plain leaves first: of several errors it may raise another.
    is_mixed = bool(special_keys(dict(td.items())))
    both("map_leaves", td, *data.draw(map_arguments(td)), any_error=is_mixed)


@given(data=st.data(), lock=st.booleans(), ask=st.booleans())
@relaxed
def test_split_leaves(data, lock, ask):
    td = data.draw(trees.containers())
    if lock:
        lock_primitives.lock_tree(td)
    length = td.batch_size[0] if td.batch_size else 2
    op, args = data.draw(
        st.sampled_from(
            [("unbind", (0,)), ("split", (1,)), ("chunk", (2,)), ("item", ())]
        )
    )
    names = data.draw(
        st.sampled_from([True, None, tuple(range(1, len(td.batch_size)))])
    )
    prefixes = [td.batch_size[1:]] * length
    # The twin notices another number of parts than of sizes after the walk.
    both("split_leaves", td, op, args, prefixes, names, ask, any_error=True)


@given(td=trees.containers(), lock=st.booleans())
@relaxed
def test_collecting(td, lock):
    if lock:
        lock_primitives.lock_tree(td)
    for name in ("leaves", "clone_structure", "data", "containers", "leaf_batch_dims"):
        both(name, td)
    for op in ("all", "any"):
        both("truth", td, op)
    both("is_empty", td)
    both("is_filled", td)
    for others in (
        [],
        [td],
        [TensorDict(), items_primitives.containers(td)[-1]],
        [TensorDict()],
    ):
        both("holds_any", td, others)
    leaves = [*tree_primitives.leaves(td), torch.ones(2, device="meta")]
    assert _rust.on_host(leaves) == tree_primitives.on_host(leaves)


@given(td=trees.containers(), lock=st.booleans(), ask=st.booleans(), less=st.booleans())
@relaxed
def test_rebuilding(td, lock, ask, less):
    if lock:
        lock_primitives.lock_tree(td)
    values = [leaf + 1 for leaf in tree_primitives.leaves(td)]
    if less:
        values = values[1:]
    for names in (True, None):
        both("rebuild", td, values, names, ask, less)
    both("rebuild_as", td, values, None, None, ask)
    both("rebuild_as", td, values, trees.TensorDict, torch.Size([]), ask)


@given(data=st.data())
@relaxed
def test_align(data):
    td = data.draw(trees.containers((2,)))
    other = data.draw(
        st.just(td)
        | st.just(tree_primitives.clone_structure(td))
        | trees.containers((2,))
    )
    both("align", td, other)


@given(data=st.data())
@relaxed
def test_rows_into_others(data):
    td = data.draw(trees.containers((2,), foreign=False))
    positions = data.draw(st.lists(st.integers(-2, 2), max_size=3))
    out = data.draw(
        st.just(tree_primitives.clone_structure(td[torch.tensor([0, 1, 1])]))
        | trees.containers((2,), foreign=False)
    )
    index = torch.tensor(positions, dtype=torch.int64)
    results = []
    for function in (TWINS["gather_into"], _rust.gather_into):
        target = map_leaves_primitives.map_leaves(
            out, torch.clone, (), None, True, 0, True
        )
        result = trees.outcome(function, td, index, target, known={})
        written = result[0] != "raised" and trees.describe(target, {})
        results.append((result, written))
    assert results[1] == results[0]


@needs_shortcuts
@given(data=st.data(), lock=st.booleans())
@relaxed
def test_functions_of_lists(data, lock):
    td = data.draw(trees.containers((2,)))
    other = (
        st.just(td)
        | st.just(tree_primitives.clone_structure(td))
        | trees.containers((2,))
        | trees.containers((1,))
        | st.sampled_from([1, 2.5, True, 1j, "text", None, torch.ones(2)])
        | st.sampled_from([torch.tensor(2), torch.tensor(0.5)])
    )
    operands = tuple(data.draw(st.lists(other, max_size=2)))
    if lock:
        lock_primitives.lock_tree(td)
    both("foreach", td, added, operands, data.draw(st.booleans()))
    both_on_copies("foreach_inplace", td, add_into, operands)
    both("compare", td, torch.eq, data.draw(other), trees.TensorDict)


def added(values, *lists):
    """The sums of leaves and operands, where they can be added."""
    for items in lists:
        items = items if isinstance(items, list) else [items] * len(values)
        values = [
            value
            if isinstance(item, complex)
            else value.sum() + torch.as_tensor(item).sum()
            for value, item in zip(values, items, strict=True)
        ]
    return tuple(values)


def add_into(values, *lists):
    """Add as :func:`added` does, into the leaves."""
    with torch.no_grad():
        for value, total in zip(values, added(values, *lists), strict=True):
            value.copy_(total)


@given(
    td=trees.containers(),
    kind=st.integers(0, 2),
    nested=st.booleans(),
    leaves_only=st.booleans(),
    is_leaf=st.sampled_from(
        [
            None,
            lambda cls: issubclass(cls, CollectionProtocol),
            lambda cls: not issubclass(cls, CollectionProtocol),
            lambda cls: 1 / 0,
        ]
    ),
)
@relaxed
def test_walk(td, kind, nested, leaves_only, is_leaf):
    both("walk", td, kind, nested, leaves_only, is_leaf)
    both("walk", td, kind, nested, leaves_only, is_leaf, ("p", "q"))


@given(td=trees.containers(), key=keys)
@relaxed
def test_reading(td, key):
    both("contains", td, key)
    for default in ((), (None,), (5,), (NO_DEFAULT,), (NONE_IF_MISSING,)):
        both("get", td, key, *default)


@given(td=trees.containers(), mapped=st.booleans(), shared=st.booleans())
@relaxed
def test_keeping_storage(td, mapped, shared):
    source = tree_primitives.new(trees.TensorDict, {}, torch.Size([]), None, None)
    if mapped:
        source._is_memmap = True
    if shared:
        source._is_shared = True
    results = []
    for function in (lock_primitives.keep_storage, _rust.keep_storage):
        copy = tree_primitives.clone_structure(td)
        function(source, copy)
        results.append(trees.describe(copy, {}))
    assert results[1] == results[0]


@given(td=trees.containers(foreign=False), times=st.integers(1, 2))
@relaxed
def test_locking(td, times):
    inner = next((c for c in items_primitives.containers(td) if c is not td), td)
    both_on_copies("lock_tree", td)
    for _ in range(times):
        lock_primitives.lock_tree(td)
    both_on_copies("lock_tree", td)
    both_on_copies("unlock_tree", td)
    outer = tree_primitives.new(trees.TensorDict, {"x": td}, torch.Size([]), None, None)
    lock_primitives.lock_tree(outer)
    for member in (td, inner):
        known = trees.known_objects(outer)
        assert (
            trees.outcome(_rust.unlock_tree, member, known=known)[:2]
            == trees.outcome(lock_primitives.unlock_tree, member, known=known)[:2]
        )


@given(
    data=st.data(),
    key=keys,
    inplace=st.sampled_from([False, True, None]),
    validated=st.booleans(),
    ignore_lock=st.booleans(),
    lock=st.booleans(),
)
@relaxed
def test_writing(data, key, inplace, validated, ignore_lock, lock):
    td = data.draw(trees.containers(foreign=False, names=False))
    if lock:
        lock_primitives.lock_tree(td)
    values = [
        torch.ones(*td.batch_size, 2),
        torch.ones(5, 5, 5),
        torch.ones(()),
        1.5,
        object(),
        {"x": torch.ones(td.batch_size)},
        tree_primitives.new(trees.TensorDict, {}, td.batch_size, None, None),
    ]
    value = values[data.draw(st.integers(0, len(values) - 1))]
    if inplace is False or isinstance(value, torch.Tensor):
        both_on_copies("validate", td, key, value)
        both_on_copies(
            "set_entry", td, key, value, inplace, False, validated, ignore_lock
        )


index_items = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(
        [
            None,
            ...,
            True,
            False,
            slice(None),
            slice(1, None),
            slice(None, -1),
            slice(0, 9, 2),
            slice(None, None, -1),
            slice(-9, 2),
            torch.tensor(1),
            torch.tensor([0, 1]),
            torch.tensor([[0], [1]]),
            torch.tensor([0, 0, 1], dtype=torch.int32),
            torch.tensor([True, False]),
            torch.tensor([True, False, True]),
            torch.tensor([[True, False, True], [False, False, True]]),
            torch.tensor(True),
            torch.tensor([1.5]),
            [0, 1],
            [True, False, False],
            range(2),
            1.5,
            "a",
            torch.tensor([0, 1]).numpy(),
            10**30,
            slice(10**30),
        ]
    ),
)
indices = index_items | st.lists(index_items, max_size=4).map(tuple)


@given(index=indices, size=st.sampled_from([(), (3,), (2, 3), (2, 2, 2), (0, 3)]))
@settings(max_examples=400, deadline=None)
def test_index_plan(index, size):
    size = torch.Size(size)
    for name in ("index_plan", "index_shape"):
        expected = trees.outcome(TWINS[name], size, index, known={})
        assert trees.outcome(getattr(_rust, name), size, index, known={}) == expected


@given(index=indices, size=st.sampled_from([(3,), (2, 3), (2, 2, 2), (0, 3), (1,)]))
@settings(max_examples=400, deadline=None)
def test_index_plan_is_what_torch_does(index, size):
    """The planned size is that of an indexed tensor, with the index and with the plan."""
    tensor = torch.zeros(size)
    try:
        expected = tensor[index].shape
    except Exception:  # noqa: BLE001
        return
    try:
        plan = _rust.index_plan(torch.Size(size), index)
    except (IndexError, TypeError, ValueError, RuntimeError):
        # Torch takes what the release does not.
        return
    if plan is None:
        assert expected == torch.Size(size)
    else:
        assert plan[1] == expected
        assert tensor[plan[0]].shape == expected
        assert len(plan[2]) == len(expected)


@given(data=st.data(), index=indices)
@relaxed
def test_index(data, index):
    td = data.draw(trees.containers())
    both("index", td, index)


def unbatched_below() -> TensorDict:
    """Leaves held whole by the root, and by a nested container with a dim more."""
    whole = UnbatchedTensor(torch.ones(5))
    nested = TensorDict({"x": torch.zeros(3, 2), "whole": whole}, [3, 2])
    return TensorDict({"x": torch.zeros(3), "whole": whole, "n": nested}, [3])


@pytest.mark.parametrize(
    ("name", "args", "sizes"),
    [
        ("index", (0,), ((), (2,))),
        ("map_leaves", ("clone",), ((3,), (3, 2))),
        ("map_leaves", ("unsqueeze", (0,), torch.Size([1, 3])), ((1, 3), (1, 3, 2))),
    ],
)
def test_unbatched_leaves_take_the_size_of_their_container(name, args, sizes):
    td = unbatched_below()
    for function in (TWINS[name], getattr(_rust, name)):
        result = function(td, *args)
        found = (result["whole"].batch_size, result["n", "whole"].batch_size)
        assert found == sizes


@given(
    size=st.lists(st.integers(0, 4), max_size=3),
    shape=st.lists(st.integers(-2, 6), max_size=4),
    as_list=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_view_shape(size, shape, as_list):
    shape = shape if as_list else tuple(shape)
    both_on_sizes = [
        trees.outcome(f, torch.Size(size), shape, known={})
        for f in (index_primitives.view_shape, _rust.view_shape)
    ]
    assert both_on_sizes[0] == both_on_sizes[1]


@given(data=st.data(), dim=st.integers(0, 2), num=st.integers(1, 3), mix=st.booleans())
@relaxed
def test_joining(data, dim, num, mix):
    td = data.draw(trees.containers((2, 3), foreign=False))
    tds = [td] + [
        data.draw(trees.containers((2, 3), foreign=False))
        if mix
        else map_leaves_primitives.map_leaves(td, "clone")
        for _ in range(num - 1)
    ]
    for name in ("stack", "cat"):
        known = trees.known_objects(td)
        expected = trees.outcome(TWINS[name], tds, dim, known=known)
        assert trees.outcome(getattr(_rust, name), tds, dim, known=known) == expected


paths = st.lists(keys, max_size=4).map(tuple)


@given(td=trees.containers(), chosen=paths, strict=st.booleans(), lock=st.booleans())
@relaxed
def test_choosing(td, chosen, strict, lock):
    if lock:
        lock_primitives.lock_tree(td)
    both("select", td, chosen, False, strict)
    both("exclude", td, chosen, False)
    if not any(isinstance(c, trees.Wrapped) for c in items_primitives.containers(td)):
        both_on_copies("select", td, chosen, True, strict)
        both_on_copies("exclude", td, chosen, True)


@given(
    td=trees.containers(foreign=False), separator=st.sampled_from([".", "a", "", "--"])
)
@relaxed
def test_regrouping(td, separator):
    both("flatten_keys", td, separator, False)
    both(
        "flatten_keys", td, separator, False, lambda cls: issubclass(cls, torch.Tensor)
    )
    both_on_copies("flatten_keys", td, separator, True)
    for source in (td, keys_primitives.flatten_keys(td, ".", False)):
        both("unflatten_keys", source, separator, False)
    dotted = keys_primitives.flatten_keys(td, ".", False)
    dotted._tensordict["x.y.z"] = dotted._tensordict["x.y.w"] = torch.ones(
        td.batch_size
    )
    dotted._tensordict["n"] = tree_primitives.new(
        trees.TensorDict, {}, td.batch_size, None, None
    )
    both("unflatten_keys", dotted, ".", False)
    both_on_copies("unflatten_keys", dotted, ".", True)


@given(
    data=st.data(),
    clone=st.booleans(),
    inplace=st.booleans(),
    ignore_lock=st.booleans(),
    lock=st.booleans(),
    as_dict=st.booleans(),
)
@relaxed
def test_update(data, clone, inplace, ignore_lock, lock, as_dict):
    td = data.draw(trees.containers((3,), foreign=False, names=False))
    source = data.draw(trees.containers((3,), foreign=False))
    if as_dict:
        source = dict(source._tensordict)
        if data.draw(st.booleans()):
            source["n", "deep"] = torch.ones(3)
            source["n"] = {"a": torch.ones(3), "b": 1.0}
    if lock:
        lock_primitives.lock_tree(td)
    if inplace:
        options = (source, clone, inplace, False, None, ignore_lock)
        both_on_deep_copies("update", td, *options)
    else:
        both_on_copies("update", td, source, clone, inplace, False, None, ignore_lock)


@given(
    data=st.data(),
    batch_size=st.sampled_from(
        [None, [3], (3,), torch.Size([3]), 3, [2], [3, 1], "x", torch.tensor([3]), 1.5]
    ),
    device=st.sampled_from([None, "cpu", torch.device("cpu"), "nonsense"]),
    names=st.sampled_from([None, ["x"], ["x", "y"]]),
    how=st.integers(0, 3),
)
@relaxed
def test_init(data, batch_size, device, names, how):
    drawn = data.draw(trees.containers((3,), foreign=False))
    results = []
    for function in (update_primitives.init, _rust.init):
        # Entries without names take those of the container that they are stored in.
        td = tree_primitives.clone_structure(drawn)
        entries = dict(td._tensordict)
        if how == 1:
            entries["n", "deep"] = torch.ones(3)
        elif how == 2:
            nested = {"a": torch.ones(3), ("b", "c"): 1.0, "d": {"e": torch.ones(3)}}
            entries["n"] = nested
        source = td if how == 0 else entries if how < 3 else [1]
        known = trees.known_objects(td)
        new = trees.TensorDict.__new__(trees.TensorDict)
        result = trees.outcome(
            function, new, source, batch_size, device, names, False, known=known
        )
        described = trees.describe(new, known) if result[0] == "gave" else None
        results.append((result, described))
    assert results[1] == results[0]


def _first(*args):
    return args[0] if isinstance(args[0], torch.Tensor) else args[1]


def _none_for_a(key, *args):
    return None if key[-1] == "a" else args[0]


FUNCTIONS = [
    (lambda x, *_: x + 1, False),
    (_first, True),
    (_none_for_a, True),
    (lambda *_: None, False),
    (lambda *args: torch.ones(2) if len(args) > 1 else args[0], False),
    (lambda *_: 1 / 0, False),
]


@given(
    data=st.data(),
    function=st.sampled_from(FUNCTIONS),
    num_others=st.integers(0, 2),
    batch_size=st.sampled_from([None, torch.Size([]), torch.Size([5])]),
    device=st.sampled_from([NO_DEFAULT, None, torch.device("cpu")]),
    default=st.sampled_from([NO_DEFAULT, None, 7]),
    nested_keys=st.booleans(),
    filter_empty=st.sampled_from([None, True, False]),
    is_leaf=st.sampled_from(
        [
            None,
            True,
            lambda cls: not issubclass(cls, CollectionProtocol),
            lambda cls: issubclass(cls, torch.nn.Parameter),
        ]
    ),
    checked=st.booleans(),
    lock=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_apply_nest(
    data,
    function,
    num_others,
    batch_size,
    device,
    default,
    nested_keys,
    filter_empty,
    is_leaf,
    checked,
    lock,
):
    td = data.draw(trees.containers((3,), foreign=False))
    others = [
        data.draw(st.just(td) | trees.containers((3,), foreign=False))
        for _ in range(num_others)
    ]
    if lock:
        lock_primitives.lock_tree(td)
    fn, named = function
    names = data.draw(st.sampled_from([NO_DEFAULT, None, ["x"]]))
    options = (batch_size, device, names, default, named, nested_keys)
    # A container that is a leaf and comes back as it is takes the names of the result.
    compare = both_on_copies if is_leaf is True else both
    arguments = (fn, tuple(others), *options, filter_empty, is_leaf, checked)
    compare("apply_nest", td, *arguments)


def test_apply_nest_names_what_comes_after_an_entry_with_names():
    td = TensorDict({"a": torch.ones(3)}, [3])
    td._tensordict["n"] = TensorDict({}, [3], names=["x"])
    td._tensordict["m"] = TensorDict({}, [3])
    both("apply_nest", td, torch.neg)
    assert td.apply(torch.neg)["m"].names == ["x"]


@given(
    data=st.data(), as_dict=st.booleans(), chosen=st.none() | st.lists(keys, max_size=2)
)
@relaxed
def test_copy_into(data, as_dict, chosen):
    td = data.draw(trees.containers((3,), foreign=False))
    source = data.draw(st.just(td) | trees.containers((3,), foreign=False))
    source = map_leaves_primitives.map_leaves(source, torch.add, (1,))
    if as_dict:
        source = dict(source._tensordict)
    if chosen is not None:
        chosen = [nested_key.unravel_key_to_tuple(key) or ("a",) for key in chosen]
    both_on_deep_copies("copy_into", td, source, chosen)


@given(
    data=st.data(),
    index=indices,
    value=st.sampled_from([1, 2.5, True, "tensor", "long", "tree", "other", 1j, None]),
    lock=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_set_index(data, index, value, lock):
    td = data.draw(
        trees.containers(data.draw(st.sampled_from([(3,), (2, 3)])), names=False)
    )
    if value == "tensor":
        value = torch.tensor(3.0)
    elif value == "long":
        value = torch.tensor([1, 2])
    elif value in ("tree", "other"):
        source = (
            td
            if value == "tree"
            else data.draw(trees.containers((2, 3), foreign=False))
        )
        plan = trees.outcome(index_primitives.index, source, index, known={})
        if plan[0] == "raised":
            return
        value = map_leaves_primitives.map_leaves(
            index_primitives.index(source, index), torch.zeros_like
        )
    if lock:
        lock_primitives.lock_tree(td)
    both_on_deep_copies("set_index", td, index, value)


@needs_shortcuts
@given(data=st.data(), index=indices, change=st.sampled_from(["none", "keys", "dtype"]))
@settings(max_examples=150, deadline=None)
def test_write_fitting(data, index, change):
    td = data.draw(
        trees.containers(data.draw(st.sampled_from([(3,), (2, 3)])), names=False)
    )
    source = td
    if change == "keys":
        source = data.draw(trees.containers((3,), foreign=False))
    plan = trees.outcome(index_primitives.index, source, index, known={})
    if plan[0] == "raised":
        return
    op = torch.Tensor.double if change == "dtype" else torch.ones_like
    value = map_leaves_primitives.map_leaves(index_primitives.index(source, index), op)
    both_on_deep_copies("write_fitting", td, index, value)


@needs_shortcuts
@given(
    data=st.data(),
    index=st.sampled_from([0, slice(1, None), (), [0, 2], torch.tensor([1, 0])]),
    change=st.sampled_from([None, "keys", "dtype", 1, 0.5, True, 1000]),
)
@settings(max_examples=100, deadline=None)
def test_write_members(data, index, change):
    td = data.draw(trees.containers((3,), names=False))
    if isinstance(change, str | None):
        source = td
        if change == "keys":
            source = data.draw(trees.containers((3,), foreign=False))
        op = torch.Tensor.double if change == "dtype" else torch.ones_like
        part = map_leaves_primitives.map_leaves(
            index_primitives.index(source, index), op
        )
    else:
        part = change
    results = []
    for function in (TWINS["write_members"], _rust.write_members):
        copies = [
            map_leaves_primitives.map_leaves(td, torch.clone, (), None, True, 0, True)
            for _ in range(2)
        ]
        result = trees.outcome(function, copies, [index] * 2, [part] * 2, known={})
        results.append((result, [trees.describe(copy, {}) for copy in copies]))
    assert results[1] == results[0]


@given(
    data=st.data(),
    inplace=st.booleans(),
    checked=st.booleans(),
    nested=st.booleans(),
    lock=st.booleans(),
)
@relaxed
def test_write_tree(data, inplace, checked, nested, lock):
    td = data.draw(trees.containers((3,), foreign=False))
    tree = data.draw(st.just(td) | trees.containers((3,), foreign=False))
    tree = map_leaves_primitives.map_leaves(tree, torch.add, (1,))
    if lock:
        lock_primitives.lock_tree(td)
    both_on_deep_copies("write_tree", td, tree, inplace, checked, nested)


@given(
    data=st.data(), td=trees.containers(), value=st.sampled_from([1, 2.5, None, "x"])
)
@relaxed
def test_filling_and_hanging(data, td, value):
    both_on_deep_copies("fill", td, value)
    if isinstance(td, trees.TensorDict):
        child = data.draw(trees.containers(tuple(td.batch_size), foreign=False))
        both_on_copies("hang", td, "new", child)


# Modules -----------------------------------------------------------------------------


def a_module() -> torch.nn.Module:
    torch.manual_seed(0)
    shared = torch.nn.Linear(2, 2)
    inner = torch.nn.Sequential(shared, torch.nn.BatchNorm1d(2), shared)
    inner.plain = torch.zeros(2)
    return torch.nn.ModuleDict({"a": inner, "b": torch.nn.Linear(2, 2, bias=False)})


MODULE_SOURCES = {
    "own": lambda module: TensorDict.from_module(module),
    "data": lambda module: TensorDict.from_module(module).data.clone(),
    "gradient": lambda module: TensorDict.from_module(module).clone(),
    "part": lambda module: TensorDict({("b", "weight"): torch.zeros(2, 2)}),
    "attribute": lambda module: TensorDict({("a", "plain"): torch.ones(2)}),
    "params": lambda module: TensorDictParams(
        TensorDict.from_module(module).data.clone()
    ),
    "missing": lambda module: TensorDict(
        {("b", "weight"): torch.zeros(2, 2), ("b", "nothing"): torch.zeros(2)}
    ),
    "missing_module": lambda module: TensorDict({("c", "weight"): torch.zeros(2, 2)}),
    "into_none": lambda module: TensorDict({("b", "bias"): torch.zeros(2)}),
}


def state_of(module, known):
    return {
        name: (type(value).__name__, known.get(id(value)), value.requires_grad)
        for name, value in (*module.named_parameters(), *module.named_buffers())
    } | {"plain": known.get(id(module["a"].plain))}


def swap_and_back(functions, make, preserve, plan_only):
    module = a_module()
    source = make(module)
    known = {
        id(value): name
        for name, value in (*module.named_parameters(), *module.named_buffers())
    }
    known |= {id(value): f"source {key}" for key, value in source.items(True, True)}
    known[id(module["a"].plain)] = "plain"
    before = state_of(module, known)
    try:
        swapped = functions["swap_module"](source, module, preserve, plan_only)
    except KeyError as error:
        assert state_of(module, known) == before
        return str(error)
    within = state_of(module, known)
    found = [(key, known.get(id(value))) for key, value in swapped.items(True, True)]
    if not plan_only and preserve and within["b.weight"] != before["b.weight"]:
        module["b"].weight = torch.nn.Parameter(torch.full((2, 2), 5.0))
    if not plan_only and preserve and within["a.0.weight"] != before["a.0.weight"]:
        # The module is at two places of the source.
        module["a"][0].weight = torch.nn.Parameter(torch.full((2, 2), 6.0))
    current = functions["restore_module"](swapped, module, source, plan_only)
    assert state_of(module, known) == before
    return (
        within,
        found,
        type(swapped).__name__,
        [key for key, _ in current.items(True, True)] if plan_only else current,
        [(key, value.tolist()) for key, value in source.items(True, True)],
    )


@pytest.mark.parametrize("plan_only", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
@pytest.mark.parametrize("name", MODULE_SOURCES)
def test_modules(name, preserve, plan_only):
    make = MODULE_SOURCES[name]
    native = {name: getattr(_rust, name) for name in ("swap_module", "restore_module")}
    expected = swap_and_back(TWINS, make, preserve, plan_only)
    assert swap_and_back(native, make, preserve, plan_only) == expected
