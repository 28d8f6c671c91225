"""Tensorclasses: fields, options, and that all operations give the class back."""

from __future__ import annotations

import collections
import copy
import dataclasses
import inspect
import pickle
import types
import weakref
from typing import Any, ClassVar, Generic, NotRequired, TypeVar

import pytest
import torch

from tensordict import (
    TensorClass,
    TensorCollection,
    TensorDict,
    TensorDictBase,
    TypedTensorDict,
    assert_close,
    is_tensor_collection,
    is_tensorclass,
    tensorclass,
)
from tensordict.prototype import tensorclass as early_tensorclass


class Inner(TensorClass):
    z: torch.Tensor


class Data(TensorClass):
    a: torch.Tensor
    b: torch.Tensor | None = None
    n: Inner | None = None

    def doubled(self):
        return self.a * 2

    @property
    def total(self):
        return self.a.sum()


@tensorclass
class Decorated:
    """A class of the decorator form."""

    a: torch.Tensor
    b: torch.Tensor = None
    kind: ClassVar[str] = "decorated"

    def own_class(self):
        return __class__, super().clone()  # noqa: F821 - the cell of the class body


@pytest.fixture(params=[Data, Decorated])
def data(request):
    return request.param(torch.arange(6.0).view(3, 2), batch_size=[3])


def test_is_a_collection_and_no_tensordict(data):
    assert isinstance(data, TensorCollection)
    assert not isinstance(data, TensorDictBase)
    assert is_tensorclass(data)
    assert is_tensorclass(type(data))
    assert is_tensor_collection(data)
    assert early_tensorclass is tensorclass


def test_state_is_one_container(data):
    assert set(vars(data)) == {"_tensordict", "_non_tensordict", "_is_initialized"}
    assert type(data._tensordict) is TensorDict
    assert data._tensordict["a"] is data.a


def test_fields_are_attributes(data):
    assert data.b is None
    data.b = torch.ones(3)
    assert data.get("b") is data.b
    data.b = None
    assert data.b is None
    assert list(data.keys()) == ["a"]
    with pytest.raises(AttributeError, match="Cannot set the attribute 'c'"):
        data.c = torch.ones(3)
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        data.b = torch.ones(4)
    assert data.b is None


def test_strings_are_no_index(data):
    with pytest.raises(ValueError, match="Invalid indexing arguments: 'a'"):
        data["a"]
    with pytest.raises(ValueError, match="Invalid indexing arguments: 'a'"):
        data["a"] = torch.ones(3)


def test_decorated_methods_see_their_class():
    data = Decorated(torch.zeros(3), batch_size=[3])
    cls, copied = data.own_class()
    assert cls is Decorated
    assert type(copied) is Decorated
    assert Decorated.kind == "decorated"
    assert Decorated.__doc__ == "A class of the decorator form."


@pytest.mark.parametrize(
    "operation",
    [
        lambda tc: tc[0],
        lambda tc: tc[tc.a[:, 0] > 0],
        lambda tc: tc.view(3, 1),
        lambda tc: tc.clone(),
        lambda tc: tc.clone(False),
        lambda tc: tc + 1,
        lambda tc: tc == tc,
        lambda tc: tc.apply(lambda leaf: leaf + 1),
        lambda tc: tc.to(torch.float64),
        lambda tc: tc.select("a"),
        lambda tc: tc.sum(0),
        lambda tc: tc.unbind(0)[0],
        lambda tc: tc.split(2)[0],
        lambda tc: torch.stack([tc, tc]),
        lambda tc: torch.cat([tc, tc]),
        lambda tc: torch.stack([tc, tc.to_tensordict()]),
        lambda tc: copy.copy(tc),
        lambda tc: copy.deepcopy(tc),
        lambda tc: pickle.loads(pickle.dumps(tc)),  # noqa: S301
        lambda tc: tc.lock_(),
        lambda tc: TensorDict(x=tc, batch_size=[3])["x"],
        lambda tc: TensorDict(x=tc, batch_size=[3]).view(3, 1)["x"],
    ],
)
def test_operations_give_the_class(data, operation):
    result = operation(data)
    assert type(result) is type(data)
    assert "a" in list(result.keys())


def test_locked_with_the_container_that_holds_it(data):
    td = TensorDict(x=data, batch_size=[3]).lock_()
    assert data.is_locked
    with pytest.raises(RuntimeError, match="Cannot modify locked"):
        data.b = torch.ones(3)
    with pytest.raises(RuntimeError, match="part of a locked graph"):
        data.unlock_()
    td.unlock_()
    assert not data.is_locked
    data.b = torch.ones(3)


def test_nested_fields():
    data = Data(
        torch.zeros(3, 2), n=Inner(torch.ones(3, 4), batch_size=[3]), batch_size=[3]
    )
    assert type(data.n) is Inner
    assert type(data[0].n) is Inner
    assert data[0].n.z.shape == (4,)
    assert data.get(("n", "z")) is data.n.z
    data.set(("n", "z"), torch.zeros(3))
    assert data.n.z.shape == (3,)
    assert set(data.keys(True, True)) == {"a", ("n", "z")}


def test_defaults_and_init():
    class Full(TensorClass):
        a: torch.Tensor
        iv: dataclasses.InitVar[int] = 5
        d: torch.Tensor = dataclasses.field(default_factory=lambda: torch.ones(()))
        e: torch.Tensor | None = dataclasses.field(init=False, default=None)
        k: torch.Tensor | None = dataclasses.field(kw_only=True, default=None)

        def __post_init__(self, iv):
            self.e = torch.full((), float(iv))

    full = Full(torch.zeros(()), 6)
    assert full.e == 6
    assert full.d == 1
    assert full.k is None
    assert [field.name for field in dataclasses.fields(Full)] == ["a", "d", "e", "k"]
    assert Full(torch.zeros(())).e == 5
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        Full()
    with pytest.raises(AttributeError, match="Cannot set the attribute 'q'"):
        Full(torch.zeros(()), q=1)


def test_inheritance_adds_fields():
    class More(Data):
        c: torch.Tensor | None = None

    @tensorclass
    class Again(Decorated):
        c: torch.Tensor = None

    for cls in (More, Again):
        more = cls(torch.zeros(3), c=torch.ones(3), batch_size=[3])
        assert more[0].c == 1
        assert issubclass(cls, (Data, Decorated))


def test_generic_classes():
    T = TypeVar("T")

    class Box(TensorClass, Generic[T]):
        a: T

    assert Box[int](torch.zeros(3), batch_size=[3]).a.shape == (3,)


def test_reserved_names():
    with pytest.raises(AttributeError, match="Attribute name keys can't be used"):

        class Refused(TensorClass):
            keys: torch.Tensor

    class Shadowing(TensorClass["shadow"]):
        keys: torch.Tensor

    assert Shadowing(torch.ones(3), batch_size=[3]).keys.shape == (3,)

    class Accepted(TensorClass):
        data: torch.Tensor
        mask: torch.Tensor
        fields: torch.Tensor
        step: torch.Tensor
        T: torch.Tensor
        name: torch.Tensor
        index: torch.Tensor

    accepted = Accepted(*[torch.full((3,), float(i)) for i in range(7)], batch_size=[3])
    assert accepted[0].index == 6
    assert accepted.clone().data.sum() == 0


def test_options():
    with pytest.raises(TypeError, match="autocast is exclusive with nocast"):
        TensorClass["nocast", "autocast"]
    with pytest.raises(TypeError, match="only accepts the flags"):
        TensorClass["unknown"]

    class Frozen(TensorClass, frozen=True):
        a: torch.Tensor

    frozen = Frozen(torch.zeros(3), batch_size=[3])
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign"):
        frozen.a = torch.ones(3)
    with pytest.raises(TypeError, match="tensor_only requires types"):

        @tensorclass(tensor_only=True)
        class Only:
            a: str


def test_load_state_dict_without_a_nested_class_unsets_it():
    class Nested(TensorClass):
        a: torch.Tensor
        n: Any = None

    for flatten in (False, True):
        plain = Nested(torch.ones(2), batch_size=[2])
        data = Nested(torch.zeros(2), n=plain.clone(), batch_size=[2])
        data.load_state_dict(plain.state_dict(flatten=flatten))
        assert data.n is None
        assert data.a.tolist() == [1, 1]
        assert set(data.clone().keys()) == {"a"}


def test_from_tensordict_checks_keys():
    td = TensorDict(a=torch.zeros(3), c=torch.zeros(3), batch_size=[3])
    with pytest.raises(ValueError, match="do not belong to the class"):
        Data.from_tensordict(td)
    data = Data.from_tensordict(td.select("a"))
    assert data.a is td["a"]
    assert type(data.to_tensordict()) is TensorDict


def test_weak_references(data):
    reference = weakref.ref(data)
    assert reference() is data


def test_user_members():
    data = Data(torch.ones(3), batch_size=[3])
    assert data.doubled().sum() == 6
    assert data.total == 3


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, True, 1),
        (int, "3", 3),
        (int, {"k": 1}, {"k": 1}),
        (float, 3, 3.0),
        (str, 3, "3"),
        (list, (1, 2), [1, 2]),
    ],
)
def test_autocast_gives_the_type_of_the_annotation(annotation, value, expected):
    namespace = {"__annotations__": {"x": annotation}}
    cast = tensorclass(autocast=True)(type("Cast", (), namespace))
    found = cast(value, batch_size=[2]).x
    assert found == expected
    assert type(found) is type(expected)


def test_autocast_of_a_nested_class_takes_its_fields():
    namespace = {"__annotations__": {"n": Decorated}}
    cast = tensorclass(autocast=True)(type("Cast", (), namespace))
    for value in ({"a": torch.ones(2)}, TensorDict(a=torch.ones(2), batch_size=[2])):
        found = cast(value, batch_size=[2]).n
        assert type(found) is Decorated
        assert (found.a == 1).all()
        assert found.b is None


def test_numbers_of_an_optional_field_stay_in_a_batch():
    namespace = {"__annotations__": {"k": int | None}}
    made = tensorclass(type("Made", (), namespace))
    assert made(3, batch_size=[2])[0].k == 3
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        made(1.5, batch_size=[2])


def test_entries_come_in_the_order_of_the_arguments():
    class Three(TensorClass):
        a: torch.Tensor
        b: torch.Tensor | None = None
        c: str = "text"

    x = torch.zeros(2)
    assert list(Three(x, c="c", b=x, batch_size=[2]).keys()) == ["c", "b", "a"]
    assert list(Three(b=x, a=x, batch_size=[2]).keys()) == ["b", "a", "c"]
    with pytest.raises(ValueError, match="The key a is already set in kwargs"):
        Three(x, a=x)
    assert Three(x, lock=True).is_locked


def test_methods_do_not_meet_names_of_fields():
    @tensorclass(shadow=True)
    class Odd:
        items: torch.Tensor
        shape: torch.Tensor | None = None
        update: torch.Tensor | None = None

    x = torch.zeros(2, 3)
    odd = Odd(x, x, x, batch_size=[2])
    assert odd.new_tensor(1).items.shape == ()
    assert (odd.apply(lambda leaf: leaf + 1).update == 1).all()
    assert torch.stack([odd, odd.clone()]).items.shape == (2, 2, 3)
    assert odd.update_at_({"items": torch.ones(3)}, 0).items[0].sum() == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.set_non_tensor("z", "x"),
        lambda data: data.setdefault(("z", "y"), torch.zeros(3)),
        lambda data: data.setdefault("z", torch.zeros(3)),
        lambda data: data.rename_key_("a", "z"),
        lambda data: data.update(TensorDict(z=torch.zeros(3), batch_size=[3])),
    ],
)
def test_an_entry_that_is_no_field_is_kept_and_in_no_other_instance(data, change):
    change(data)
    assert "z" in data.keys()
    assert data.get("z") is not None
    assert "z" in data.to_tensordict()
    for make in (
        lambda: data[0],
        lambda: data.clone(),
        lambda: data.unsqueeze(0),
        lambda: torch.stack([data, data]),
        lambda: data.replace(a=torch.zeros(3)),
    ):
        with pytest.raises(ValueError, match="Keys from the tensordict"):
            make()
    data.del_("z")
    assert isinstance(data[0], type(data))


def test_fields_alone_are_set_by_their_names(data):
    before = list(data.keys())
    for change in (
        lambda: data.set("z", torch.zeros(3)),
        lambda: data.set(("z", "y"), torch.zeros(3)),
        lambda: data.set(("a", "y"), torch.zeros(3)),
        lambda: data.rename_keys({"a": "z"}),
    ):
        with pytest.raises(AttributeError, match="field"):
            change()
    assert list(data.keys()) == before


def test_a_dataclass_below_or_above_does_not_take_over():
    @dataclasses.dataclass
    class Base:
        a: torch.Tensor

    @tensorclass
    class Child(Base):
        b: torch.Tensor = None

    @dataclasses.dataclass
    @tensorclass
    class Above:
        a: torch.Tensor

    for cls in (Child, Above):
        made = cls(torch.zeros(3), batch_size=[3])
        assert "batch_size=torch.Size([3])" in repr(made)
        assert bool((made == made).a.all())


def test_a_key_that_is_not_required_may_be_left_out():
    class State(TypedTensorDict):
        a: torch.Tensor
        b: NotRequired[torch.Tensor]
        c: "NotRequired[torch.Tensor]"  # noqa: UP037 - a text is resolved

    assert State.__required_keys__ == {"a"}
    assert State.__optional_keys__ == {"b", "c"}
    assert list(State(a=torch.zeros(3), batch_size=[3]).keys()) == ["a"]


def test_a_class_over_a_stack_is_compared_as_a_member_of_a_stack():
    inner = Inner(torch.zeros(3), batch_size=[3])
    over = TensorDict.lazy_stack([inner, inner])
    other = TensorDict(z=torch.zeros(2, 3, 4), batch_size=[2, 3])
    mixed = TensorDict.lazy_stack([over, other])

    same = mixed == mixed.clone()

    assert isinstance(same[0], Inner)
    assert same[0].batch_size == torch.Size([2, 3])
    assert bool(same.all())
    assert not bool((mixed == mixed.apply(lambda x: x + 1)).any())


def test_a_typed_dictionary_of_an_instance_is_what_that_holds():
    class Frozen(TensorClass, frozen=True):
        a: torch.Tensor

    class State(TypedTensorDict):
        a: torch.Tensor

    data = Inner(torch.zeros(3), batch_size=[3])
    assert State.from_tensordict(data, check=False)["z"] is data.z
    assert State.from_tensordict(Frozen(torch.zeros(3), batch_size=[3])).is_locked
    State.from_tensordict(data, check=False)["z"] = torch.ones(3)
    assert data.z.tolist() == [1.0, 1.0, 1.0]


class Hiding(TensorClass, shadow=True):
    a: torch.Tensor
    items: torch.Tensor = None


def test_a_view_is_updated_with_a_class_whose_field_hides_a_method():
    td = TensorDict(n=Hiding(torch.zeros(2), batch_size=[2]), batch_size=[2])
    one = TensorDict(n=Hiding(torch.ones(())))
    td._get_sub_tensordict(0).update_(one)
    assert td["n"].a.tolist() == [1.0, 0.0]


class Noted(TensorClass):
    x: torch.Tensor
    notes: list[Any] = dataclasses.field(default_factory=list)
    n: int = 0
    f: float | None = None
    either: int | str = 0


@pytest.mark.parametrize("size", [[], [3]])
def test_numbers_stay_numbers_whatever_the_batch_size(size):
    for noted in (
        Noted(torch.zeros(3), n=2, f=1.5, batch_size=size),
        Noted(torch.zeros(3), batch_size=size).update({"n": 2, "f": 1.5}),
        Noted(torch.zeros(3), batch_size=size).replace(n=2, f=1.5),
        Noted.from_dict({"x": torch.zeros(3), "n": 2, "f": 1.5}, batch_size=size),
        Noted.from_dict({"x": torch.zeros(3), "n": 2, "f": 1.5}),
    ):
        assert type(noted.n) is int
        assert (noted.n, noted.f) == (2, 1.5)


def test_numbers_of_fields_that_may_be_something_else():
    assert Noted(torch.zeros(3), either=2).either == 2
    assert Noted(torch.zeros(3), either=2, batch_size=[3])[0].either == 2
    assert isinstance(Data(torch.zeros(3), 2).b, torch.Tensor)


@pytest.mark.parametrize("size", [[], [3], [3, 1]])
@pytest.mark.parametrize("notes", [[], [1, 2], [[1], [2]]])
def test_a_list_that_is_no_column_is_one_value(size, notes):
    x = torch.zeros(3, 1)
    for noted in (
        Noted(x, notes, batch_size=size),
        Noted(x, batch_size=size).update({"notes": notes}),
        Noted(x, batch_size=size).set("notes", notes),
        Noted.from_dict({"x": x, "notes": notes}, batch_size=size),
    ):
        assert noted.notes == notes
        assert noted.batch_size == torch.Size(size)
    if size:
        assert Noted(x, notes, batch_size=size)[0].notes == notes


def test_a_list_with_an_item_for_each_row_is_a_column():
    noted = Noted(torch.zeros(2), ["a", "b"], batch_size=[2])
    assert noted[1].notes == "b"
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        Data(torch.zeros(2), [1, 2, 3], batch_size=[2])


class TensorsOnly(TensorClass["tensor_only"]):
    t: TensorDict


@pytest.mark.parametrize(
    "wrap",
    [dict, collections.UserDict, collections.ChainMap, types.MappingProxyType],
)
def test_tensor_only_takes_any_mapping(wrap):
    def mapping(key):
        return wrap({key: torch.zeros(2), "deep": wrap({"z": torch.ones(2)})})

    tensors = TensorsOnly(mapping("a"), batch_size=[2])
    assert sorted(tensors.t.keys(True, True), key=str) == [("deep", "z"), "a"]
    tensors.t = mapping("b")
    assert "a" not in tensors.t.keys()
    tensors.set("t", mapping("c"))
    tensors.update({"t": mapping("d")}).update(wrap({"t": mapping("e")}))
    assert set(tensors.t.keys()) == {"c", "d", "e", "deep"}
    tensors.update_(wrap({"t": mapping("c")}))
    other = dataclasses.replace(tensors, t=mapping("f"))
    assert (set(other.t.keys()), other.batch_size) == ({"f", "deep"}, (2,))
    assert "g" in tensors.replace(t=mapping("g")).t.keys()


def test_dataclasses_replace_keeps_batch_size_device_and_names():
    noted = Noted(torch.zeros(2), n=1, batch_size=[2], device="cpu", names=["time"])
    other = dataclasses.replace(noted, n=2)
    assert (other.n, other.notes, other.x is noted.x) == (2, [], True)
    assert (other.batch_size, other.names) == ((2,), ["time"])
    assert other.device == torch.device("cpu")
    wider = dataclasses.replace(noted, x=torch.zeros(3), batch_size=[3])
    assert wider.batch_size == (3,)
    names = [field.name for field in dataclasses.fields(noted)]
    assert names == ["x", "notes", "n", "f", "either"]
    assert list(dataclasses.asdict(Noted(torch.zeros(2)))) == names


@pytest.mark.parametrize("is_decorated", [False, True])
def test_the_constructor_calls_set_attribute_of_the_class(is_decorated):
    seen = []

    class Watched(object if is_decorated else TensorClass):
        x: torch.Tensor
        n: int = 3

        def __setattr__(self, name, value):
            seen.append(name)
            super().__setattr__(name, value)

    if is_decorated:
        Watched = tensorclass(Watched)  # noqa: N806
    watched = Watched(torch.zeros(2), batch_size=[2])
    assert seen == ["x", "n"]
    assert (watched.x.shape, watched.n) == ((2,), 3)
    watched[0].clone()
    assert len(seen) == 2


def test_get_gives_attributes_of_the_collection():
    data = Data(torch.zeros(2), batch_size=[2])
    assert data.get("batch_size") == (2,)
    assert data.get("device", "none") == "none"
    assert data.get("names") == [None]
    assert data.get("keys", "none") == "none"


def test_signatures_have_defaults():
    class Own(TensorClass):
        x: torch.Tensor

        def __init__(self, x, scale=2, **kwargs):
            self.x = x * scale

    for cls in (Data, Own):
        parameters = inspect.signature(cls).parameters
        assert parameters["batch_size"].default is None
        assert cls.__doc__.startswith(f"{cls.__name__}(")
    assert Own(torch.ones(2), 3, batch_size=[2]).x.tolist() == [3, 3]


@tensorclass
class PartlySet:
    a: torch.Tensor
    b: torch.Tensor | None = None
    s: str | None = None


@pytest.mark.parametrize("nested", [False, True])
def test_compared_with_what_was_made_of_its_dictionary(nested):
    held = PartlySet(a=torch.ones(3), batch_size=[3])
    if nested:
        held = TensorDict(c=held, batch_size=[3])
    made = TensorDict.from_dict(held.to_dict(), batch_size=[3])
    for first, second in ((held, made), (made, held)):
        assert (first == second).all()
        assert not (first != second).any()
        assert_close(first, second)
    other = made.clone()
    (other["c"] if nested else other)["s"] = "text"
    with pytest.raises(KeyError, match="keys in tensordicts mismatch"):
        _ = held == other
    with pytest.raises(KeyError, match="keys in tensordicts mismatch"):
        _ = other == held
    # A collection has no fields.
    plain = TensorDict(a=torch.ones(3), batch_size=[3])
    with pytest.raises(KeyError, match="keys in tensordicts mismatch"):
        _ = plain == TensorDict(a=torch.ones(3), s=None, batch_size=[3])
