"""Containers of every kind, made alike by the release that records and by the tests."""

from __future__ import annotations

from typing import Any

import torch

from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    TypedTensorDict,
    UnbatchedTensor,
    lazy_stack,
    set_lazy_legacy,
    tensorclass,
)
from tensordict.nn import TensorDictParams

__all__ = ["KINDS", "PICKLED_KINDS"]


@tensorclass
class Sample:
    image: torch.Tensor
    label: str = "none"


@tensorclass
class Batch:
    sample: Sample
    weight: torch.Tensor
    options: dict | None = None


class State(TypedTensorDict):
    a: torch.Tensor
    b: torch.Tensor | None = None


class Episode(TypedTensorDict):
    state: State
    title: str


class Note(TensorClass):
    image: torch.Tensor
    label: str = "none"
    remark: str | None = None


def items(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) - 2).to(dtype).reshape(shape)


def floats() -> TensorDict:
    numbers = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 1e-45])
    names = ("float16", "bfloat16", "float32", "float64")
    found = {name: numbers.to(getattr(torch, name)) for name in names}
    return TensorDict({**found, "complex64": torch.complex(numbers, numbers)}, [6])


def strided() -> TensorDict:
    whole = items(3, 4)
    entries = {
        "transposed": items(2, 3).t(),
        "steps": whole[:, ::2],
        "column": whole[:, 1],
        "expanded": torch.tensor(2.0).expand(3),
        "shared": whole,
    }
    return TensorDict(entries, [3])


def signs() -> TensorDict:
    complexes = torch.complex(items(3, 2), items(3, 2))
    entries = {"conj": complexes.conj(), "neg": torch._neg_view(items(3, 2))}
    return TensorDict(entries, [3])


def nested() -> TensorDict:
    inner = TensorDict({"b": items(3, 2, 2)}, [3, 2], names=["x", "y"])
    return TensorDict({"n": inner, "a": items(3), "e": {}}, [3], names=["x"])


def members(*lengths: int) -> list[Any]:
    return [TensorDict({"a": items(n, 2), "s": f"s{n}"}, [n]) for n in lengths]


def stack(**kwargs: Any) -> Any:
    return LazyStackedTensorDict(*members(3, 3), **kwargs)


def samples() -> list[Any]:
    return [Sample(items(3, 2) + i, f"label {i}", batch_size=[3]) for i in range(2)]


def jagged() -> TensorDict:
    parts = [items(2, 4), items(3, 4)]
    entries = {
        "j": torch.nested.nested_tensor(parts, layout=torch.jagged),
        "holes": torch.nested.nested_tensor_from_jagged(
            items(10, 2), torch.tensor([0, 4, 10]), torch.tensor([2, 3])
        ),
    }
    return TensorDict(entries, [2])


def seen(name: str, *args: Any) -> Any:
    with set_lazy_legacy(True):
        return getattr(TensorDict({"a": items(3, 2, 4)}, [3, 2]), name)(*args)


def values() -> TensorDict:
    found = {
        "text": "ü\n\0",
        "int": 10**30,
        "nan": float("nan"),
        "none": None,
        "list": [1, "a", None, [2.5]],
        "dict": {"k": [1, {"z": True}]},
    }
    entries = {key: NonTensorData(one, batch_size=[3]) for key, one in found.items()}
    return TensorDict({**entries, "x": items(3)}, [3])


def pickled_values() -> TensorDict:
    found = {"tuple": (1, "a"), "set": {1, 2}, "bytes": b"ab", "slice": slice(1, 2)}
    entries = {key: NonTensorData(one) for key, one in found.items()}
    return TensorDict({**entries, "ints": NonTensorData({1: 2})}, [])


def many(count: int) -> TensorDict:
    return TensorDict({f"k{i}": items(2) + i for i in range(count)}, [2])


KINDS = {
    "empty": lambda: TensorDict({}, [4], names=["x"]),
    "scalar": lambda: TensorDict({"a": items(3), "b": torch.tensor(3)}, []),
    "no_rows": lambda: TensorDict({"a": items(0, 2), "n": {"b": items(0)}}, [0]),
    "no_items": lambda: TensorDict({"a": items(3, 0), "b": items(3)}, [3]),
    "floats": floats,
    "strided": strided,
    "signs": signs,
    "nested": nested,
    "many": lambda: many(20),
    "locked": lambda: nested().lock_(),
    "device": lambda: nested().to("cpu"),
    "params": lambda: TensorDictParams(nested()),
    "params_inside": lambda: TensorDict({"p": TensorDictParams(nested())}, [3]),
    "part": lambda: nested()._get_sub_tensordict(slice(0, 2)),
    "part_at": lambda: nested()._get_sub_tensordict(torch.tensor([0, 2])),
    "part_inside": lambda: TensorDict(
        {"p": many(1)._get_sub_tensordict(slice(0, 2)), "b": items(2)}, [2]
    ),
    "view": lambda: seen("view", 6),
    "permute": lambda: seen("permute", 1, 0),
    "unsqueeze": lambda: seen("unsqueeze", 0),
    "stack": lambda: stack(stack_dim=0, stack_dim_name="s"),
    "stack_at_1": lambda: stack(stack_dim=1),
    "stack_ragged": lambda: lazy_stack(members(1, 3, 2)),
    "stack_of_keys": lambda: lazy_stack([many(1), many(2)]),
    "stack_of_stacks": lambda: lazy_stack([stack(stack_dim=0)] * 2, 1),
    "stack_inside": lambda: TensorDict({"l": stack(stack_dim=0)}, [2, 3]),
    "long_stack": lambda: lazy_stack([many(1) + i for i in range(12)]),
    "values": values,
    "pickled_values": pickled_values,
    "value": lambda: NonTensorData("alone"),
    "column": lambda: TensorDict({"s": NonTensorStack("a", 1, None)}, [3]),
    "column_2d": lambda: NonTensorStack(
        NonTensorStack("a", "b"), NonTensorStack("c", "d")
    ),
    "metadata": lambda: TensorDict({"m": MetaData("m", batch_size=[2])}, [2]),
    "class": lambda: samples()[0],
    "class_unset": lambda: Sample(items(3, 2), None, batch_size=[3], names=["x"]),
    "class_inside": lambda: TensorDict({"c": samples()[0]}, [3]),
    "class_in_class": lambda: Batch(samples()[0], items(3), {"k": 1}, batch_size=[3]),
    "class_stack": lambda: lazy_stack(samples()),
    "class_column": lambda: torch.stack(samples()),
    "jagged": jagged,
    "components": lambda: TensorDict(
        {"j": torch.nested.nested_tensor([items(2, 4), items(3, 5)])}, [2]
    ),
}


def state(**options: Any) -> State:
    return State(a=items(3, 2), batch_size=[3], **options)


PICKLED_KINDS = {
    **KINDS,
    "typed": state,
    "typed_locked": lambda: state().lock_(),
    "typed_names": lambda: state(names=["x"]),
    "typed_deep": lambda: Episode(state=state(), title="x", batch_size=[3]),
    "typed_inside": lambda: TensorDict({"t": state()}, [3]),
    "typed_stack": lambda: lazy_stack([state(), state()]),
    "base": lambda: Note(image=items(3, 2), label="l", batch_size=[3]),
    "base_locked": lambda: Note(image=items(3, 2), batch_size=[3]).lock_(),
    "unbatched": lambda: TensorDict({"u": UnbatchedTensor(items(7))}, [3]),
    "lists": lambda: TensorDict({"l": NonTensorStack([1, 2], [3, 4])}, [2]),
    "ragged_column": lambda: NonTensorStack(
        NonTensorStack("a", "b"), NonTensorStack("c")
    ),
    "alike": lambda: TensorDict({"s": NonTensorStack("a", "a")}, [2]),
    "metadata_alone": lambda: MetaData("x", batch_size=[2]),
    "tied": lambda: TensorDictParams(TensorDict(dict.fromkeys("ab", items(2)))),
}
