"""Collections of every kind, with values that tell the rank that made them."""

from __future__ import annotations

from typing import Any

import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    UnbatchedTensor,
    tensorclass,
)


@tensorclass
class Sent:
    """A class with a tensor and a text."""

    x: torch.Tensor
    text: str


def dense(value: int) -> TensorDict:
    """Entries of several dtypes, nested."""
    return TensorDict(
        {
            "b": torch.full((3,), float(value)),
            "a": {"z": torch.full((3, 2), value), "y": torch.full((3,), value > 1)},
            "c": torch.full((3, 0), value),
        },
        [3],
    )


def other_order(value: int) -> TensorDict:
    """The same with its keys set in another order by each rank."""
    td = dense(value)
    keys = sorted(td.keys(), reverse=value % 2 == 0)
    return TensorDict({key: td[key] for key in keys}, [3])


def _view(value: int) -> Any:
    parent = TensorDict(a=torch.full((4, 2), float(value)), batch_size=[4])
    return parent._get_sub_tensordict(torch.tensor([0, 2]))


COLLECTIONS: dict[str, Any] = {
    "dense": dense,
    "other order": other_order,
    "empty": lambda _: TensorDict(),
    "large": lambda value: TensorDict(a=torch.full((300_000,), value), b=torch.ones(1)),
    "gaps": lambda value: TensorDict(a=torch.full((3, 4), value).t()),
    "large gaps": lambda value: TensorDict(a=torch.full((600, 400), value).t()),
    "one element": lambda value: TensorDict(a=torch.full((1,), value).expand(5)),
    "locked": lambda value: dense(value).lock_(),
    "stack": lambda value: LazyStackedTensorDict(dense(value), dense(value)),
    "ragged stack": lambda value: LazyStackedTensorDict(
        TensorDict(a=torch.full((2,), value)), TensorDict(a=torch.full((3,), value))
    ),
    "class": lambda value: Sent(
        x=torch.full((2,), value), text=f"of {value}", batch_size=[2]
    ),
    "stack of classes": lambda value: LazyStackedTensorDict.lazy_stack(
        [Sent(x=torch.full((2,), value), text="q", batch_size=[2]) for _ in range(2)]
    ),
    "parameters": lambda value: TensorDictParams(
        TensorDict(a=torch.full((2,), float(value)), n={"b": torch.ones(1)})
    ),
    "view": _view,
    "texts": lambda value: TensorDict(
        one=f"of {value}",
        many=NonTensorStack(*[f"{value}-{row}" for row in range(2)]),
        x=torch.full((2,), value),
        batch_size=[2],
    ),
    "unbatched": lambda value: TensorDict(
        a=UnbatchedTensor(torch.full((5,), value)), batch_size=[2]
    ),
    "signs": lambda value: TensorDict(
        a=torch.full((2,), complex(value, value)).conj(), b=torch.ones(2)
    ),
    "shared": lambda value: dense(value).share_memory_(),
    "mapped": lambda value: dense(value).memmap_(),
    "consolidated": lambda value: dense(value).consolidate(),
}


def state(td: Any) -> Any:
    """Describe the content of a collection as plain Python."""
    if isinstance(td, torch.Tensor):
        return td.detach().resolve_conj().tolist()
    if isinstance(td, LazyStackedTensorDict):
        return [state(member) for member in td.tensordicts]
    if hasattr(td, "to_dict"):
        return {
            key: state(value)
            for key, value in td.to_dict(convert_tensors=False).items()
        }
    if isinstance(td, dict):
        return {key: state(value) for key, value in td.items()}
    return td
