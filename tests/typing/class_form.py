"""Programs for type checkers: tensorclasses of the class form; run as a test, too."""

from __future__ import annotations

import dataclasses
import tempfile
from typing import Any, ClassVar, Generic, Self, TypeVar, assert_type

import torch
from torch import Tensor

from tensordict import (
    TensorClass,
    TensorCollection,
    TensorDict,
    cat,
    is_tensorclass,
    stack,
)

T = TypeVar("T")


def construct() -> None:
    class Data(TensorClass):
        a: Tensor
        b: Tensor

    d = Data(a=torch.zeros(3), b=torch.ones(3), batch_size=[3])
    assert_type(d, Data)
    Data(torch.zeros(3), torch.ones(3), batch_size=torch.Size([3]))
    Data(torch.zeros(3), torch.ones(3), batch_size=3)
    Data(torch.zeros(3), torch.ones(3))
    Data(torch.zeros(3), torch.ones(3), batch_size=(3,), device="cpu", names=["x"])
    Data(
        torch.zeros(3),
        torch.ones(3),
        batch_size=(3,),
        device=torch.device("cpu"),
        names=None,
    )


def fields() -> None:
    class Data(TensorClass):
        a: Tensor
        s: str
        n: int = 3

    d = Data(torch.zeros(3), "x", batch_size=[3])
    assert_type(d.a, Tensor)
    assert_type(d.s, str)
    assert_type(d.n, int)
    d.a = torch.ones(3)


def indexing() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3, 4), batch_size=[3, 4])
    assert_type(d[0], Data)
    assert_type(d[0, 1], Data)
    assert_type(d[:2], Data)
    assert_type(d[..., 0], Data)
    assert_type(d[None], Data)
    assert_type(d[torch.tensor([0, 1])], Data)
    assert_type(d[[0, 1]], Data)
    assert_type(d[0].a, Tensor)
    assert_type(d[:, 0].a, Tensor)
    d[0] = d[1]
    d[0] = 0


def clone() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    assert_type(d.clone(), Data)
    assert_type(d.clone(False), Data)
    assert_type(d.clone().a, Tensor)
    assert_type(d.copy(), Data)


def to() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    assert_type(d.to("cpu"), Data)
    assert_type(d.to(torch.float64), Data)
    assert_type(d.to(torch.device("cpu")), Data)
    assert_type(d.cpu(), Data)
    assert_type(d.float(), Data)
    assert_type(d.to("cpu").a, Tensor)


def self_methods() -> None:
    class Data(TensorClass):
        a: Tensor

        def twice(self) -> Self:
            return self.replace(a=self.a * 2)

        def doubled(self) -> Tensor:
            return self.a * 2

        @classmethod
        def make(cls) -> Self:
            return cls(a=torch.zeros(3), batch_size=[3])

        @property
        def total(self) -> Tensor:
            return self.a.sum()

        @staticmethod
        def help() -> str:
            return "x"

    d = Data.make()
    assert_type(d, Data)
    assert_type(d.twice(), Data)
    assert_type(d.doubled(), Tensor)
    assert_type(d.total, Tensor)
    assert_type(Data.help(), str)


def optional() -> None:
    class Data(TensorClass):
        a: Tensor
        b: Tensor | None = None
        c: Tensor | None = None

    d = Data(torch.zeros(3), batch_size=[3])
    assert_type(d.b, Tensor | None)
    if d.c is not None:
        assert_type(d.c, Tensor)
    d.b = None
    Data(torch.zeros(3), torch.zeros(3), None, batch_size=[3])


def nested() -> None:
    class Inner(TensorClass):
        x: Tensor

    class Data(TensorClass):
        inner: Inner
        other: Inner | None = None

    d = Data(Inner(torch.zeros(3), batch_size=[3]), batch_size=[3])
    assert_type(d.inner, Inner)
    assert_type(d.inner.x, Tensor)
    assert_type(d[0].inner, Inner)
    assert_type(d.other, Inner | None)


def defaults() -> None:
    class Data(TensorClass):
        a: Tensor
        s: str = "hi"
        i: int = 3
        late: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(3))

    Data(torch.zeros(3))
    Data(torch.zeros(3), "x", batch_size=[3])
    Data(torch.zeros(3), s="x", i=4, batch_size=[3])


def inherit() -> None:
    class Data(TensorClass):
        a: Tensor

    class Child(Data):
        b: Tensor

    c = Child(torch.zeros(3), torch.ones(3), batch_size=[3])
    assert_type(c.a, Tensor)
    assert_type(c.b, Tensor)
    assert_type(c[0], Child)
    assert_type(c.clone(), Child)

    def use(d: Data) -> Tensor:
        return d.a

    use(c)


def shape() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3, 4), batch_size=[3, 4])
    assert_type(d.view(12), Data)
    assert_type(d.view(-1), Data)
    assert_type(d.reshape(12), Data)
    assert_type(d.permute(1, 0), Data)
    assert_type(d.unsqueeze(0), Data)
    assert_type(d.squeeze(), Data)
    assert_type(d.expand(2, 3, 4), Data)
    assert_type(d.flatten(0, 1), Data)
    assert_type(d.transpose(0, 1), Data)
    assert_type(d.contiguous(), Data)
    assert_type(d.gather(0, torch.zeros(1, 4, dtype=torch.int64)), Data)


def meta() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3, 4), batch_size=[3, 4])
    assert_type(d.batch_size, torch.Size)
    assert_type(d.shape, torch.Size)
    assert_type(d.device, torch.device | None)
    assert_type(d.ndim, int)
    assert_type(d.numel(), int)
    assert_type(len(d), int)
    assert_type(d.is_locked, bool)
    assert_type(d.batch_dims, int)
    d.batch_size = [3]
    d.batch_size = torch.Size([3])
    d.names = ["x"]


def lock() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    assert_type(d.lock_(), Data)
    assert_type(d.unlock_(), Data)
    with d.unlock_() as e:
        e.a = torch.zeros(3)


def apply() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    d.apply(lambda x: x + 1)
    d.apply_(lambda x: x + 1)
    assert_type(d.zero_(), Data)
    assert_type(d.detach(), Data)
    assert_type(d.requires_grad_(), Data)


def arith() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    assert_type(d + 1, Data)
    assert_type(d * 2.0, Data)
    assert_type(d + d, Data)
    assert_type(-d, Data)
    assert_type(1 + d, Data)
    assert_type(d / 2, Data)
    assert_type(d**2, Data)
    d += 1


def split() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(4), batch_size=[4])
    for part in d.split(2):
        assert_type(part, Data)
    for part in d.unbind(0):
        assert_type(part, Data)
    for part in d.chunk(2):
        assert_type(part, Data)


def iterate() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(4), batch_size=[4])
    for part in d:
        part.clone()
    list(d.keys())


def conversions() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(4), batch_size=[4])
    d.to_tensordict()
    e = Data.from_tensordict(TensorDict(a=torch.zeros(4), batch_size=[4]))
    assert_type(e, Data)
    d.to_dict()
    Data.from_dict({"a": torch.zeros(4)})
    d.get("a")
    d.set("a", torch.zeros(4))


def generic() -> None:
    class Data(TensorClass, Generic[T]):
        a: Tensor
        v: T

    d: Data[str] = Data(torch.zeros(3), "x", batch_size=[3])
    assert_type(d.v, str)
    assert_type(d[0], Data[str])
    assert_type(d.clone(), Data[str])


def classvar() -> None:
    class Data(TensorClass):
        a: Tensor
        kind: ClassVar[str] = "x"

    assert_type(Data.kind, str)
    d = Data(torch.zeros(3))
    assert_type(d.kind, str)


def interop() -> None:
    class Data(TensorClass):
        a: Tensor
        b: Tensor | None = None

    d = Data(torch.zeros(3), batch_size=[3])
    for f in dataclasses.fields(d):
        assert_type(f.name, str)
    dataclasses.replace(d, a=torch.ones(3))


def postinit() -> None:
    class Data(TensorClass):
        a: Tensor
        b: Tensor | None = None

        def __post_init__(self) -> None:
            if self.b is None:
                self.b = self.a

    Data(torch.zeros(3), batch_size=[3])


def functions() -> None:
    class Data(TensorClass):
        a: Tensor

    def step(d: Data) -> Data:
        return d.to("cpu").view(-1)[0].clone()

    def each(ds: list[Data]) -> Tensor:
        return torch.stack([d.a for d in ds])

    step(Data(torch.zeros(3), batch_size=[3]))


def any_field() -> None:
    class Data(TensorClass):
        a: Tensor
        meta: Any = None
        names_list: list[str] | None = None
        d: dict[str, int] | None = None

    d = Data(torch.zeros(3), meta={"x": 3}, names_list=["a", "b", "c"], batch_size=[3])
    assert_type(d.names_list, list[str] | None)


def memmap() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    with tempfile.TemporaryDirectory() as folder:
        assert_type(d.memmap(folder), Data)
        assert_type(d.memmap_like(folder + "/x"), Data)
        assert_type(Data.load_memmap(folder), Data)


def reduce() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    d.mean()
    d.sum(0)
    d.float().std(dim=0)
    assert_type(d.is_empty(), bool)
    assert_type(d.select("a"), Data)
    assert_type(d.exclude("a"), Data)
    assert_type(d.empty(), Data)


def update() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    assert_type(d.update({"a": torch.ones(3)}), Data)
    assert_type(d.update(d), Data)
    assert_type(d.update_(d), Data)
    assert_type(d.replace(a=torch.ones(3)), Data)
    assert_type(d.copy_(d), Data)


def union_fields() -> None:
    class Data(TensorClass):
        a: Tensor | float
        b: int | str = 3

    d = Data(torch.zeros(3))
    assert_type(d.a, Tensor | float)


def kwonly() -> None:
    class Data(TensorClass):
        a: Tensor
        b: Tensor = dataclasses.field(kw_only=True)

    d = Data(torch.zeros(3), b=torch.zeros(3), batch_size=[3])
    assert_type(d.b, Tensor)


def property_override() -> None:
    class Data(TensorClass):
        a: Tensor

        @property
        def length(self) -> int:
            return self.a.shape[0]

    d = Data(torch.zeros(3), batch_size=[3])
    assert_type(d.length, int)
    assert_type(d[0:1].length, int)


def stack_method() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    Data.stack([d, d])
    Data.cat([d, d])
    Data.lazy_stack([d, d])


def nested_tensordict() -> None:
    class Data(TensorClass):
        a: Tensor
        td: TensorDict

    d = Data(
        torch.zeros(3), TensorDict(x=torch.zeros(3), batch_size=[3]), batch_size=[3]
    )
    assert_type(d.td, TensorDict)
    assert_type(d.td[0], TensorDict)


def comparisons() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    bool((d == d).all())
    assert_type(d > 0, Data)


def narrowing() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    assert is_tensorclass(d)

    def f(x: object) -> None:
        if isinstance(x, Data):
            assert_type(x.a, Tensor)

    def g(x: TensorCollection) -> None: ...

    g(d)


def join() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3), batch_size=[3])
    assert_type(stack([d, d]), Data)
    assert_type(cat([d, d]), Data)


def indexing_more() -> None:
    class Data(TensorClass):
        a: Tensor

    d = Data(torch.zeros(3, 4), batch_size=[3, 4])
    assert_type(d[[True, False, True]], Data)
    assert_type(d[range(2)], Data)
    assert_type(d[d.a > 0], Data)
    assert_type(d[0, ..., None], Data)
    assert_type(d[[0, 1], 1], Data)


def options() -> None:
    class Cast(TensorClass, autocast=True):
        a: Tensor
        i: int = 3

    class Frozen(TensorClass, frozen=True):
        a: Tensor

    class Raw(TensorClass, nocast=True):
        a: Tensor
        i: int = 3

    cast = Cast(torch.zeros(3), batch_size=[3])
    assert_type(cast.i, int)
    assert_type(cast[0], Cast)
    frozen = Frozen(torch.zeros(3), batch_size=[3])
    assert_type(frozen.clone(), Frozen)
    assert_type(Raw(torch.zeros(3), 4, batch_size=[3])[0].i, int)


for _program in [
    value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", None) == __name__
]:
    _program()
