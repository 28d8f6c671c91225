"""Tensorclasses: declarations, options, and what is done with instances."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import types
from typing import Any, Optional

import numpy as np
import torch
from scenario import scenario

from tensordict import (
    MetaData,
    NonTensorData,
    TensorClass,
    TensorDict,
    lazy_stack,
    tensorclass,
)


@tensorclass
class Data:
    image: torch.Tensor
    label: Any = None


class Point(TensorClass):
    x: torch.Tensor
    y: Optional[torch.Tensor] = None  # noqa: UP045 - as older programs have it

    def norm(self):
        return (self.x**2 + self.y**2).sqrt()

    @property
    def doubled(self):
        return self * 2

    @classmethod
    def origin(cls, size):
        return cls(torch.zeros(size), torch.zeros(size), batch_size=[size])

    @staticmethod
    def unit():
        return 1.0


@tensorclass
class Pair:
    first: Data
    second: Point | None = None


class Tensors(TensorClass["tensor_only"]):
    inputs: TensorDict
    weight: torch.Tensor | None = None


@tensorclass
class Noted:
    x: torch.Tensor
    notes: list = dataclasses.field(default_factory=list)
    count: int = 0


# Declarations ---------------------------------------------------------------------------


@scenario
def fields_are_attributes():
    data = Data(torch.zeros(3, 4), "cat", batch_size=[3])
    data.image = torch.ones(3, 4)
    return data, data.label, data.image.shape, data.batch_size


@scenario
def arguments_by_name_and_position():
    data = Data(label="cat", image=torch.zeros(3), batch_size=[3], device="cpu")
    return data, Data(torch.zeros(2), batch_size=[2], names=["time"]).names


@scenario
def a_required_field_is_missing():
    return Data(label="cat", batch_size=[3])


@scenario
def an_argument_that_is_no_field():
    return Data(torch.zeros(3), colour=1, batch_size=[3])


@scenario
def a_field_of_another_batch_size():
    return Data(torch.zeros(3), batch_size=[4])


@scenario
def an_attribute_that_is_no_field():
    Data(torch.zeros(3), batch_size=[3]).colour = 1


@scenario
def a_field_with_the_name_of_a_method():
    @tensorclass
    class Bad:
        reshape: torch.Tensor

    return Bad


@scenario
def shadowing_the_name_of_a_method():
    @tensorclass(shadow=True)
    class Shadowing:
        reshape: torch.Tensor

    shadowing = Shadowing(torch.ones(2), batch_size=[2])
    return shadowing.reshape, shadowing[0].reshape


@scenario
def methods_properties_and_constructors():
    point = Point(torch.tensor([3.0]), torch.tensor([4.0]), batch_size=[1])
    return point.norm(), point.doubled.x, Point.origin(2), point.unit()


@scenario
def inheritance_of_the_base_class():
    class Point3(Point):
        z: torch.Tensor | None = None

    point = Point3(torch.ones(2), torch.ones(2), torch.ones(2), batch_size=[2])
    return point[0], isinstance(point, Point), point.norm()


@scenario
def inheritance_of_decorated_classes():
    @tensorclass
    class More(Data):
        score: torch.Tensor | None = None

    more = More(torch.ones(2), "cat", torch.zeros(2), batch_size=[2])
    return more, [field.name for field in dataclasses.fields(More)]


@scenario
def post_init_is_called():
    @tensorclass
    class Scaled:
        x: torch.Tensor

        def __post_init__(self):
            self.x = self.x * 2

    return Scaled(torch.ones(2), batch_size=[2]).x


@scenario
def a_class_with_an_init_of_its_own():
    @tensorclass
    class Ranged:
        x: torch.Tensor
        y: torch.Tensor

        def __init__(self, size):
            self.x = torch.arange(size)
            self.y = self.x + 1

    return Ranged(3, batch_size=[3])


@scenario
def set_attribute_of_the_class_sees_each_field():
    seen = []

    class Watched(TensorClass):
        x: torch.Tensor
        n: int = 0

        def __setattr__(self, name, value):
            seen.append(name)
            super().__setattr__(name, value)

    watched = Watched(torch.ones(2), batch_size=[2])
    watched.x = torch.zeros(2)
    watched[0].clone()
    return seen, watched.x


@scenario(
    reason="the release forgets the fields of a decorated class with a __setattr__",
    ours=lambda result: result[0] == ["x", "x"] and result[1].tolist() == [0.0, 0.0],
)
def set_attribute_of_a_decorated_class():
    seen = []

    @tensorclass
    class Watched:
        x: torch.Tensor

        def __setattr__(self, name, value):
            seen.append(name)
            super().__setattr__(name, value)

    watched = Watched(torch.ones(2), batch_size=[2])
    watched.x = torch.zeros(2)
    return seen, watched.x


@scenario(
    reason="`batch_size` has a default in our signature, as it has in the call",
    ours=lambda result: result[0].endswith("batch_size=None, device=None, names=None)"),
)
def signatures_have_defaults():
    return (
        str(inspect.signature(Noted)).replace(" -> None", ""),
        Data.__doc__ is not None,
    )


# Options --------------------------------------------------------------------------------


@scenario
def autocast_casts_to_the_annotation():
    @tensorclass(autocast=True)
    class Cast:
        x: torch.Tensor
        n: int
        s: str
        td: TensorDict | None = None

    cast = Cast(x=[1.0, 2.0], n="3", s=4, td={"a": torch.ones(2)}, batch_size=[2])
    return cast.x, cast.n, cast.s, type(cast.td).__name__


@scenario
def autocast_of_a_value_that_cannot_be_cast():
    class Cast(TensorClass["autocast"]):
        n: int

    return Cast(n="three")


@scenario
def nocast_keeps_numbers_and_arrays():
    class Kept(TensorClass["nocast"]):
        n: Any
        a: Any

    kept = Kept(3, np.ones(2))
    return type(kept.n).__name__, type(kept.a).__name__, kept.n


@scenario
def frozen_classes_cannot_be_written():
    @tensorclass(frozen=True)
    class Frozen:
        x: torch.Tensor

    frozen = Frozen(torch.ones(2), batch_size=[2])
    assert frozen.is_locked
    frozen.x = torch.zeros(2)


@scenario
def frozen_classes_replace():
    @tensorclass(frozen=True)
    class Frozen:
        x: torch.Tensor
        y: Any = None

    frozen = Frozen(torch.ones(2), "a", batch_size=[2])
    return frozen.replace(x=torch.zeros(2)), frozen.x


@scenario
def options_that_exclude_one_another():
    return TensorClass["autocast", "nocast"]


@scenario
def tensor_only_takes_dictionaries():
    tensors = Tensors({"a": torch.ones(2), "n": {"b": torch.zeros(2)}}, batch_size=[2])
    tensors.inputs = {"c": torch.ones(2)}
    return tensors, tensors[0].inputs["c"]


@scenario
def tensor_only_takes_mappings_of_any_type():
    mappings = (
        collections.UserDict(a=torch.ones(2)),
        collections.ChainMap({"a": torch.ones(2)}),
        types.MappingProxyType({"a": torch.ones(2)}),
        collections.OrderedDict(a=torch.ones(2)),
        {"n": types.MappingProxyType({"b": torch.ones(2)})},
    )
    return [Tensors(mapping, batch_size=[2]).inputs for mapping in mappings]


@scenario(
    reason="the release stores mappings that are no dictionaries as values in updates",
    ours=lambda result: (
        [sorted(each.keys()) for each in result] == [["b"], ["b", "c"], ["b", "c", "d"]]
    ),
)
def tensor_only_is_updated_with_mappings():
    tensors = Tensors({"a": torch.ones(2)}, batch_size=[2])
    seen = []
    tensors.inputs = types.MappingProxyType({"b": torch.ones(2)})
    seen.append(tensors.inputs.copy())
    tensors.update({"inputs": types.MappingProxyType({"c": torch.ones(2)})})
    seen.append(tensors.inputs.copy())
    tensors.update(
        types.MappingProxyType({"inputs": collections.ChainMap({"d": torch.ones(2)})})
    )
    seen.append(tensors.inputs.copy())
    return seen


@scenario
def tensor_only_refuses_other_annotations():
    class Bad(TensorClass["tensor_only"]):
        name: str

    return Bad


# Values ---------------------------------------------------------------------------------


@scenario(
    reason="in the release a list that is no column of rows is a mismatch of batch size",
    ours=lambda result: result == ([], [], ["a", "b"], [1, 2], ["a", "b"]),
)
def a_list_field_in_a_batch():
    noted = Noted(torch.ones(3), batch_size=[3])
    given = Noted(torch.ones(3), ["a", "b"], batch_size=[3])
    numbers = Noted(torch.ones(3), [1, 2], batch_size=[3])
    return noted.notes, noted[0].notes, given.notes, numbers.notes, given[0].notes


@scenario
def a_list_with_an_item_per_row():
    noted = Noted(torch.ones(2), ["a", "b"], batch_size=[2])
    return (
        noted.notes,
        noted[1].notes,
        Noted(torch.ones(2), [1, 2], batch_size=[2]).notes,
    )


@scenario(
    reason="a number of a field of numbers stays one without batch dims, too",
    ours=lambda result: result == (3, 3, 3, 4, [3, 3]),
)
def a_number_field_with_and_without_batch_dims():
    single = Noted(torch.ones(2), count=3)
    batch = Noted(torch.ones(2), count=3, batch_size=[2])
    first = single.count
    single.count = 4
    pair = torch.stack([batch[0], batch[1]])
    return first, batch.count, batch[0].count, single.count, list(pair.count)


@scenario
def numbers_in_fields_of_any_type():
    data = Data(torch.ones(2), 3)
    return data.label, Data(torch.ones(2), 2.5).label, Data(torch.ones(2), True).label


@scenario
def strings_none_and_objects():
    data = Data(torch.ones(2), {1, 2}, batch_size=[2])
    unset = Data(torch.ones(2), batch_size=[2])
    unset.label = "dog"
    unset.label = None
    return data.label, unset.label, list(unset.keys())


@scenario
def get_gives_fields_and_attributes():
    data = Data(torch.ones(2), "cat", batch_size=[2])
    return (
        data.get("label"),
        data.get("batch_size"),
        data.get("device"),
        data.get("x", 5),
    )


@scenario
def set_update_and_delete():
    data = Data(torch.ones(2), batch_size=[2])
    data.set("label", "a").update({"image": torch.zeros(2)})
    data.update_(Data(torch.full((2,), 4.0), "b", batch_size=[2]))
    label = data.label
    del data.label
    return data, label, data.label


@scenario
def metadata_and_values_as_fields():
    data = Data(torch.ones(2), NonTensorData("a", batch_size=[2]), batch_size=[2])
    other = Data(torch.ones(2), MetaData("b"), batch_size=[2])
    return data.label, other.label, torch.stack([other, other]).label


# Operations -----------------------------------------------------------------------------


@scenario
def operations_keep_the_class():
    data = Data(torch.arange(6.0).view(2, 3), "cat", batch_size=[2])
    results = [
        data[0],
        data[:1],
        data.unsqueeze(0),
        data.view(2, 1),
        data.reshape(1, 2),
        data.expand(3, 2),
        data + 1,
        data.to(torch.float64),
        data.apply(lambda x: x * 2),
        *data.unbind(0),
        *data.split(1),
    ]
    return [
        (type(each).__name__, list(each.batch_size), each.label) for each in results
    ]


@scenario
def stack_and_cat():
    one = Data(torch.zeros(2), "a", batch_size=[2])
    two = Data(torch.ones(2), "b", batch_size=[2])
    return torch.stack([one, two]), torch.cat([one, two]), torch.stack([one, one]).label


@scenario
def lazy_stacks_of_instances():
    stack = lazy_stack([Data(torch.zeros(2), "a"), Data(torch.ones(3), "b")])
    return stack.batch_size, stack.label, stack[1].image, type(stack).__name__


@scenario
def writing_at_an_index():
    data = Data(torch.zeros(3), "a", batch_size=[3])
    data[0] = Data(torch.ones(()), "b")
    data[1:] = 5.0
    return data.image, data.label


@scenario
def a_key_as_an_index_is_refused():
    return Data(torch.zeros(3), batch_size=[3])["image"]


@scenario
def comparisons():
    data = Data(torch.zeros(3), "a", batch_size=[3])
    return (data == data).all(), (data != data.clone() + 1).image, (data == 0).image


@scenario
def nested_classes():
    pair = Pair(
        Data(torch.zeros(2), "a", batch_size=[2]),
        Point(torch.ones(2), torch.ones(2), batch_size=[2]),
        batch_size=[2],
    )
    pair.set(("first", "label"), "z")
    return pair[0], pair.first.label, type(pair.clone().second).__name__


@scenario
def a_dtype_view_of_nested_classes():
    pair = Pair(
        Data(torch.ones(2, 4), batch_size=[2, 4]),
        Point(torch.ones(2, 4), batch_size=[2]),
        batch_size=[2],
    )
    viewed = pair.view(torch.uint8, batch_size=[2])
    whole = pair.view(torch.int32, batch_size=[2, 4])
    return viewed.first.image.shape, viewed.first.batch_size, whole.batch_size


@scenario
def a_dtype_view_that_does_not_fit():
    return Point(torch.ones(2, 4), batch_size=[2, 4]).view(
        torch.uint8, batch_size=[2, 4]
    )


# Dataclasses and dictionaries -----------------------------------------------------------


@scenario
def dataclass_functions():
    data = Data(torch.ones(2), "a", batch_size=[2])
    return (
        dataclasses.is_dataclass(data),
        [field.name for field in dataclasses.fields(data)],
        dataclasses.asdict(Data(torch.ones(2), "a"))["label"],
    )


@scenario(
    reason="the release gives the copy the batch size []",
    ours=lambda result: (
        result[0].batch_size == (2,)
        and result[0].label is None
        and result[0].names == ["time"]
        and result[1].label == "b"
        and result[1][0].label == "b"
    ),
)
def dataclasses_replace():
    data = Data(torch.ones(2), "a", batch_size=[2], names=["time"])
    return dataclasses.replace(data, label=None), dataclasses.replace(data, label="b")


@scenario
def dataclasses_replace_with_another_batch_size():
    data = Data(torch.ones(2), "a", batch_size=[2])
    return dataclasses.replace(data, image=torch.ones(3), batch_size=[3])


@scenario(
    reason="the release gives the copy the batch size []",
    ours=lambda result: (
        result.batch_size == (2,) and list(result.inputs.keys()) == ["b"]
    ),
)
def dataclasses_replace_with_a_mapping():
    tensors = Tensors({"a": torch.ones(2)}, batch_size=[2])
    return dataclasses.replace(
        tensors, inputs=types.MappingProxyType({"b": torch.ones(2)})
    )


@scenario
def replace_keeps_the_batch_size():
    data = Data(torch.ones(2), "a", batch_size=[2])
    return data.replace(label="b"), data.replace(image=torch.zeros(2)).label


@scenario
def from_and_to_dictionaries():
    data = Data.from_dict({"image": torch.ones(2), "label": "a"}, batch_size=[2])
    return data, data.to_dict(), Data.from_any({"image": torch.ones(2)}).batch_size


@scenario(message=False)
def from_dict_with_a_key_that_is_no_field():
    return Data.from_dict({"image": torch.ones(2), "colour": 1})


@scenario
def from_and_to_tensordict():
    td = TensorDict(image=torch.ones(2), label="a", batch_size=[2])
    data = Data.from_tensordict(td)
    data.image.zero_()
    return td["image"], data.to_tensordict(), data.label


@scenario
def arrays_are_tensors():
    data = Data(np.arange(2.0), np.ones((2, 3)), batch_size=[2])
    return data.image, data.label


@scenario(
    reason="an array of text is a column: in the release each row has all of it",
    ours=lambda result: result == (["a", "bb"], "bb", ["c", "d"]),
)
def arrays_of_text_are_columns():
    data = Data(torch.zeros(2), np.array(["a", "bb"]), batch_size=[2])
    whole, row = list(data.label), data[1].label
    data.label = np.array(["c", "d"], dtype=object)
    return whole, row, list(data.label)


@scenario
def instances_on_disk(tmp_path):
    data = Data(torch.arange(2), ["a", "b"], batch_size=[2])
    data.memmap(tmp_path)
    loaded = Data.load_memmap(tmp_path)
    return loaded, loaded[1].label


@scenario
def a_map_over_rows():
    point = Point(torch.arange(2.0), torch.ones(2), batch_size=[2])
    return torch.vmap(lambda row: row.x + row.y)(point)
