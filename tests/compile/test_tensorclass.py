"""Tensorclasses, values and unbatched entries in compiled functions, as they are in eager.

Each program is compiled whole and once: called with other values it is not compiled again.
"""

from __future__ import annotations

import warnings
from typing import Generic, TypeVar

import pytest
import torch

from compiled_together import in_groups, on_one
from tensordict import (
    TensorClass,
    TensorDict,
    TypedTensorDict,
    UnbatchedTensor,
    lazy_stack,
    tensorclass,
)

T = TypeVar("T")


@tensorclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor | None = None
    label: str = "none"

    def doubled(self) -> torch.Tensor:
        return self.x * 2

    @property
    def total(self) -> torch.Tensor:
        return self.x.sum()


@tensorclass
class Pair:
    inner: Sample
    weight: torch.Tensor


@tensorclass
class Child(Sample):
    other: torch.Tensor | None = None

    def doubled(self) -> torch.Tensor:
        return super().doubled() + 1


class Box(TensorClass, Generic[T]):
    x: torch.Tensor
    item: T


class Derived(TensorClass):
    x: torch.Tensor
    y: torch.Tensor | None = None

    def __post_init__(self):
        if self.y is None:
            self.y = self.x + 1


class Given(TensorClass):
    x: torch.Tensor

    def __init__(self, x: torch.Tensor):
        self.x = x * 2


class Frozen(TensorClass, frozen=True):
    x: torch.Tensor


class NoCast(TensorClass["nocast"]):
    x: torch.Tensor
    count: int = 2


class AutoCast(TensorClass, autocast=True):
    x: torch.Tensor
    count: int = 2


class Shadowing(TensorClass["shadow"]):
    keys: torch.Tensor


class Declared(TypedTensorDict):
    x: torch.Tensor


def make_sample():
    return Sample(x=torch.rand(4, 3), y=torch.rand(4), label="name", batch_size=[4])


def make_pair():
    return Pair(inner=make_sample(), weight=torch.rand(4), batch_size=[4])


def make_shared():
    entries = {"a": torch.rand(4, 3), "u": UnbatchedTensor(torch.rand(7))}
    return TensorDict(entries, batch_size=[4])


def make_text():
    return TensorDict(a=torch.rand(4, 3), text="name", batch_size=[4])


def fields_set(sample):
    sample = sample.clone()
    sample.x = sample.x + 1
    sample.label = "other"
    sample.y = None
    return sample


def make_options(x):
    frozen = Frozen(x, batch_size=[4])
    return (
        Derived(x, batch_size=[4]).y,
        Given(x).x,
        (frozen, frozen.is_locked),
        NoCast(x, 5, batch_size=[4]),
        AutoCast(x, "5", batch_size=[4]).count,
        Shadowing(x, batch_size=[4])[0].keys,
    )


def matched(sample):
    match sample:
        case Sample(x=x):
            return x


TORCH_FUNCTIONS = {
    "torch_joins": lambda t: (
        torch.stack([t, t], 1),
        torch.stack([t, t], dim=-1),
        torch.cat([t, t], dim=0),
    ),
    "torch_splits": lambda t: (
        torch.unbind(t, 0)[1],
        torch.split(t, 2),
        torch.split(t, [1, 3], 0),
        torch.chunk(t, 3)[0],
        torch.tensor_split(t, 3)[2],
        torch.narrow(t, 0, 1, 2),
    ),
    "torch_shapes": lambda t: (
        torch.unsqueeze(t, 0),
        torch.squeeze(t[:1]),
        torch.permute(t[None], (1, 0)),
        torch.transpose(t[None], 0, 1),
        torch.reshape(t, (2, 2)),
        torch.flatten(t[None], 0, 1),
        torch.unflatten(t, 0, (2, 2)),
        torch.broadcast_to(t, [2, 4]),
        torch.flip(t, [0]),
        torch.roll(t, 1, 0),
    ),
    "torch_selections": lambda t: (
        torch.where(torch.arange(4) > 1, t, t * 2),
        torch.gather(t, 0, torch.tensor([0, 2])),
        torch.masked_select(t, torch.tensor([True, False, True, True])),
        torch.repeat_interleave(t, 2, dim=0),
    ),
    "torch_likes": lambda t: (
        torch.clone(t),
        torch.zeros_like(t),
        torch.ones_like(t),
        torch.full_like(t, 2.0),
        torch.empty_like(t).zero_(),
    ),
    "torch_pointwise": lambda t: (
        torch.abs(t),
        torch.clamp(t, 0.0, 1.0),
        torch.add(t, t),
        torch.mul(t, 2),
        torch.maximum(t, t * 2),
        torch.lerp(t, t * 2, 0.5),
    ),
    "torch_reductions": lambda t: (
        torch.sum(t),
        torch.sum(t, 0),
        torch.mean(t, 0),
        torch.var(t, 0),
    ),
}

PROGRAMS = {
    make_sample: {
        "attribute": lambda t: t.x + t.y[:, None],
        "value": lambda t: t.x * len(t.label),
        "method": lambda t: t.doubled(),
        "property": lambda t: t.total,
        "construct": lambda t: Sample(x=t.x + 1, label="new", batch_size=[4]),
        "set": fields_set,
        "get": lambda t: t.get("x"),
        "fields": lambda t: [field.name for field in t.fields()],
        "setattr": lambda t: setattr(t.clone(), "x", t.x * 2),
        "names_of_fields": lambda t: [name for name, _ in t.items()],
        "options": lambda t: make_options(t.x),
        "inherited": lambda t: Child(t.x, other=t.x, batch_size=[4]).doubled(),
        "generic": lambda t: Box(t.x, item="text", batch_size=[4])[0],
        "declared": lambda t: Declared(x=t.x, batch_size=[4])[1:],
        "rows": lambda t: [row.x.sum() for row in t],
        "matched": matched,
        "replace": lambda t: t.replace(x=t.x * 3),
        "update": lambda t: t.clone().update({"x": t.x * 2}),
        "index": lambda t: t[1],
        "reshape": lambda t: t.reshape(2, 2),
        "stack": lambda t: torch.stack([t, t]),
        "cat": lambda t: torch.cat([t, t + 1]),
        "arithmetic": lambda t: t * 2 + t,
        "apply": lambda t: t.apply(lambda x: x + 1),
        "clone": lambda t: t.clone(),
        "cast": lambda t: t.to(torch.float64),
        "reduce": lambda t: t.sum(0),
        "compare": lambda t: (t == t).x.all(),
        "plain": lambda t: t.to_tensordict(),
        "from_plain": lambda t: Sample.from_tensordict(t.to_tensordict()),
        "dict": lambda t: t.to_dict(),
        "lazy": lambda t: lazy_stack([t, t], 0).x,
        "vmap": lambda t: torch.vmap(lambda row: row * 2)(t),
        "grad": lambda t: torch.func.grad(lambda t: (t.x**2).sum() + t.y.sum())(t),
    },
    make_pair: {
        "nested_attribute": lambda t: t.inner.x + t.weight[:, None],
        "nested_method": lambda t: (t + 1).inner.doubled(),
        "nested_index": lambda t: t[2],
        "nested_unbind": lambda t: t.unbind(0),
        "nested_split": lambda t: t.split(2),
        **TORCH_FUNCTIONS,
    },
    make_text: {
        "text_read": lambda t: t["a"] * len(t["text"]),
        "text_index": lambda t: t[0],
        "text_stack": lambda t: torch.stack([t, t.copy().set("text", "other")]),
        "text_view": lambda t: t.view(2, 2),
        "text_set": lambda t: t.copy().set_non_tensor("text", "other"),
    },
    make_shared: {
        "shared_read": lambda t: t["u"] * 2,
        "shared_index": lambda t: t[0],
        "shared_view": lambda t: t.view(2, 2),
        "shared_stack": lambda t: torch.stack([t, t]),
        "shared_cat": lambda t: torch.cat([t, t]),
        "shared_unbind": lambda t: t.unbind(0),
        "shared_stored": lambda t: TensorDict(
            a=t["a"], u=UnbatchedTensor(t["a"]), batch_size=[4]
        )[0],
        "shared_grad": lambda t: torch.func.grad(
            lambda t: (t["a"] ** 2).sum() + t["u"].sum()
        )(t),
    },
}


def described(value):
    """Describe what two results must have in common."""
    if isinstance(value, torch.Tensor):
        return type(value), value.tolist()
    if isinstance(value, (list, tuple)):
        return [described(item) for item in value]
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if hasattr(value, "keys"):
        entries = {key: described(value.get(key)) for key in value.keys()}  # noqa: SIM118
        return type(value), value.batch_size, entries
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize(
    ("make", "programs"),
    [
        pytest.param(make, *group.values, id=group.id)
        for make, programs in PROGRAMS.items()
        for group in in_groups(programs)
    ],
)
def test_compiled_as_eager(make, programs):
    torch._dynamo.reset()
    program = on_one(programs)
    argument = make()
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    assert described(compiled(argument)) == described(program(argument))
    with torch._dynamo.config.patch(error_on_recompile=True):
        other = make()
        assert described(compiled(other)) == described(program(other))


_DEFAULT = torch.ones(2)

with warnings.catch_warnings():
    # The default is shared by the instances, which the class says.
    warnings.simplefilter("ignore", FutureWarning)

    @tensorclass
    class WithTensorDefaults:
        a: torch.Tensor
        b: torch.Tensor = _DEFAULT
        c: torch.Tensor = torch.zeros(3)  # noqa: RUF009 (it is what is tested)


def test_compiled_class_with_defaults_that_are_tensors():
    def program(x):
        made = WithTensorDefaults(a=x * 2)
        given = WithTensorDefaults(a=x, c=x)
        return made, given, made.b + given.c

    compiled = torch.compile(program, fullgraph=True, backend="eager")
    x = torch.arange(2.0)
    for ours, expected in zip(compiled(x), program(x), strict=True):
        assert (ours == expected).all()
    assert WithTensorDefaults(a=x).b is _DEFAULT
