"""Modules of tensors in a collection, one and several."""

import pytest
import torch
from torch import nn

import tensordict
from tensordict import TensorDict
from tensordict.nn import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    dispatch,
    set_skip_existing,
    skip_existing,
)


def increment(x):
    return x + 1


@pytest.fixture
def td():
    return TensorDict({"a": torch.zeros(3), "n": {"b": torch.ones(3)}}, [3])


def test_nn_is_an_attribute_of_the_package():
    assert tensordict.nn.TensorDictModule is TensorDictModule


def test_module_writes_nested_outputs(td):
    module = TensorDictModule(
        lambda x, y: (x, x + y), ["a", ("n", "b")], ["_", ("n", "c")]
    )
    assert module(td) is td
    assert td["n", "c"].tolist() == [1, 1, 1]
    assert "_" not in td


def test_missing_input_names_key_and_module(td):
    module = TensorDictModule(nn.Linear(3, 2), ["q"], ["z"])
    with pytest.raises(KeyError, match="'q'.*TensorDictModule.*in_keys"):
        module(td)
    with pytest.raises(KeyError, match='"q"'):
        TensorDictModule(nn.Linear(3, 2), ["q"], ["z"], strict=True)(td)


def test_wrong_number_of_outputs_leaves_the_input_as_it_was(td):
    with pytest.raises(RuntimeError, match="more tensors.*TensorDictModule"):
        TensorDictModule(lambda x: (x, x), ["a"], ["z"])(td)
    with pytest.raises(RuntimeError, match="more out_keys.*TensorDictModule"):
        TensorDictModule(lambda x: (x, x), ["a"], ["x", "y", "z"])(td)
    assert list(td.keys()) == ["a", "n"]


def test_input_given_twice_names_it():
    class Both(TensorDictModuleBase):
        in_keys = ["a", "b"]
        out_keys = ["c"]

        @dispatch
        def forward(self, tensordict):
            return tensordict.set("c", tensordict["a"])

    with pytest.raises(RuntimeError, match="Duplicated argument.*'a' of Both"):
        Both()(torch.ones(2), a=torch.ones(2))


def test_module_without_keys_says_where_to_set_them():
    class Empty(TensorDictModuleBase):
        def forward(self, tensordict):
            return tensordict

    with pytest.raises(AttributeError, match="'Empty'.*'in_keys'.*self.in_keys"):
        _ = Empty().in_keys


def test_sequence_removes_what_was_not_selected(td):
    module = TensorDictSequential(
        TensorDictModule(increment, ["a"], ["x"]),
        TensorDictModule(increment, ["x"], ["y"]),
        selected_out_keys=["y"],
    )
    assert list(module(td).keys()) == ["a", "n", "y"]
    assert module(torch.zeros(3)).tolist() == [2, 2, 2]


def test_skip_existing_ends_with_an_error_in_the_block():
    with pytest.raises(ZeroDivisionError), set_skip_existing(True):
        assert skip_existing()
        _ = 1 / 0
    assert not skip_existing()


@pytest.mark.parametrize("mode", [None, False, "empty"])
def test_sequence_compiles_in_one_graph(td, mode):
    module = TensorDictSequential(
        TensorDictModule(nn.Linear(3, 4), ["a"], ["x"]),
        TensorDictModule(torch.relu, ["x"], [("n", "y")]),
        inplace=mode,
    )
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    source = TensorDict({"a": torch.randn(2, 3), "n": {"b": torch.ones(2)}}, [2])
    expected = module(source.copy())
    result = compiled(source.copy())
    assert result.batch_size == expected.batch_size
    assert (result == expected).all()


def test_values_that_are_no_tensors_come_without_their_wrapper():
    td = TensorDict(text="foo")
    module = TensorDictModule(lambda text: text + "!", ["text"], ["loud"])
    assert module(td)["loud"] == "foo!"
    assert module(text="bar") == "bar!"
