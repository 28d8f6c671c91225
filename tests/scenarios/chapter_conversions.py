"""From and to dictionaries, named tuples, dataclasses, pytrees, lists and arrays."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any, NamedTuple

import numpy as np
import torch
from scenario import scenario

from tensordict import (
    TensorDict,
    from_any,
    from_dataclass,
    from_dict,
    from_namedtuple,
    from_tuple,
    lazy_stack,
    tensorclass,
)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    label: Any = None


def nested():
    return TensorDict(
        a=torch.arange(6.0).view(2, 3),
        n={"b": torch.ones(2)},
        s=["x", "y"],
        batch_size=[2],
    )


@scenario
def a_dictionary_and_back():
    data = {"a": torch.zeros(3), "n": {"b": torch.ones(3, 2)}}
    td = TensorDict.from_dict(data, batch_size=[3])
    back = td.to_dict()
    return td, back, back["a"] is data["a"]


@scenario
def the_batch_size_of_a_dictionary():
    data = {"a": torch.zeros(3, 4), "n": {"b": torch.ones(3)}}
    return (
        TensorDict.from_dict(data).batch_size,
        TensorDict.from_dict(data, auto_batch_size=True).batch_size,
        TensorDict.from_dict(data, batch_dims=1).batch_size,
        from_dict(data, batch_size=[3])["n"].batch_size,
    )


@scenario
def two_ways_to_say_the_batch_size():
    return TensorDict.from_dict({"a": torch.zeros(3)}, batch_size=[3], batch_dims=1)


@scenario
def numbers_lists_and_arrays_in_dictionaries():
    return TensorDict.from_dict(
        {"i": 1, "f": 2.5, "b": True, "l": [1, 2], "t": (1, 2), "a": np.ones(2)}
    )


@scenario
def values_in_dictionaries():
    td = TensorDict.from_dict({"s": "text", "n": None, "l": ["a", "b"]}, batch_size=[2])
    return td["s"], td["n"], td["l"], td.to_dict()


@scenario
def numbers_in_a_batch():
    td = TensorDict.from_dict({"a": torch.zeros(2), "n": 3}, batch_size=[2])
    return td["n"], td[0]["n"]


@scenario
def mappings_that_are_no_dictionaries():
    return [
        TensorDict.from_dict(collections.OrderedDict(a=torch.ones(2)), batch_size=[2]),
        TensorDict.from_dict(collections.UserDict(a=torch.ones(2)), batch_size=[2]),
        TensorDict(types.MappingProxyType({"a": torch.ones(2)}), [2]),
        TensorDict(collections.ChainMap({"a": torch.ones(2)}), [2]),
    ]


@scenario
def nested_keys_in_dictionaries():
    return TensorDict({("n", "a"): torch.ones(2), "b": torch.zeros(2)}, [2])


@scenario
def what_is_no_mapping():
    return TensorDict([torch.zeros(2)], [2])


@scenario
def dictionaries_of_converted_leaves():
    td = nested()
    return (
        td.to_dict(convert_tensors=True),
        td.to_dict(retain_none=False)["s"],
        type(td.to_dict(convert_tensors="numpy")["a"]).__name__,
    )


@scenario
def dictionaries_with_none():
    td = TensorDict(a=torch.zeros(2), nothing=None, batch_size=[2])
    return td.to_dict(), td.to_dict(retain_none=False)


@scenario
def rows_as_lists():
    td = nested()
    return td.tolist(convert_tensors=True), td[0].tolist(convert_tensors=True)


@scenario
def rows_as_a_linked_list():
    td = TensorDict(x=torch.arange(3), batch_size=[3])
    rows = td.tolist(as_linked_list=True)
    rows[0] = {"x": torch.tensor(5)}
    return td["x"], rows[1]


@scenario
def arrays_that_share_memory():
    td = TensorDict(a=torch.zeros(2), n={"b": torch.ones(2)}, batch_size=[2])
    arrays = td.numpy()
    arrays["a"][0] = 7
    return td["a"], arrays["n"]["b"].tolist()


@scenario
def arrays_of_what_requires_gradients():
    return TensorDict(a=torch.ones(2, requires_grad=True)).numpy()


@scenario
def named_tuples_and_back():
    pair = Pair(torch.zeros(2), Pair(torch.ones(2), "text"))
    td = from_namedtuple(pair, batch_size=[2])
    back = td.to_namedtuple()
    return td, type(back).__name__, back._fields, back.left


@scenario
def named_tuples_of_a_class():
    td = TensorDict(left=torch.zeros(2), right=torch.ones(2))
    pair = td.to_namedtuple(dest_cls=Pair)
    return type(pair).__name__, pair.right


@scenario
def the_batch_size_of_named_tuples():
    pair = Pair(torch.zeros(2, 3), torch.zeros(2))
    return (
        from_namedtuple(pair).batch_size,
        from_namedtuple(pair, auto_batch_size=True).batch_size,
    )


@scenario
def tuples():
    td = from_tuple((torch.zeros(2), {"a": torch.ones(2)}), batch_size=[2])
    return td, sorted(td.keys())


@scenario
def dataclasses_to_classes():
    made = from_dataclass(Sample)
    instance = made(torch.zeros(2), "cat", batch_size=[2])
    return made.__name__, instance


@scenario
def dataclass_instances():
    made = from_dataclass(Sample(torch.zeros(2, 3), "cat"), auto_batch_size=True)
    return type(made).__name__, made.batch_size, made.label


@scenario
def dataclass_instances_as_collections():
    td = TensorDict.from_dataclass(Sample(torch.zeros(2), "cat"))
    return type(td).__name__, td["image"], td["label"]


@scenario
def dataclasses_in_dictionaries():
    return from_any({"s": Sample(torch.zeros(2), "cat")})


@scenario
def anything_becomes_a_collection():
    return (
        from_any({"a": [1, 2], "b": (torch.zeros(1), "x")}),
        from_any(Pair(1, 2)),
        type(from_any(torch.zeros(2))).__name__,
        from_any("text"),
    )


@scenario
def lists_of_anything():
    return (
        from_any([1, 2, 3]),
        from_any(["a", "b"]).tolist(),
        from_any({"l": [[1, 2], [3, 4]]}),
    )


@scenario
def pytrees_and_back():
    tree = {
        "a": [torch.zeros(2), (torch.ones(1), {"b": torch.ones(3)})],
        1: torch.ones(1),
    }
    td = TensorDict.from_pytree(tree)
    back = td.to_pytree()
    return back, type(back["a"]).__name__, type(back["a"][1]).__name__


@scenario
def pytrees_with_named_tuples():
    back = TensorDict.from_pytree(Pair(torch.zeros(1), [torch.ones(1)])).to_pytree()
    return type(back).__name__, back


@scenario
def lists_of_dictionaries():
    td = TensorDict.from_list([{"a": 1, "s": "x"}, {"a": 2, "s": "y"}])
    return td, td["s"]


@scenario
def lists_of_dictionaries_of_different_shapes():
    rows = [{"a": torch.zeros(2)}, {"a": torch.zeros(3)}]
    td = TensorDict.from_list(rows)
    return type(td).__name__, td.batch_size, td[1]["a"].shape


@scenario
def lists_of_dictionaries_that_are_stacked():
    rows = [{"a": torch.zeros(2)}, {"a": torch.zeros(3)}]
    return TensorDict.from_list(rows, lazy=False)


@scenario
def instances_make_what_is_like_them():
    @tensorclass
    class Inner:
        x: torch.Tensor

    td = TensorDict(inner=Inner(torch.zeros(2), batch_size=[2]), batch_size=[2])
    made = td.from_dict_instance(td.to_dict(), batch_size=[2])
    return type(made["inner"]).__name__, made


@scenario
def tensorclasses_and_dictionaries():
    @tensorclass
    class Data:
        x: torch.Tensor
        n: int = 0
        s: str | None = None

    made = Data.from_dict({"x": torch.zeros(2), "n": 3}, batch_size=[2])
    return made, made.to_dict(), Data.from_dict(made.to_dict(), batch_size=[2]).n


@scenario(
    reason="an array of text is a column: in the release each row has all of it",
    ours=lambda result: result == ["b"] * 5,
)
def text_arrays_in_every_conversion():
    array = np.array(["a", "b"])
    made = [
        TensorDict.from_dict({"n": {"s": array}}, batch_size=[2])[1]["n"],
        TensorDict.from_any({"s": array}, batch_size=[2])[1],
        lazy_stack([TensorDict(), TensorDict()]).set("s", array)[1],
        TensorDict.from_dict({"s": array}, auto_batch_size=True)[1],
        from_any({"s": array, "x": torch.ones(2, 3)}, batch_size=[2])[1],
    ]
    return [row["s"] for row in made]


@scenario
def lazy_stacks_to_dictionaries():
    stack = lazy_stack([TensorDict(a=torch.zeros(2)), TensorDict(a=torch.ones(2))])
    return stack.to_dict(), stack.tolist(convert_tensors=True), stack.to_tensordict()


@scenario
def fresh_collections_of_keys():
    return TensorDict.fromkeys(["a", ("n", "b")], 1)


@scenario
def copies_are_plain():
    @tensorclass
    class Data:
        x: torch.Tensor

    td = TensorDict(d=Data(torch.zeros(2), batch_size=[2]), batch_size=[2])
    copy = td.to_tensordict()
    copy["d", "x"].fill_(1)
    return type(copy["d"]).__name__, td["d"].x


@scenario
def devices_of_conversions():
    td = TensorDict.from_dict({"a": np.ones(2)}, device="cpu", batch_size=[2])
    return td.device, td["a"].device


def nested_of(layout):
    rows = [torch.zeros(2), torch.ones(3)]
    return torch.nested.nested_tensor(rows, layout=layout)


@scenario
def nested_tensors_as_arrays():
    layouts = (torch.jagged, torch.strided)
    return [
        TensorDict(a=nested_of(layout), batch_size=[2]).numpy() for layout in layouts
    ]


@scenario(
    reason="the release fails for nested tensors of either layout",
    ours=lambda result: result == {"a": [[0.0, 0.0], [1.0, 1.0, 1.0]]},
)
def nested_tensors_as_lists():
    td = TensorDict(a=nested_of(torch.jagged), batch_size=[2])
    return td.to_dict(convert_tensors=True)


@scenario
def the_shared_dims_of_nested_tensors_and_others():
    return [
        TensorDict.from_dict(
            {"a": nested_of(layout), "b": torch.zeros(2)}, auto_batch_size=True
        ).batch_size
        for layout in (torch.jagged, torch.strided)
    ]


@scenario
def an_array_of_another_library_that_torch_cannot_take():
    class Array:
        def __dlpack__(self, **_):
            raise BufferError

        def __dlpack_device__(self):
            return (1, 0)

    array = Array()
    return TensorDict.from_any({"a": array})["a"] is array, TensorDict.from_any(5)


@scenario(
    reason="an array of another library becomes a tensor that shares its memory",
    ours=lambda result: result == [True, False],
)
def an_array_of_another_library():
    class Array:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **_):
            return self.tensor.__dlpack__()

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    found = TensorDict.from_any({"a": Array(torch.ones(2))})["a"]
    return [isinstance(found, torch.Tensor), isinstance(found, Array)]
