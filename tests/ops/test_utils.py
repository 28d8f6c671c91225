"""Helpers around collections, settings, deprecated names and import paths."""

from __future__ import annotations

import importlib

import pytest
import torch

import tensordict
from separate_process import check_freshly
from tensordict import (
    NestedKey,
    TensorDict,
    is_floating,
    isin,
    list_to_stack,
    parse_tensor_dict_string,
    set_list_to_stack,
    set_printoptions,
    utils,
)


def test_expand_as_right_adds_dims_on_the_right(container):
    tensor = torch.arange(2)
    assert utils.expand_as_right(tensor, torch.zeros(2, 3)).tolist() == [
        [0, 0, 0],
        [1, 1, 1],
    ]
    td = container({"a": tensor}, [2])
    assert utils.expand_as_right(td, torch.zeros(2, 3))["a"].shape == (2, 3)


def test_expand_as_right_refuses_another_shape():
    with pytest.raises(RuntimeError, match="incompatible with dest shape"):
        utils.expand_as_right(torch.zeros(2), torch.zeros(3, 3))


@pytest.mark.parametrize("key", ["a", ("a", "b"), ("a", ("b",))])
def test_strings_and_tuples_of_them_are_keys(key):
    assert isinstance(key, NestedKey)


@pytest.mark.parametrize("key", [(), ["a"], ("a", 3), ("a", ()), None])
def test_nothing_else_is_a_key(key):
    assert not isinstance(key, NestedKey)


def test_isin_compares_slices(container):
    td = container({"k": torch.tensor([[1, 2], [3, 4]])}, [2])
    seen = container({"k": torch.tensor([[3, 4], [1, 1], [0, 0]])}, [3])
    assert isin(td, seen, "k").tolist() == [False, True]


def test_remove_duplicates_keeps_the_first_row(container):
    td = container({"k": torch.tensor([2, 1, 2]), "v": torch.arange(3)}, [3])
    made, places = utils.remove_duplicates(td, "k", return_indices=True)
    assert (made["k"].tolist(), made["v"].tolist()) == ([1, 2], [1, 0])
    assert places.tolist() == [1, 0, 1]


def test_remove_duplicates_of_no_rows(container):
    td = container({"k": torch.zeros(0)}, [0])
    assert utils.remove_duplicates(td, "k").batch_size == (0,)


def test_predicates_of_dtypes_take_collections(container):
    assert is_floating(container({"a": torch.zeros(1)}))
    with pytest.raises(AttributeError):
        is_floating(container({"a": torch.zeros(1), "b": torch.zeros(1).int()}))


@pytest.mark.parametrize("compact", [True, False])
def test_a_printed_container_is_read_back(compact):
    td = TensorDict(
        {
            "a": torch.ones(2, 3, dtype=torch.bfloat16),
            "n": TensorDict({"x: y": torch.ones(2, 3, 4).bool()}, [2, 3], device="cpu"),
            "e": {},
        },
        [2],
    )
    with set_printoptions(compact=compact):
        made = parse_tensor_dict_string(repr(td))
    assert (made == td.clone().zero_()).all()
    assert made["n"].batch_size == (2, 3)
    assert list(made.keys()) == sorted(td.keys())


def test_what_is_no_printed_container_is_refused():
    with pytest.raises(ValueError, match="Batch size not found"):
        parse_tensor_dict_string("text")


# Settings ----------------------------------------------------------------------------


def test_a_setting_holds_in_its_block():
    with pytest.warns(DeprecationWarning, match="set_list_to_stack"):
        mode = set_list_to_stack(False)
    with mode:
        assert list_to_stack() is False
    assert list_to_stack() is True


def test_a_setting_decorates_without_a_warning_per_call():
    answers = set_list_to_stack(True)(list_to_stack)
    assert answers(allow_none=True) is True
    assert list_to_stack(allow_none=True) is None


def test_get_of_a_missing_key_follows_the_setting():
    with pytest.warns(DeprecationWarning, match="set_get_defaults_to_none"):
        tensordict.set_get_defaults_to_none(False)
    try:
        with pytest.raises(KeyError):
            TensorDict().get("a")
        assert TensorDict().get("a", None) is None
    finally:
        with pytest.warns(DeprecationWarning, match="set_get_defaults_to_none"):
            tensordict.set_get_defaults_to_none()
    assert TensorDict().get("a") is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"LIST_TO_STACK": "0", "TD_LOGGING_LEVEL": "debug"},
            "False False False DEBUG unchecked",
        ),
        (
            {
                "LIST_TO_STACK": "1",
                "LAZY_LEGACY_OP": "true",
                "CAPTURE_NONTENSOR_STACK": "yes",
                "TD_CHECK_INVARIANTS": "1",
            },
            "True True True INFO The entry 'a' has shape",
        ),
    ],
)
def test_the_environment_sets_the_defaults(variables, expected):
    program = """
import logging, torch
from tensordict import TensorDict, utils as u
try:
    TensorDict._new_unsafe({"a": torch.zeros(3)}, batch_size=torch.Size([2]))
    checked = "unchecked"
except AssertionError as error:
    checked = str(error)
print(u.list_to_stack(), u.lazy_legacy(), u.capture_non_tensor_stack(),
    logging.getLevelName(u.logger.level), checked)
"""
    assert check_freshly(program, environment=variables).startswith(expected)


# Old names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tensordict", "List"),
        ("tensordict", "defaultdict"),
        ("tensordict.utils", "prod"),
        ("tensordict.utils", "is_seq_of_nested_key"),
        ("tensordict.tensordict", "convert_ellipsis_to_idx"),
        ("tensordict.nn.params", "TDPARAM_HANDLED_FUNCTIONS"),
    ],
)
def test_deprecated_names_work_and_say_so(module, name):
    found = importlib.import_module(module)
    message = rf"{module}\.{name} is deprecated and will be removed in TensorDict 0\.17"
    with pytest.warns(DeprecationWarning, match=message):
        assert getattr(found, name) is not None


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        _ = utils.nope


@pytest.mark.parametrize(
    "path",
    [
        "tensordict._td.TensorDict",
        "tensordict.tensordict.TensorDict",
        "tensordict.base.TensorDictBase",
        "tensordict.base.is_tensor_collection",
        "tensordict.base._is_leaf_nontensor",
        "tensordict.tensordict.NO_DEFAULT",
        "tensordict.functional.pad_sequence",
        "tensordict._tensorcollection.TensorCollection",
        "tensordict._td_functions.stack",
        "tensordict._base.factories.from_dict",
        "tensordict._utils_options.set_printoptions",
        "tensordict._nestedkey.NestedKey",
        "tensordict.memmap.MemoryMappedTensor",
        "tensordict.MemmapTensor",
        "tensordict.utils._unravel_key_to_tuple",
    ],
)
def test_established_import_paths_hold(path):
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_timeit_counts_calls():
    utils.timeit.erase()
    utils.timeit("work")(int)()
    with utils.timeit("work"):
        pass
    assert utils.timeit._REG["work"][2] == 2
    utils.timeit.erase()
