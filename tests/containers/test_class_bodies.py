"""The body of a tensorclass: what it declares, and what of a dataclass stays."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import types
from dataclasses import InitVar, field
from typing import ClassVar, NotRequired, Optional

import numpy as np
import pytest
import torch
from torch import Tensor

from tensordict import (
    TensorClass,
    TensorDict,
    TypedTensorDict,
    lazy_stack,
    set_printoptions,
    tensorclass,
)


class Point(TensorClass):
    a: Tensor
    b: Tensor | None = None
    s: str = "x"


@tensorclass
class Decorated:
    a: Tensor
    b: Tensor = None
    s: str = "x"


FORMS = pytest.mark.parametrize("cls", [Point, Decorated])


def by_decorator(option):
    body = {"__annotations__": {"a": Tensor}}
    return tensorclass(**{option: True})(type("Made", (), body))


def by_keyword(option):
    return types.new_class("Made", (TensorClass,), {option: True}, _annotate)


def by_brackets(option):
    return types.new_class("Made", (TensorClass[option],), {}, _annotate)


def _annotate(body):
    body["__annotations__"] = {"a": Tensor}


@pytest.mark.parametrize("form", [by_decorator, by_keyword, by_brackets])
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("autocast", (Tensor, Tensor)),
        ("nocast", (np.ndarray, int)),
        ("frozen", (dataclasses.FrozenInstanceError, dataclasses.FrozenInstanceError)),
        ("shadow", (Tensor, Tensor)),
        ("tensor_only", (Tensor, Tensor)),
    ],
)
def test_each_option_in_each_form(form, option, expected):
    cls = form(option)
    found = []
    for value in (np.ones(2), 3):
        data = cls(torch.zeros(2), batch_size=[])
        try:
            data.a = value
        except AttributeError as error:
            found.append(type(error))
        else:
            found.append(type(data.a))
    assert tuple(found) == expected
    assert cls(torch.zeros(2)).is_locked is (option == "frozen")


def test_options_are_inherited():
    class Base(TensorClass["nocast", "frozen"]):
        i: int

    class Child(Base):
        j: int = 1

    child = Child(3, batch_size=[])
    assert (child.i, child.j) == (3, 1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign"):
        child.j = 2


def test_postponed_annotations_name_what_is_local():
    class Inner(TensorClass):
        z: Tensor

    def made_in_a_function():
        class Leaf(TensorClass):
            q: Tensor

        @tensorclass
        class Outer:
            n: Inner
            p: Optional[Leaf] = None  # noqa: UP045 - as it is written in programs
            i: int = 3

        class Schema(TypedTensorDict):
            a: Tensor
            n: NotRequired[Inner]

        return Leaf, Outer, Schema

    leaf, outer, schema = made_in_a_function()
    made = outer.from_dict({"n": {"z": torch.ones(2)}, "p": {"q": torch.ones(2)}})
    assert type(made.n) is Inner
    assert type(made.p) is leaf
    assert outer(made.n).i == 3
    nested = TensorDict(n=TensorDict(z=torch.ones(2)))
    assert type(outer.from_tensordict(nested).n) is Inner
    assert schema.__required_keys__ == {"a"}
    assert schema.__optional_keys__ == {"n"}


def test_a_name_that_is_nowhere_says_nothing():
    class Data(TensorClass):
        a: Tensor
        n: Unknown = None  # noqa: F821

    data = Data(torch.zeros(2), batch_size=[2])
    data.n = torch.ones(2)
    assert data.n.sum() == 2


def test_class_variables_and_arguments_are_no_fields():
    class Data(TensorClass):
        a: Tensor
        factor: InitVar[int] = 3
        count: ClassVar[int] = 4

        def __post_init__(self, factor):
            self.a = self.a * factor

    assert [each.name for each in dataclasses.fields(Data)] == ["a"]
    assert Data(torch.ones(2)).a.tolist() == [3, 3]
    data = Data(torch.ones(2), 5, batch_size=[2])
    assert data.a.tolist() == [5, 5]
    assert data[0].count == 4


def test_default_factories_are_called_for_each_instance():
    class Data(TensorClass):
        a: Tensor
        t: Tensor = field(default_factory=lambda: torch.zeros(2))

    one, other = Data(torch.ones(2)), Data(torch.ones(2))
    assert one.t is not other.t


def test_a_field_may_be_left_out_of_repr():
    class Data(TensorClass):
        a: Tensor
        hidden: Tensor = field(default=None, repr=False)

    data = Data(torch.zeros(2))
    for each in (data, TensorDict(x=data), lazy_stack([data, data])):
        assert "hidden" not in repr(each)
        with set_printoptions(compact=True):
            assert "hidden" not in repr(each)
    data.hidden = torch.ones(2)
    assert "a=" in repr(data)
    assert "hidden" not in repr(data)
    assert list(data.keys()) == ["a", "hidden"]


def test_torch_functions_of_shadowed_members():
    class Data(TensorClass["shadow"]):
        a: Tensor
        clone: Tensor | None = None
        view: Tensor | None = None

    data = Data(torch.arange(2), clone=torch.ones(2), batch_size=[2])
    copied = torch.clone(data)
    assert type(copied) is Data
    assert copied.a.data_ptr() != data.a.data_ptr()
    assert torch.unsqueeze(data, 0).clone.shape == (1, 2)


@pytest.mark.parametrize(
    "name", ["_plain_fields", "_declares_for_subclasses", "_ordered_fields", "_tensor"]
)
def test_private_names_are_accepted(name):
    cls = tensorclass(
        type("Made", (), {"__annotations__": {name: Tensor, "a": Tensor}})
    )
    made = cls(torch.zeros(2), torch.ones(2), batch_size=[2])
    setattr(made, name, torch.full((2,), 3.0))
    assert getattr(made.clone()[0], name) == 3


@FORMS
def test_it_stays_a_dataclass(cls):
    data = cls(torch.zeros(2), batch_size=[2])
    assert dataclasses.is_dataclass(cls)
    assert dataclasses.is_dataclass(data)
    assert cls.__match_args__ == ("a", "b", "s")
    assert [(each.name, each.default) for each in cls.fields()[1:]] == [
        ("b", None),
        ("s", "x"),
    ]
    assert dataclasses.asdict(data)["s"] == "x"
    assert dataclasses.astuple(data)[1:] == (None, "x")
    replaced = dataclasses.replace(data, s="y")
    assert type(replaced) is cls
    assert (replaced.s, data.s) == ("y", "x")
    match data:
        case Point(a, b, s) | Decorated(a, b, s):
            assert a is data.a
            assert (b, s) == (None, "x")
        case _:
            pytest.fail("no case matches")


@FORMS
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(cls, protocol):
    data = cls(torch.arange(2), s="z", batch_size=[2], names=["time"])
    joined = (data, torch.stack([data, cls(torch.ones(2), batch_size=[2])]))
    for each in (*joined, lazy_stack([data, data]), data.clone().lock_()):
        loaded = pickle.loads(pickle.dumps(each, protocol))
        assert type(loaded) is cls
        assert (loaded.a == each.a).all()
        assert (loaded.names, loaded.is_locked) == (each.names, each.is_locked)
        assert loaded.s == each.s
    assert pickle.loads(pickle.dumps(cls, protocol)) is cls
    assert copy.deepcopy(data).s == "z"


def test_generated_methods_of_a_dataclass_below():
    @dataclasses.dataclass
    class Plain:
        a: Tensor

        def doubled(self):
            return self.a * 2

    @tensorclass
    class Data(Plain):
        b: Tensor | None = None

    data = Data(torch.ones(2), torch.ones(2), batch_size=[2])
    assert [each.name for each in dataclasses.fields(Data)] == ["a", "b"]
    assert data[0].doubled() == 2


def test_several_classes_are_inherited():
    class First(TensorClass):
        a: Tensor

    class Second(TensorClass):
        b: Tensor

    class Mixin:
        def both(self):
            return self.a + self.b

    class Data(Mixin, First, Second):
        c: Tensor | None = None

    data = Data(b=torch.ones(2), a=torch.ones(2), batch_size=[2])
    assert {each.name for each in dataclasses.fields(Data)} == {"a", "b", "c"}
    assert data[0].both() == 2
