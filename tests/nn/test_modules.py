"""Modules of tensors in a collection, one and several."""

import pytest
import torch
from torch import nn

import tensordict
from tensordict import LazyStackedTensorDict, TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
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


def test_module_that_fails_says_what_it_was_given():
    module = TensorDictModule(nn.Linear(3, 4), in_keys=["a"], out_keys=["z"])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        module(TensorDict(a=torch.ones(7)))
    assert "Linear with 'a' of shape [7]" in caught.value.__notes__[0]
    assert "weight of shape [4, 3]" in caught.value.__notes__[0]


def test_function_that_fails_says_what_it_was_given():
    module = TensorDictModule(torch.dot, in_keys=["a", ("n", "b")], out_keys=["z"])
    with pytest.raises(RuntimeError) as caught:
        module(TensorDict(a=torch.ones(7), n={"b": torch.ones(3)}))
    assert (
        "dot with 'a' of shape [7], ('n', 'b') of shape [3]"
        in caught.value.__notes__[0]
    )


def test_copied_parameters_of_another_shape_change_nothing():
    module = nn.Sequential(nn.Linear(3, 4))
    before = module[0].bias.detach().clone()
    wrong = TensorDict({"0": {"bias": torch.zeros(4), "weight": torch.zeros(5, 3)}})
    with pytest.raises(
        RuntimeError, match=r"Sequential.0.weight has the shape \[4, 3\]"
    ):
        wrong.to_module(module, inplace=True)
    assert (module[0].bias == before).all()


def test_tolerant_sequence_meets_the_members_that_have_the_inputs():
    double = TensorDictModule(lambda x: 2 * x, in_keys=["a"], out_keys=["z"])
    inner = [TensorDict(a=torch.ones(2)), TensorDict(b=torch.ones(2))]
    stack = LazyStackedTensorDict(
        LazyStackedTensorDict(*inner), LazyStackedTensorDict(*inner[::-1])
    )
    assert TensorDictSequential(double, partial_tolerant=True)(stack) is stack
    assert [sorted(member.keys()) for member in inner] == [["a", "z"], ["b"]]


class Registered(TensorDictModule):
    """A module that asks for its keys while it is made, as clients' modules do."""

    def __init__(self, module, in_keys, out_keys, inplace=True):
        super().__init__(module, in_keys, out_keys, inplace=inplace)
        self.registered = list(self.out_keys)


class RegisteredSequence(TensorDictSequential, Registered):
    def __init__(self, *modules, partial_tolerant=False):
        super().__init__(*modules, partial_tolerant=partial_tolerant)


class RegisteredActor(ProbabilisticTensorDictSequential, RegisteredSequence):
    def __init__(self, *modules, partial_tolerant=False):
        super().__init__(*modules, partial_tolerant=partial_tolerant)


@pytest.mark.parametrize("cls", [RegisteredSequence, RegisteredActor])
def test_sequence_cooperates_with_the_other_bases_of_its_class(cls, td):
    sequence = cls(TensorDictModule(increment, in_keys=["a"], out_keys=["z"]))
    assert sequence.registered == ["z"]
    assert (sequence(td)["z"] == 1).all()


def test_selected_sequence_that_fails_leaves_the_input_as_it_was(td):
    module = TensorDictSequential(
        TensorDictModule(increment, ["a"], ["x"]),
        TensorDictModule(lambda x: x / "2", ["x"], ["y"]),
        selected_out_keys=["y"],
    )
    with pytest.raises(TypeError):
        module(td)
    assert list(td.keys()) == ["a", "n"]


def test_edit_that_drops_a_selected_output_changes_nothing(td):
    module = TensorDictSequential(
        TensorDictModule(increment, ["a"], ["x"]),
        TensorDictModule(increment, ["x"], ["y"]),
        selected_out_keys=["y"],
    )
    with pytest.raises(ValueError, match=r"remove the selected out_keys \['y'\]"):
        module[1] = TensorDictModule(increment, ["x"], ["z"])
    assert len(module) == 2
    assert module(td)["y"].tolist() == [2, 2, 2]


class Sum(TensorDictModuleBase):
    in_keys = ["a", "b"]  # noqa: RUF012
    out_keys = ["c"]  # noqa: RUF012

    @dispatch
    def forward(self, tensordict):
        result = tensordict["a"] + tensordict["b"]
        return tensordict.set("d" if result.ndim else "c", result)


class _OwnKeys(TensorDictModuleBase):
    """A module with a property of its own in the place of ``out_keys``."""

    in_keys = ["x"]

    def __init__(self):
        super().__init__()
        self.written = ["a", "b", "c"]

    @property
    def out_keys(self):
        return self.written

    @out_keys.setter
    def out_keys(self, value):
        self.written = value

    @dispatch
    def forward(self, tensordict):
        for number, key in enumerate("abc"):
            tensordict.set(key, tensordict["x"] + number)
        return tensordict


def test_selection_reaches_a_property_of_the_subclass():
    module = _OwnKeys()
    assert module.select_out_keys("a", "b") is module
    assert module.out_keys == ["a", "b"]
    assert len(module(torch.zeros(()))) == 2
    assert set(module(TensorDict(x=torch.zeros(()))).keys()) == {"x", "a", "b"}
    module.select_out_keys("b")
    assert module(torch.zeros(())) == 1
    with pytest.raises(ValueError, match="non existent key: c"):
        module.select_out_keys("c")
    assert module.reset_out_keys().out_keys == ["a", "b", "c"]
    assert len(module(torch.zeros(()))) == 3
    module.select_out_keys("a").out_keys = ["b"]
    assert module.reset_out_keys().out_keys == ["b"]


def test_property_without_a_setter_refuses_a_selection():
    class ReadOnly(_OwnKeys):
        @property
        def out_keys(self):
            return ["a", "b", "c"]

    module = ReadOnly()
    with pytest.raises(RuntimeError, match="does not support select_out_keys"):
        module.select_out_keys("a")
    assert len(module(torch.zeros(()))) == 3
    assert module.reset_out_keys() is module


def notes_of(module, td, kind=RuntimeError) -> str:
    with pytest.raises(kind) as raised:
        module(td)
    return "\n".join(getattr(raised.value, "__notes__", []))


@pytest.mark.parametrize("way", ["plain", "partial", "selecting", "not in place"])
def test_errors_in_a_sequence_say_at_which_module(way):
    options = {
        "plain": {},
        "partial": {"partial_tolerant": True},
        "selecting": {"selected_out_keys": ["c"]},
        "not in place": {"inplace": False},
    }[way]
    first = TensorDictModule(nn.Linear(2, 2), ["a"], ["b"])
    second = TensorDictModule(nn.Linear(3, 2), ["b"], ["c"])
    td = TensorDict(a=torch.rand(3, 2), batch_size=[3])
    notes = notes_of(TensorDictSequential(first, second, **options), td)
    assert "called Linear with 'b' of shape [3, 2]" in notes
    assert "Failed while executing module '1'." in notes
    named = TensorDictSequential({"one": first, "two": second}, **options)
    assert "Failed while executing module 'two'." in notes_of(named, td)
    nested = TensorDictSequential(named, **options)
    notes = notes_of(nested, td)
    assert notes.index("module 'two'") < notes.index("module '0'")


@pytest.mark.parametrize("inplace", [True, "empty"])
def test_outputs_that_do_not_fit_name_the_module(inplace):
    module = TensorDictModule(lambda a: (a, a[0]), ["a"], ["b", "c"], inplace=inplace)
    notes = notes_of(module, TensorDict(a=torch.rand(3, 2), batch_size=[3]))
    assert notes == (
        "TensorDictModule writes the outputs of <lambda> to out_keys=['b', 'c']."
    )


class OfWidth(TensorDictSequential):
    """A sequence of a user, whose constructor takes no modules."""

    def __init__(self, width: int) -> None:
        super().__init__(
            TensorDictModule(nn.Linear(2, width), ["x"], ["y"]),
            TensorDictModule(nn.Linear(width, 2), ["y"], ["z"]),
        )


def test_a_part_of_a_users_sequence_has_the_modules_that_were_asked_for():
    sequence = OfWidth(3)
    for part in (sequence.select_subsequence(out_keys=["y"]), sequence[:1]):
        assert type(part) is TensorDictSequential
        assert [module.out_keys for module in part] == [["y"]]
        assert part[0] is sequence[0]


def test_a_users_sequence_stays_whole_inside_of_another():
    inner = OfWidth(3)
    outer = TensorDictSequential(inner, TensorDictModule(increment, ["z"], ["w"]))
    for part in (
        outer.select_subsequence(out_keys=["y"]),
        outer.select_subsequence(in_keys=["x"], out_keys=["z"]),
    ):
        assert list(part) == [inner]
