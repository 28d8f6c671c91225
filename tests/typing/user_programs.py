"""Programs for type checkers: dictionaries and modules; run as a test as well."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar, assert_type

import torch
from torch import Tensor, nn

import tensordict
from tensordict import (
    LazyStackedTensorDict,
    TensorClass,
    TensorCollection,
    TensorDict,
    TensorDictBase,
    TensorDictParams,
    TypedTensorDict,
    cat,
    is_tensor_collection,
    lazy_stack,
    merge_tensordicts,
    pad,
    stack,
)
from tensordict.nn import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    dispatch,
)

T = TypeVar("T")
AnyCollection = TypeVar("AnyCollection", bound=TensorCollection)
AnyDict = TypeVar("AnyDict", bound=TensorDictBase)
AnyClass = TypeVar("AnyClass", bound=TensorClass)


class Data(TensorClass):
    a: Tensor
    b: Tensor | None = None


class State(TypedTensorDict):
    pos: Tensor
    vel: Tensor


class Batch(TensorClass, nocast=True):
    obs: Tensor
    reward: Tensor
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    done: Tensor | None = None

    @classmethod
    def build(cls, count: int) -> Self:
        return cls(torch.zeros(count, 2), torch.zeros(count), batch_size=[count])

    def with_done(self, done: Tensor) -> Self:
        out = self.clone()
        out.done = done
        return out

    def followed_by(self, other: Self) -> Self:
        return tensordict.cat([self, other])

    def rows(self) -> Iterator[Self]:
        yield from self

    def of_rows(self, function: Callable[[Batch], Tensor]) -> list[Tensor]:
        return [function(row) for row in self]


class Summed(TensorDictModuleBase):
    in_keys = ["a", ("n", "b")]  # noqa: RUF012 - as programs say it
    out_keys = ["sum"]  # noqa: RUF012

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("sum", tensordict["a"] + tensordict["n", "b"])


class Scaled(TensorDictModuleBase):
    def __init__(self, key: str) -> None:
        super().__init__()
        self.in_keys = [key]
        self.out_keys = [f"{key}_scaled"]

    @dispatch(separator="_", auto_batch_size=False)
    def forward(self, tensordict: TensorDict) -> TensorDict:
        return tensordict.set(self.out_keys[0], tensordict[self.in_keys[0]] * 2)


class Policy(Protocol):
    def __call__(self, td: TensorDictBase) -> TensorDictBase: ...


class Buffer(Generic[T]):
    def __init__(self, size: int) -> None:
        self.storage: TensorDict | None = None
        self.size = size
        self.notes: list[T] = []

    def extend(self, td: TensorDict) -> None:
        if self.storage is None:
            self.storage = td[0].expand(self.size).clone().zero_()
        self.storage[: td.batch_size[0]] = td

    def sample(self, count: int) -> TensorDict:
        assert self.storage is not None
        return self.storage[torch.randint(self.size, (count,))]


def make() -> TensorDict:
    entries = {"a": torch.zeros(3, 2), "n": {"b": torch.zeros(3)}}
    return TensorDict(entries, batch_size=[3])


def make_base() -> TensorDictBase:
    return make()


def data() -> Data:
    return Data(torch.zeros(3), batch_size=[3])


def state() -> State:
    return State(pos=torch.zeros(3), vel=torch.zeros(3), batch_size=[3])


def iteration_over_rows() -> None:
    for row in make():
        assert_type(row, TensorDict)
    for _, row in enumerate(make()):
        assert row["a"].shape == (2,)
    for one, other in zip(make(), make(), strict=True):
        one.update(other)
    first, *rest = make()
    assert_type(first, TensorDict)
    assert len(rest) == 2
    ordered = sorted(make(), key=lambda row: float(row["a"].sum()))
    assert next(iter(ordered))["a"].shape == (2,)
    for each in zip(data(), data(), strict=True):
        assert_type(each, tuple[Data, Data])
    assert_type(list(data()), list[Data])


def iteration_over_entries() -> None:
    for key, value in make().items():
        assert_type(key, str)
        assert value.batch_size if key == "n" else value.shape
    assert_type({key: value for key, value in make().items()}, dict[str, Any])  # noqa: C416
    for nested, value in make().items(include_nested=True, leaves_only=True):
        assert value.shape[0] == 3, nested
    for key, _ in Batch.build(3).items():  # noqa: PERF102 - that is the program
        assert_type(key, str)
    keys, values = zip(*make().items(), strict=True)
    assert len(keys) == len(values) == 2
    assert_type(make().popitem(), tuple[str, Any])


def mappings() -> None:
    def collect(**entries: Any) -> int:
        return len(entries)

    held: Mapping[str, Any] = make()
    assert collect(**make()) == len(held.keys()) == 2
    assert set(dict(make())) == {"a", "n"}
    assert_type(TensorDict.fromkeys(["a", "b"], 0), TensorDict)


def sizes() -> None:
    td = make()
    assert_type(td.size(), torch.Size)
    assert_type(td.size(0), int)
    rows, _ = td.reshape((3, 1)).size()
    assert_type(rows, int)
    assert_type(td.view((3, 1)).view(torch.Size([3])).view(size=[3, 1]), TensorDict)
    assert_type(td.expand((2, 3)).permute((1, 0)).repeat((2, 1)), TensorDict)


def truth() -> None:
    td = make()
    assert_type((td == 0).all(), bool)
    assert_type((td == 0).any(), bool)
    assert_type((td == 0).all(dim=0), TensorDict)
    assert_type((data() == 0).any(0), Data)
    assert_type(state().all(0), TensorDict)
    if (td == td).all():
        td.zero_()


def reductions() -> None:
    assert_type(make().sum(0), TensorDict)
    assert_type(make_base().mean(), TensorDictBase)
    assert_type(data().mean(dim=0, keepdim=True).a, Tensor)
    assert_type(state().sum(0), TensorDict)
    assert_type(state().std(dim=0), TensorDict)
    assert_type(state().sum(reduce=True), Tensor)


def generic_functions() -> None:
    def mean(x: AnyCollection) -> AnyCollection:
        return x.mean(0)

    def normalized(x: AnyDict) -> AnyDict:
        return (x - x.mean(0)) / (x.std(0) + 1)

    def doubled(x: AnyClass) -> AnyClass:
        return x.sum(0).to("cpu")[None].expand(2).clone()

    assert_type(mean(data()), Data)
    assert_type(normalized(make()), TensorDict)
    assert_type(doubled(data()), Data)


def joins() -> None:
    td, tc = make(), data()
    assert_type(lazy_stack([td, td]), LazyStackedTensorDict)
    assert_type(lazy_stack([tc, tc]), Data)
    assert_type(TensorDict.lazy_stack([td, td]), LazyStackedTensorDict)
    assert_type(Data.lazy_stack([tc]), Data)
    assert_type(lazy_stack([td, td]).to("cpu").clone(), LazyStackedTensorDict)
    assert_type(TensorDict.maybe_dense_stack([td, td]), TensorDict)
    assert_type(merge_tensordicts(td, td), TensorDict)
    assert_type(pad(td, [0, 1]), TensorDict)
    assert_type(pad(tc, [0, 1]), Data)

    def joined(parts: Sequence[TensorDict]) -> TensorDict:
        return stack(parts) if len(parts) > 2 else cat(parts)

    assert_type(joined([td, td]), TensorDict)


def narrowing() -> None:
    def first(x: Tensor | TensorDict) -> Tensor:
        if is_tensor_collection(x):
            held: Tensor = x["a"]
            return held
        return x

    def count(x: Tensor | TensorDictBase | Data) -> int:
        if isinstance(x, Tensor):
            return x.numel()
        if isinstance(x, TensorDictBase):
            return len(x.keys())
        assert_type(x, Data)
        return len(x)

    def size(x: object) -> torch.Size:
        return x.batch_size if is_tensor_collection(x) else torch.Size([])

    assert first(make()).shape == (3, 2)
    assert count(data()) == 3
    assert size(make()) == (3,)


def own_modules() -> None:
    summed = Summed()
    assert summed(make().set("a", torch.ones(3)))["sum"].sum() == 3
    assert summed(a=torch.ones(3), n_b=torch.ones(3)).sum() == 6
    assert [*summed.in_keys, "more"] == ["a", ("n", "b"), "more"]
    assert Scaled("a")(make())["a_scaled"].shape == (3, 2)
    both = TensorDictSequential(
        Scaled("a"), TensorDictModule(nn.Linear(2, 1), ["a_scaled"], ["out"])
    )
    optimizer = torch.optim.Adam(both.parameters())
    for part in make().split(1):
        loss: Tensor = both(part)["out"].pow(2).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def a_policy() -> None:
    def rollout(policy: Policy, steps: int) -> TensorDictBase:
        out = [policy(make_base()) for _ in range(steps)]
        return lazy_stack(out, 0)

    def act(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", td["a"] * 2)

    assert rollout(act, 3)["action"].shape == (3, 3, 2)
    module = TensorDictModule(torch.neg, in_keys=["a"], out_keys=["action"])
    assert rollout(module, 2).batch_size == (2, 3)


def a_buffer() -> None:
    buffer: Buffer[str] = Buffer(10)
    buffer.extend(make())
    assert_type(buffer.sample(2), TensorDict)


def methods_of_a_class() -> None:
    batch = Batch.build(3)
    assert_type(batch.with_done(torch.zeros(3))[0], Batch)
    assert_type(batch.followed_by(batch).obs, Tensor)
    assert_type(next(batch.rows()), Batch)
    assert_type(batch.of_rows(lambda row: row.reward), list[Tensor])
    assert_type(batch.info, dict[str, Any])
    assert_type(batch.names, list[str | None])
    held: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(batch)
    assert [each.name for each in held] == ["obs", "reward", "info", "done"]
    if batch.done is not None:
        assert_type(batch.done, Tensor)


def parameters() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = TensorDictParams(TensorDict(w=torch.zeros(2, 2)))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x @ self.held["w"]
            return out

    module = nn.Linear(2, 3)
    params = TensorDict.from_module(module)

    def call(params: TensorDict, x: Tensor) -> Tensor:
        with params.to_module(module):
            out: Tensor = module(x)
            return out

    outs: Tensor = torch.vmap(call, (0, None))(params.expand(4), torch.zeros(2))
    assert outs.shape == (4, 3)
    assert [name for name, _ in Encoder().held.named_parameters()] == ["w"]


def files() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        assert_type(make().memmap(path / "td"), TensorDict)
        assert_type(TensorDict.load_memmap(path / "td"), TensorDict)
        assert_type(data().memmap(path / "tc"), Data)
        assert_type(Data.load_memmap(str(path / "tc")), Data)
        assert_type(make().consolidate(), TensorDict)
        pair = TensorDict(a=torch.zeros(1)).to_namedtuple()
        assert_type(TensorDict.from_namedtuple(pair), TensorDict)
        assert_type(TensorDict.from_tuple((torch.zeros(1),)), TensorDict)


for _program in (
    iteration_over_rows,
    iteration_over_entries,
    mappings,
    sizes,
    truth,
    reductions,
    generic_functions,
    joins,
    narrowing,
    own_modules,
    a_policy,
    a_buffer,
    methods_of_a_class,
    parameters,
    files,
):
    _program()
