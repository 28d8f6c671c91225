"""Utilities: helpers of keys, settings, predicates, padding, merging, and timing."""

from __future__ import annotations

import io
import logging
import warnings
from collections import namedtuple

import torch
from scenario import scenario
from torch import nn

import tensordict
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    TensorDictParams,
    UnbatchedTensor,
    capture_non_tensor_stack,
    dense_stack_tds,
    from_dict,
    fromkeys,
    get_defaults_to_none,
    is_leaf_nontensor,
    is_non_tensor,
    is_tensor_collection,
    is_tensorclass,
    lazy_legacy,
    lazy_stack,
    list_to_stack,
    make_tensordict,
    maybe_dense_stack,
    merge_tensordicts,
    pad,
    pad_sequence,
    set_capture_non_tensor_stack,
    set_get_defaults_to_none,
    set_lazy_legacy,
    set_list_to_stack,
    tensorclass,
    unravel_key,
    unravel_key_list,
)
from tensordict.nn import (
    InteractionType,
    TensorDictModule,
    composite_lp_aggregate,
    dispatch,
    interaction_type,
    inv_softplus,
    set_composite_lp_aggregate,
    set_interaction_type,
    set_skip_existing,
    skip_existing,
)
from tensordict.utils import (
    Buffer,
    LinkedList,
    assert_allclose_td,
    expand_as_right,
    expand_right,
    isin,
    logger,
    parse_tensor_dict_string,
    print_directory_tree,
    remove_duplicates,
    timeit,
    unravel_key_to_tuple,
)


@tensorclass
class Point:
    x: torch.Tensor


def nested() -> TensorDict:
    return TensorDict(
        {"a": torch.arange(6.0).view(2, 3), "n": {"b": torch.ones(2)}}, batch_size=[2]
    )


# Keys ----------------------------------------------------------------------------------


@scenario
def keys_unravelled():
    return (
        unravel_key("a"),
        unravel_key(("a",)),
        unravel_key((("a", "b"), ("c",))),
        unravel_key_list(["a", ("b", ("c",))]),
        unravel_key_list(("a", ("b",))),
        unravel_key_to_tuple("a"),
        unravel_key_to_tuple(("a", ("b",))),
    )


@scenario
def a_key_that_is_none():
    return unravel_key(1)


@scenario
def a_list_of_keys_that_is_text():
    return unravel_key_list("abc")


@scenario
def empty_keys():
    return unravel_key_list([]), unravel_key_to_tuple(())


# Predicates ----------------------------------------------------------------------------


@scenario
def what_is_a_collection():
    values = [
        TensorDict(),
        lazy_stack([TensorDict(), TensorDict()]),
        Point(x=torch.ones(1)),
        NonTensorData(1),
        NonTensorStack("a"),
        TensorDictParams(TensorDict()),
        torch.ones(1),
        {},
    ]
    of_values = [is_tensor_collection(value) for value in values]
    return of_values, [is_tensor_collection(type(value)) for value in values]


@scenario
def what_is_a_tensorclass():
    values = [TensorDict(), Point(x=torch.ones(1)), Point, NonTensorData(1), int]
    return [is_tensorclass(value) for value in values]


@scenario
def what_is_non_tensor():
    values = [
        NonTensorData(1),
        NonTensorStack("a", "b"),
        TensorDict(),
        torch.ones(1),
        "s",
    ]
    return [is_non_tensor(value) for value in values]


@scenario
def what_is_a_leaf():
    classes = [torch.Tensor, TensorDict, NonTensorData, NonTensorStack, Point]
    return [is_leaf_nontensor(cls) for cls in classes]


@scenario
def which_rows_are_in_a_reference():
    td = TensorDict(a=torch.tensor([1, 2, 3]), b=torch.ones(3), batch_size=[3])
    reference = TensorDict(a=torch.tensor([2, 3]), b=torch.zeros(2), batch_size=[2])
    return isin(td, reference, "a")


@scenario
def which_rows_are_in_a_reference_without_the_key():
    return isin(nested(), nested(), "missing")


@scenario
def duplicates_removed():
    td = TensorDict(a=torch.tensor([1, 2, 1]), b=torch.arange(3), batch_size=[3])
    return remove_duplicates(td, "a"), remove_duplicates(td, "a", return_indices=True)[
        1
    ]


# Settings ------------------------------------------------------------------------------


@scenario
def lists_as_stacks():
    with set_list_to_stack(True):
        inside = list_to_stack()
        td = TensorDict(a=["x", "y"], batch_size=[2])
    with set_list_to_stack(False):
        outside = list_to_stack()
        other = TensorDict(a=["x", "y"])
    return inside, outside, td["a"], other["a"]


@scenario
def lists_as_stacks_by_a_decorator():
    @set_list_to_stack(True)
    def make():
        return list_to_stack(), TensorDict(a=["x", "y"], batch_size=[2])[0]["a"]

    return make()


@scenario
def settings_set_and_unset():
    before = lazy_legacy()
    setting = set_lazy_legacy(True)
    setting.set()
    during = lazy_legacy()
    set_lazy_legacy(before).set()
    return before, during, lazy_legacy()


@scenario
def stacks_in_lazy_legacy_mode():
    with set_lazy_legacy(True):
        lazy = torch.stack([nested(), nested()])
    with set_lazy_legacy(False):
        dense = torch.stack([nested(), nested()])
    return type(lazy).__name__, type(dense).__name__


@scenario
def non_tensor_stacks_captured():
    data = [NonTensorData(1), NonTensorData(1)]
    with set_capture_non_tensor_stack(True):
        inside, one = capture_non_tensor_stack(), torch.stack(data)
    with set_capture_non_tensor_stack(False):
        outside, many = capture_non_tensor_stack(), torch.stack(data)
    return inside, outside, type(one).__name__, type(many).__name__


@scenario
def settings_nested():
    with set_list_to_stack(True):
        with set_list_to_stack(False):
            inner = list_to_stack()
        outer = list_to_stack()
    return inner, outer


@scenario
def settings_left_by_an_error():
    before = list_to_stack()
    try:
        with set_list_to_stack(not before):
            nested()["missing"]
    except KeyError:
        pass
    return list_to_stack() == before


@scenario
def missing_keys_as_none_or_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = get_defaults_to_none()
        set_get_defaults_to_none(True)
        found = nested().get("missing")
    return before, found, get_defaults_to_none()


@scenario
def interaction_types():
    with set_interaction_type(InteractionType.MODE):
        inside = interaction_type()
        with set_interaction_type("mean"):
            inner = interaction_type()
    return inside.name, inner.name, InteractionType.from_str("random").name


@scenario
def existing_entries_skipped():
    module = TensorDictModule(lambda x: x + 1, in_keys=["a"], out_keys=["a2"])
    td = TensorDict(a=torch.ones(1), a2=torch.zeros(1))
    with set_skip_existing(True):
        inside = skip_existing()
        module(td)
    skipped = td["a2"].clone()
    module(td)
    return inside, skipped, td["a2"], skip_existing()


@scenario
def a_method_that_skips():
    class Net(nn.Module):
        in_keys = ("a",)
        out_keys = ("b",)

        @set_skip_existing()
        def forward(self, tensordict):
            return tensordict.set("b", tensordict["a"] * 2)

    td = TensorDict(a=torch.ones(1), b=torch.zeros(1))
    first = Net()(td)["b"].clone()
    with set_skip_existing(True):
        second = Net()(td)["b"].clone()
    return first, second


@scenario
def aggregates_of_log_probs():
    with set_composite_lp_aggregate(False):
        inside = composite_lp_aggregate()
    with set_composite_lp_aggregate(True):
        other = composite_lp_aggregate()
    return inside, other


# Dispatch ------------------------------------------------------------------------------


@scenario
def a_method_called_with_tensors():
    class Net(nn.Module):
        in_keys = ("a", ("n", "b"))
        out_keys = ("out", "more")

        @dispatch(auto_batch_size=False)
        def forward(self, tensordict):
            tensordict["out"] = tensordict["a"] + tensordict["n", "b"]
            tensordict["more"] = tensordict["a"]
            return tensordict

    net = Net()
    return net(a=torch.ones(2), n_b=torch.ones(2)), net(torch.ones(1), torch.ones(1))


@scenario
def a_method_with_another_separator():
    class Net(nn.Module):
        in_keys = (("n", "b"),)
        out_keys = ("out",)

        @dispatch(separator="__", auto_batch_size=True)
        def forward(self, tensordict):
            return tensordict.set("out", tensordict["n", "b"] * tensordict.numel())

    return Net()(n__b=torch.ones(2, 3))


@scenario
def a_method_with_sources_and_destinations_by_name():
    class Net(nn.Module):
        inputs = ("a",)
        outputs = ("b",)

        @dispatch(source="inputs", dest="outputs")
        def forward(self, tensordict):
            return tensordict.set("b", tensordict["a"] + 1)

    return Net()(a=torch.ones(2))


@scenario
def a_method_called_with_a_missing_tensor():
    class Net(nn.Module):
        in_keys = ("a", "c")
        out_keys = ("b",)

        @dispatch
        def forward(self, tensordict):
            return tensordict.set("b", tensordict["a"] + tensordict["c"])

    return Net()(a=torch.ones(2))


# Building and joining ------------------------------------------------------------------


@scenario
def merged():
    one = TensorDict({"a": torch.ones(2), "n": {"x": torch.ones(2)}}, batch_size=[2])
    two = TensorDict({"b": torch.zeros(2), "n": {"y": torch.ones(2)}}, batch_size=[2])
    return merge_tensordicts(one, two), sorted(map(str, one.keys(True)))


@scenario
def merged_with_a_function():
    one = TensorDict(a=torch.ones(2), b=torch.ones(2))
    two = TensorDict(a=torch.full((2,), 3.0))
    return merge_tensordicts(one, two, callback_exist=lambda *values: sum(values))


@scenario
def padded():
    td = nested()
    return pad(td, [0, 1], value=-1.0), pad(td, [1, 0])


@scenario
def padded_with_the_wrong_number():
    return pad(nested(), [0, 1, 2])


@scenario
def sequences_padded():
    items = [TensorDict(a=torch.ones(n, 2), batch_size=[n]) for n in (1, 3)]
    return pad_sequence(items), pad_sequence(
        items, padding_value=-1.0, return_mask=True
    )


@scenario
def sequences_padded_along_a_later_dim():
    items = [TensorDict(a=torch.ones(2, n)) for n in (1, 3)]
    return pad_sequence(items, pad_dim=1, return_mask="m")


@scenario
def sequences_of_nothing():
    return pad_sequence([])


@scenario
def stacks_made_dense():
    stack = lazy_stack([nested(), nested() + 1])
    return dense_stack_tds(stack), dense_stack_tds([nested(), nested()], 0)


@scenario
def stacks_dense_where_they_can_be():
    same = maybe_dense_stack([nested(), nested()])
    ragged = maybe_dense_stack(
        [TensorDict(a=torch.ones(1)), TensorDict(a=torch.ones(2))]
    )
    return type(same).__name__, type(ragged).__name__


@scenario
def made_of_keywords():
    return make_tensordict(a=torch.ones(2), b={"c": torch.zeros(2, 3)}, batch_size=[2])


@scenario
def made_with_the_batch_size_found():
    td = make_tensordict(
        {"a": torch.ones(2, 3), "b": torch.ones(2)}, auto_batch_size=True
    )
    return td, from_dict({"a": torch.ones(2, 3)}, auto_batch_size=True).batch_size


@scenario
def from_keys():
    return fromkeys(["a", ("n", "b")], 0), TensorDict.fromkeys({"a"}, 1.0)


@scenario
def from_a_named_tuple():
    pair = namedtuple("pair", ["x", "y"])(torch.ones(2), torch.zeros(2))  # noqa: PYI024
    td = tensordict.from_namedtuple(pair)
    return td, td.to_namedtuple().x


@scenario
def from_a_tuple_and_anything():
    made = tensordict.from_tuple((torch.ones(1), torch.zeros(1)))
    return made, tensordict.from_any({"a": [1.0, 2.0], "b": (torch.ones(1),)})


# Shapes and values ---------------------------------------------------------------------


@scenario
def expanded_on_the_right():
    x = torch.tensor([1.0, 2.0])
    return (
        expand_as_right(x, torch.zeros(2, 3)),
        expand_right(x, (2, 3, 1)),
        expand_as_right(nested()["n"], nested().unsqueeze(-1).expand(2, 3)).batch_size,
    )


@scenario
def expanded_on_the_right_of_too_few_dims():
    return expand_as_right(torch.ones(2, 3), torch.zeros(2))


@scenario
def compared_closely():
    td = nested()
    tensordict.assert_close(td, td + 1e-9)
    return assert_allclose_td(td, td + 1e-9)


@scenario
def compared_closely_and_different():
    return tensordict.assert_close(nested(), nested() + 1)


@scenario
def compared_closely_with_other_keys():
    return tensordict.assert_close(nested(), nested().exclude("a"), intersection=True)


@scenario
def softplus_inverted():
    x = torch.tensor([0.5, 2.0])
    return nn.functional.softplus(inv_softplus(x)), round(inv_softplus(1.0), 4)


@scenario
def a_buffer_in_params():
    params = TensorDictParams(TensorDict(w=torch.ones(1), b=Buffer(torch.zeros(1))))
    return len(list(params.parameters())), len(list(params.buffers()))


@scenario
def an_unbatched_tensor():
    td = TensorDict(a=torch.ones(2), u=UnbatchedTensor(torch.ones(5)), batch_size=[2])
    return td["u"].shape, td[0]["u"].shape, (td + 1)["a"]


# Text and time -------------------------------------------------------------------------


@scenario
def text_parsed():
    td = nested()
    again = parse_tensor_dict_string(repr(td))
    return again.batch_size, again["a"].shape, again["n", "b"].dtype


@scenario
def text_that_is_none():
    return parse_tensor_dict_string("not a tensordict")


@scenario
def time_measured():
    timeit.erase()
    with timeit("block"):
        pass

    @timeit("function")
    def work(x):
        return x + 1

    def counts():
        # Names of others stay in the registry of the process, with a count of zero.
        return {name: timeit._REG[name][2] for name in ("block", "function")}

    calls = [work(1), work(2)]
    counted = counts()
    timeit.erase()
    return calls, counted, counts()


@scenario
def the_logger():
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logger.addHandler(handler)
    try:
        logger.warning("something")
    finally:
        logger.removeHandler(handler)
    return logger.name, text.getvalue(), logger.propagate


@scenario
def a_directory_printed(tmp_path):
    (tmp_path / "save").mkdir()
    (tmp_path / "save" / "notes.txt").write_text("text")
    return print_directory_tree(tmp_path / "save")


@scenario
def linked_lists():
    td = TensorDict(a=["x", "y"])
    value = td["a"]
    return isinstance(LinkedList([1, 2]), list), list(LinkedList([1, 2])), value


@scenario(
    reason="here a tensorclass of both forms is a TensorCollection",
    ours=lambda result: result == (True, True, True, False, True, True),
)
def classes_and_bases():
    return (
        issubclass(TensorDict, TensorDictBase),
        issubclass(LazyStackedTensorDict, TensorDictBase),
        issubclass(TensorDictParams, nn.Module),
        issubclass(Point, TensorDictBase),
        isinstance(nested(), tensordict.TensorCollection),
        isinstance(Point(x=torch.ones(1)), tensordict.TensorCollection),
    )
