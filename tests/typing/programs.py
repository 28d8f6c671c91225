"""Programs for type checkers: typed containers throughout; run as a test as well."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, assert_type

import torch
from torch import Tensor, nn

import tensordict
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    TensorClass,
    TensorDict,
    TensorDictBase,
    TensorDictParams,
    TypedTensorDict,
    UnbatchedTensor,
    from_dataclass,
    is_tensor_collection,
    lazy_stack,
    stack,
)
from tensordict.nn import TensorDictModule, TensorDictSequential

T = TypeVar("T")
B = TypeVar("B", bound=TensorDictBase)


def options_in_brackets() -> None:
    class Raw(TensorClass["nocast"]):
        number: int
        late: Tensor | None = None

    class Both(TensorClass["nocast", "shadow"]):
        items: Tensor  # type: ignore[assignment]  # that is what it is for

    raw = Raw(3, batch_size=[])
    assert_type(raw.number, int)
    assert_type(raw.late, Tensor | None)
    assert_type(raw.clone(), Raw)
    assert_type(raw[None], Raw)
    both = Both(torch.zeros(3), batch_size=[3])
    assert_type(both[0], Both)


def frozen_in_brackets() -> None:
    class Cold(TensorClass["frozen"]):
        a: Tensor

    cold = Cold(torch.zeros(3), batch_size=[3])
    try:
        cold.a = torch.ones(3)  # type: ignore[misc]
    except dataclasses.FrozenInstanceError:
        assert_type(cold.a, Tensor)


def several_options() -> None:
    class Base(TensorClass["autocast"]):
        a: Tensor
        count: int = 0

    class Child(Base):
        name: str = "child"

    child = Child(torch.zeros(3), 4, "x", batch_size=[3])
    assert_type(child.count, int)
    assert_type(child.name, str)
    assert_type(child.to("cpu"), Child)


def iteration() -> None:
    class Data(TensorClass):
        a: Tensor

    for part in Data(torch.zeros(3), batch_size=[3]):
        assert_type(part, Data)
    for row in TensorDict(a=torch.zeros(3), batch_size=[3]):
        assert_type(row, TensorDict)
    first, *_ = Data(torch.zeros(3), batch_size=[3])
    assert_type(first, Data)


def reductions() -> None:
    class Data(TensorClass):
        a: Tensor

    data = Data(torch.ones(3, 4), batch_size=[3, 4])
    assert_type(data.sum(), Data)
    assert_type(data.sum(0), Data)
    assert_type(data.mean(dim=-1, keepdim=True), Data)
    assert_type(data.std(dim=0).a, Tensor)
    assert_type(data.sum(reduce=True), Tensor)
    assert_type(data.mean(reduce=False), Data)
    assert_type(data.amax(0), Data)
    td = TensorDict(a=torch.ones(3, 4), batch_size=[3, 4])
    assert_type(td.sum(0)[0], TensorDict)
    assert_type(td.prod(dim=0).batch_size, torch.Size)


def typed_tensordict() -> None:
    class State(TypedTensorDict):
        position: Tensor
        velocity: Tensor | None = None

    state = State(position=torch.zeros(3, 2), batch_size=[3], device="cpu")
    assert_type(state, State)
    assert_type(state.position, Tensor)
    assert_type(state.velocity, Tensor | None)
    assert_type(state[0], State)
    assert_type(state.clone().position, Tensor)
    assert_type(state.batch_size, torch.Size)
    assert_type(state.device, torch.device | None)
    state.position = torch.ones(3, 2)
    State(position=torch.zeros(3), batch_size=3, names=["time"], lock=True)
    assert_type(State.from_tensordict(TensorDict(position=torch.zeros(3))), State)


def typed_tensordict_is_one() -> None:
    class State(TypedTensorDict):
        x: Tensor

    class Further(State):
        y: Tensor

    def total(td: TensorDict) -> Tensor:
        value: Tensor = td["x"].sum()
        return value

    further = Further(x=torch.zeros(3), y=torch.ones(3), batch_size=[3])
    total(further)
    assert_type(further.to(torch.float64), Further)
    assert_type(further.y, Tensor)


def typed_options() -> None:
    class Cold(TypedTensorDict, frozen=True):
        x: Tensor

    class Shadowing(TypedTensorDict["shadow"]):
        x: Tensor

    assert_type(Cold(x=torch.zeros(3), batch_size=[3]).is_locked, bool)
    assert_type(Shadowing(x=torch.zeros(3), batch_size=[3])[0].x, Tensor)


def keys_and_indices() -> None:
    td = TensorDict({"a": torch.zeros(3, 4), "n": {"b": torch.ones(3)}}, [3])
    tensor: Tensor = td["a"]
    nested: TensorDict = td["n"]
    leaf: Tensor = td["n", "b"]
    deeper: Tensor = td["n"]["b"]
    assert_type(td[0], TensorDict)
    assert_type(td[..., None], TensorDict)
    assert_type(td[tensor.sum(-1) > 0], TensorDict)
    assert_type(td[1:][0], TensorDict)
    found: Tensor | None = td.get("missing")
    assert len(tensor) == len(leaf) == len(deeper) == len(nested)
    assert found is None


def keys_of_containers() -> None:
    td = TensorDict({"a": torch.zeros(3)}, [3])
    names: list[str] = list(td.keys())
    for key, value in td.items():
        assert key in names
        assert isinstance(value, Tensor)
    assert "a" in td
    assert "a" in td.keys()  # noqa: SIM118 - a view of its own
    assert_type(len(td), int)


def generic_function(td: B, scale: float) -> B:
    return td * scale


def generic_functions() -> None:
    td = TensorDict(a=torch.ones(3), batch_size=[3])
    assert_type(generic_function(td, 2.0), TensorDict)

    class State(TypedTensorDict):
        x: Tensor

    assert_type(generic_function(State(x=torch.ones(3), batch_size=[3]), 2.0), State)


def generic_classes() -> None:
    class Box(TensorClass, Generic[T]):
        a: Tensor
        content: T
        other: T | None = None

    box = Box(torch.zeros(3), content="x", batch_size=[3])
    assert_type(box, Box[str])
    assert_type(box.content, str)
    assert_type(box[0].content, str)
    assert_type(box.to("cpu"), Box[str])


def callbacks() -> None:
    class Data(TensorClass):
        a: Tensor
        label: str = "x"

    def double(value: Tensor) -> Tensor:
        return value * 2

    data = Data(torch.ones(3), batch_size=[3])
    data.apply(double)
    data.named_apply(lambda name, value: value if name == "a" else value * 2)
    transform: Callable[[Data], Data] = lambda each: each + 1  # noqa: E731
    assert_type(transform(data), Data)


def protocols() -> None:
    class HasReward(Protocol):
        @property
        def reward(self) -> Tensor: ...

    class Step(TensorClass):
        observation: Tensor
        reward: Tensor

    def returns(step: HasReward) -> Tensor:
        return step.reward.cumsum(0)

    returns(Step(torch.zeros(3, 2), torch.ones(3), batch_size=[3]))


def methods() -> None:
    class Gaussian(TensorClass):
        loc: Tensor
        scale: Tensor

        @classmethod
        def standard(cls, size: int) -> Self:
            return cls(torch.zeros(size), torch.ones(size), batch_size=[size])

        def shifted(self, by: float) -> Self:
            return dataclasses.replace(self, loc=self.loc + by)

        def sample(self) -> Tensor:
            return torch.normal(self.loc, self.scale)

        @property
        def variance(self) -> Tensor:
            return self.scale**2

        def __matmul__(self, other: Tensor) -> Tensor:
            return self.loc @ other

    class Student(Gaussian):
        df: Tensor

    gaussian = Gaussian.standard(3)
    assert_type(gaussian, Gaussian)
    assert_type(gaussian.shifted(1.0).loc, Tensor)
    assert_type(gaussian.variance, Tensor)
    assert_type(gaussian @ torch.ones(3), Tensor)
    student = Student(torch.zeros(2), torch.ones(2), torch.ones(2), batch_size=[2])
    assert_type(student.shifted(1.0), Student)


def own_init_arguments() -> None:
    class Scaled(TensorClass):
        a: Tensor
        scale: dataclasses.InitVar[float] = 1.0

        def __post_init__(self, scale: float) -> None:
            self.a = self.a * scale

    scaled = Scaled(torch.ones(3), scale=2.0, batch_size=[3])
    assert_type(scaled.a, Tensor)


def defaults_of_all_kinds() -> None:
    class Data(TensorClass):
        a: Tensor
        mode: Literal["train", "test"] = "train"
        sizes: tuple[int, ...] = (3,)
        table: dict[str, int] = dataclasses.field(default_factory=dict)
        limit: ClassVar[int] = 10

    data = Data(torch.zeros(3), "test", batch_size=[3])
    assert_type(data.mode, Literal["train", "test"])
    assert_type(data.sizes, tuple[int, ...])
    assert_type(data.table, dict[str, int])
    assert_type(Data.limit, int)


def keywords_alone() -> None:
    class Data(TensorClass, kw_only=True):
        a: Tensor
        b: Tensor | None = None

    assert_type(Data(a=torch.zeros(3), batch_size=[3]).b, Tensor | None)


def nested_of_all_kinds() -> None:
    class Inner(TensorClass):
        x: Tensor

    class Outer(TensorClass):
        one: Inner
        td: TensorDict
        many: list[Inner] | None = None
        maybe: Inner | None = None

    inner = Inner(torch.zeros(3), batch_size=[3])
    outer = Outer(inner, TensorDict(batch_size=[3]), batch_size=[3])
    assert_type(outer.one.x, Tensor)
    assert_type(outer[0].one.x.dtype, torch.dtype)
    assert_type(outer.td.batch_size, torch.Size)
    if outer.maybe is not None:
        assert_type(outer.maybe.x, Tensor)
    outer.maybe = inner


def recursive() -> None:
    class Node(TensorClass):
        value: Tensor
        below: Node | None = None

    node = Node(torch.zeros(3), Node(torch.ones(3), batch_size=[3]), batch_size=[3])
    below = node.below
    assert below is not None
    assert_type(below.value, Tensor)


def locks_and_contexts() -> None:
    class Data(TensorClass):
        a: Tensor

    data = Data(torch.zeros(3, 4), batch_size=[3, 4])
    with data.view(12) as flat:
        flat.a = torch.ones(12)
    with data.unlock_() as unlocked:
        assert_type(unlocked, Data)
    assert_type(data.lock_().is_locked, bool)


def devices_and_dtypes() -> None:
    class Data(TensorClass):
        a: Tensor

    data = Data(torch.zeros(3), batch_size=[3])
    assert_type(data.cpu(), Data)
    assert_type(data.double(), Data)
    assert_type(data.half().a, Tensor)
    assert_type(data.to("cpu", torch.float64), Data)
    assert_type(data.requires_grad_().a, Tensor)
    assert_type(data.detach(), Data)


def joining() -> None:
    class Data(TensorClass):
        a: Tensor

    data = Data(torch.zeros(3), batch_size=[3])
    assert_type(stack([data, data], 0), Data)
    assert_type(tensordict.cat([data, data]), Data)
    lazy = lazy_stack([TensorDict(a=torch.zeros(3)), TensorDict(a=torch.ones(4))])
    assert isinstance(lazy, LazyStackedTensorDict)
    parts: Sequence[Data] = data.split(1)
    assert_type(parts[0], Data)
    assert_type(data.unbind(0)[0], Data)
    assert_type(data.chunk(3)[0], Data)


def batches(data: B, size: int) -> Iterator[B]:
    yield from data.split(size)


def generators() -> None:
    for batch in batches(TensorDict(a=torch.zeros(4), batch_size=[4]), 2):
        assert_type(batch, TensorDict)


def copies() -> None:
    class Data(TensorClass):
        a: Tensor

    data = Data(torch.zeros(3), batch_size=[3])
    assert_type(copy.copy(data), Data)
    assert_type(copy.deepcopy(data), Data)
    assert_type(data.clone(recurse=False), Data)
    pickle.dumps(TensorDict(a=torch.zeros(3)))


def conversions() -> None:
    class Data(TensorClass):
        a: Tensor
        s: str = "x"

    data = Data(torch.zeros(3), batch_size=[3])
    as_dict: dict[str, Any] = data.to_dict()
    td: TensorDict = data.to_tensordict()
    assert_type(Data.from_tensordict(td), Data)
    assert_type(Data.from_dict(as_dict), Data)
    assert_type(Data(**as_dict, batch_size=[3]), Data)
    assert_type(dataclasses.fields(data)[0].name, str)


def dataclasses_become_one() -> None:
    @dataclasses.dataclass
    class Plain:
        x: Tensor

    made = from_dataclass(Plain(torch.zeros(3)), auto_batch_size=True)
    assert is_tensor_collection(made)


def metadata() -> None:
    td = TensorDict(a=torch.zeros(3), batch_size=[3])
    td["s"] = NonTensorData("text", batch_size=[3])
    td["u"] = UnbatchedTensor(torch.zeros(5))
    text: str = td["s"]
    assert text
    td.batch_size = [3]
    td.names = ["time"]
    assert_type(td.names, list[str | None])


def parameters() -> None:
    params = TensorDictParams(TensorDict(w=nn.Parameter(torch.zeros(3))))
    module: nn.Module = params
    optimizer = torch.optim.SGD(params.parameters(), lr=0.1)
    optimizer.step()
    assert module is params
    assert_type(params.data, TensorDictBase)
    made = TensorDict.from_module(nn.Linear(3, 4))
    made.data


def modules() -> None:
    layer = TensorDictModule(nn.Linear(3, 4), in_keys=["x"], out_keys=["y"])
    both = TensorDictSequential(
        layer, TensorDictModule(nn.ReLU(), in_keys=["y"], out_keys=["z"])
    )
    out = both(TensorDict(x=torch.zeros(2, 3), batch_size=[2]))
    assert_type(out, TensorDict)
    assert out["z"].shape == (2, 4)
    assert layer(torch.zeros(2, 3)).shape == (2, 4)
    assert [value.shape for value in out.values()]


def in_place() -> None:
    class Data(TensorClass):
        a: Tensor

    data = Data(torch.zeros(3), batch_size=[3])
    data[0] = 1
    data[1:] = Data(torch.ones(2), batch_size=[2])
    data[torch.tensor([True, False, False])] = torch.tensor(4.0)
    data += 1
    data *= data
    assert_type(data.zero_(), Data)
    assert_type(data.fill_("a", 3.0), Data)


def comparisons() -> None:
    class Data(TensorClass):
        a: Tensor

    data = Data(torch.zeros(3), batch_size=[3])
    assert (data == data).all()
    assert not (data != 0).any()
    assert bool((data >= 0).all())


def shapes_of_all_kinds() -> None:
    td = TensorDict(a=torch.zeros(3, 4), batch_size=[3, 4])
    assert_type(td.reshape(-1), TensorDict)
    assert_type(td.permute(1, 0).transpose(0, 1), TensorDict)
    assert_type(td.unsqueeze(-1).squeeze(-1), TensorDict)
    assert_type(td.expand(2, 3, 4), TensorDict)
    assert_type(td.flatten(0, 1).unflatten(0, (3, 4)), TensorDict)
    assert_type(td.repeat(2, 1), TensorDict)
    assert_type(td.roll(1, 0), TensorDict)


def selection() -> None:
    td = TensorDict(a=torch.zeros(3), b=torch.ones(3), batch_size=[3])
    assert_type(td.select("a"), TensorDict)
    assert_type(td.exclude("a"), TensorDict)
    assert_type(td.flatten_keys("."), TensorDict)
    assert_type(td.update({"a": torch.ones(3)}), TensorDict)
    assert_type(td.rename_key_("a", "c"), TensorDict)
    assert_type(td.set("d", torch.ones(3)), TensorDict)
    td.pop("d")


def optional_arguments(
    data: TensorDictBase | None = None, key: str | tuple[str, ...] = "a"
) -> Tensor | None:
    if data is None:
        return None
    value: Tensor = data[key]
    return value


def plain_and_lazy() -> None:
    class Data(TensorClass):
        a: Tensor
        label: str = "x"

    data = Data(torch.ones(3), batch_size=[3])
    assert_type(data.to_tensordict(), TensorDict)
    assert_type(data.to_tensordict()[0], TensorDict)
    assert_type(lazy_stack([data, data]), Data)
    assert_type(lazy_stack([data, data])[0].label, str)
    assert_type(TensorDict.stack([data, data]), Data)
    assert_type(TensorDict.cat([data, data]).a, Tensor)
    td = TensorDict(a=torch.ones(3), batch_size=[3])
    assert_type(TensorDict.stack([td, td], 1), TensorDict)
    assert_type(td.to_tensordict(), TensorDict)


class Branch(TensorClass):
    value: Tensor
    left: Branch | None = None
    right: Branch | None = None


def trees() -> None:
    leaf = Branch(torch.zeros(3), batch_size=[3])
    tree = Branch(torch.ones(3), left=leaf, batch_size=[3])
    assert_type(tree.left, Branch | None)
    if tree.left is not None:
        assert_type(tree.left.value, Tensor)
        assert_type(tree.left[0].right, Branch | None)


def narrowing(value: Tensor | TensorDict = torch.zeros(3)) -> int:  # noqa: B008
    if isinstance(value, TensorDict):
        return len(value.keys())
    return value.numel()


for _program in [
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", None) == __name__
    and not isinstance(value, TypeVar)
    and value not in (Branch, generic_function, batches)
]:
    _program()
