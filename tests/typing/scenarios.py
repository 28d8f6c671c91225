"""Programs for type checkers, as users write them; run as a test as well."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import enum
import functools
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, assert_type, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    TensorDictBase,
    TensorDictParams,
    TypedTensorDict,
    UnbatchedTensor,
    assert_close,
    cat,
    dense_stack_tds,
    from_dict,
    is_tensorclass,
    lazy_stack,
    merge_tensordicts,
    pad,
    pad_sequence,
    set_capture_non_tensor_stack,
    stack,
)
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from tensordict.utils import NestedKey

TC = TypeVar("TC", bound=TensorClass)
V = TypeVar("V")


class Transition(TensorClass):
    observation: Tensor
    action: Tensor
    reward: Tensor
    done: Tensor | None = None

    @classmethod
    def blank(cls, size: int) -> Self:
        zeros = torch.zeros(size)
        return cls(zeros, zeros, zeros, batch_size=[size])

    @property
    def value(self) -> Tensor:
        return self.reward.sum()

    def scaled(self, factor: float) -> Self:
        return self.replace(reward=self.reward * factor)

    @staticmethod
    def names_of() -> list[str]:
        return ["observation", "action"]


class Episode(TensorClass):
    steps: Transition
    label: str = ""
    tags: list[str] = dataclasses.field(default_factory=list)
    info: dict[str, int] = dataclasses.field(default_factory=dict)


def transition(size: int = 3) -> Transition:
    return Transition.blank(size)


def replay_buffer() -> None:
    class Buffer(Generic[TC]):
        def __init__(self) -> None:
            self.items: list[TC] = []

        def extend(self, item: TC) -> None:
            self.items.extend(item.unbind(0))

        def sample(self, size: int) -> TC:
            return self.items[0].stack(self.items[:size])

    buffer: Buffer[Transition] = Buffer()
    buffer.extend(transition())
    assert_type(buffer.sample(2), Transition)
    assert_type(buffer.items[0].observation, Tensor)


def class_methods() -> None:
    data = Transition.blank(2)
    assert_type(data, Transition)
    assert_type(data.value, Tensor)
    assert_type(data.scaled(2.0), Transition)
    assert_type(data.scaled(2.0)[0].reward, Tensor)
    assert_type(Transition.names_of(), list[str])


def nested_fields() -> None:
    episode = Episode(transition(), label="first", tags=["a"] * 3, batch_size=[3])
    assert_type(episode.steps, Transition)
    assert_type(episode.steps.done, Tensor | None)
    assert_type(episode.label, str)
    assert_type(episode.tags, list[str])
    assert_type(episode.info, dict[str, int])
    assert_type(episode[0].steps[...].reward, Tensor)
    episode.label = "second"
    episode.steps = transition()


def narrowing_of_optional() -> None:
    data = transition()
    if data.done is None:
        data.done = torch.zeros(3)
    assert_type(data.done, Tensor)
    assert_type(data.done.shape, torch.Size)


def indexing_of_all_kinds() -> None:
    data = transition()
    mask = torch.tensor([True, False, True])
    assert_type(data[0], Transition)
    assert_type(data[-1:], Transition)
    assert_type(data[mask], Transition)
    assert_type(data[[0, 1]], Transition)
    assert_type(data[..., None], Transition)
    assert_type(data[np.array([0, 1])], Transition)
    assert_type(data[range(2)], Transition)
    data[0] = data[1]
    data[mask] = 0.0


def iteration_and_unpacking() -> None:
    data = transition()
    for row in data:
        assert_type(row, Transition)
    for index, row in enumerate(data):
        assert_type(index, int)
        assert_type(row.action, Tensor)
    first, *rest = data.unbind(0)
    assert_type(first, Transition)
    assert_type(rest, list[Transition])
    assert_type(list(data), list[Transition])
    assert_type([row.reward for row in data], list[Tensor])
    assert_type(list(zip(data, data, strict=True)), list[tuple[Transition, Transition]])


def splits() -> None:
    data = transition()
    assert_type(data.split(1)[0], Transition)
    assert_type(data.chunk(3)[0].reward, Tensor)
    assert_type(data.unbind(0)[0], Transition)


def chains() -> None:
    data = transition()
    made = data.clone().to(torch.float64).unsqueeze(0).expand(2, 3).reshape(-1)[0]
    assert_type(made, Transition)
    assert_type(data.detach().cpu().contiguous().view(-1), Transition)
    assert_type((data + 1) * 2, Transition)
    assert_type(-data, Transition)
    assert_type(data.exp().clamp(0, 1), Transition)


def torch_functions() -> None:
    data = transition()
    assert_type(data.stack([data, data]), Transition)
    assert_type(Transition.stack([data, data]), Transition)
    assert_type(Transition.cat([data, data]), Transition)
    assert_type(stack([data, data]), Transition)
    assert_type(cat([data, data], dim=0), Transition)


def lazy_stacks() -> None:
    tds = [TensorDict(a=torch.zeros(n)) for n in (1, 2)]
    lazy = LazyStackedTensorDict(*tds, stack_dim=0)
    lazy.append(TensorDict(a=torch.zeros(3)))
    lazy.extend(tds)
    lazy.insert(0, tds[0])
    assert_type(lazy.stack_dim, int)
    assert_type(len(lazy), int)
    for member in lazy.tensordicts:
        member.get("a")
    assert lazy[0].batch_size == torch.Size([])
    assert_type(lazy.batch_size, torch.Size)
    dense_stack_tds([TensorDict(a=torch.zeros(2)), TensorDict(a=torch.ones(2))], dim=0)
    assert_type(lazy_stack([transition(), transition()]), Transition)


def access_of_entries() -> None:
    td = TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(3)}}, batch_size=[3])
    a = td["a"]
    a.sum()
    c: Tensor = td["b", "c"]
    nested: TensorDict = td["b"]
    assert c.shape == nested["c"].shape
    assert_type(td[0], TensorDict)
    assert_type(td[:2], TensorDict)
    assert_type(td[None, ..., 0], TensorDict)
    td["d"] = torch.zeros(3)
    td["b", "e"] = torch.zeros(3)
    td["text"] = "text"
    td["list"] = [1, 2, 3]
    td["array"] = np.zeros(3)
    td["more"] = {"f": torch.zeros(3)}
    value = td.get("missing")
    assert value is None
    default: Tensor = td.get("missing", torch.zeros(3))
    assert default.shape == (3,)
    del td["more"]
    assert "a" in td.keys()
    assert ("b", "c") in td.keys(include_nested=True)


def keys_values_items() -> None:
    td = TensorDict(a=torch.zeros(3), b=TensorDict(c=torch.ones(3)))
    for key in td.keys():  # noqa: SIM118 - what is checked
        assert isinstance(key, str)
    for path, leaf in td.items(include_nested=True, leaves_only=True):
        assert isinstance(leaf, Tensor), path
    for value in td.values(True, True):
        value.sum()
    keys: list[NestedKey] = list(td.keys(True, True))
    assert td.select(*keys).keys() == td.keys()
    assert sorted(td.keys()) == ["a", "b"]
    assert dict(td.items()).keys() == {"a", "b"}


def as_mappings() -> None:
    def size(values: Mapping[str, Any]) -> int:
        return len(values.keys())

    def put(values: MutableMapping[str, Any]) -> None:
        values["z"] = torch.zeros(3)

    td = TensorDict(a=torch.zeros(3), batch_size=[3])
    assert size(td) == 1
    put(td)


def constructors() -> None:
    x = torch.zeros(3, 4)
    assert_type(TensorDict(), TensorDict)
    assert_type(TensorDict({"a": x}), TensorDict)
    assert_type(TensorDict({"a": x}, [3]), TensorDict)
    assert_type(TensorDict({"a": x}, batch_size=(3, 4)), TensorDict)
    assert_type(TensorDict({"a": x}, batch_size=torch.Size([3])), TensorDict)
    assert_type(TensorDict({"a": x}, 3), TensorDict)
    assert_type(TensorDict(a=x, device="cpu"), TensorDict)
    assert_type(TensorDict(a=x, device=torch.device("cpu")), TensorDict)
    assert_type(TensorDict({"a": x}, [3], names=["time"]), TensorDict)
    assert_type(TensorDict({"a": {"b": {"c": x}}}, lock=True), TensorDict)
    assert_type(TensorDict.from_dict({"a": x}, auto_batch_size=True), TensorDict)
    assert from_dict({"a": x}).batch_size == torch.Size([])
    assert TensorDict.fromkeys(["a", "b"], 0).keys() == {"a", "b"}


def context_managers() -> None:
    td = TensorDict(a=torch.zeros(3, 4), b=TensorDict(c=torch.ones(3)), batch_size=[3])
    with td.view(-1) as flat:
        flat["z"] = torch.zeros(3)
    with td.flatten_keys(".") as flattened:
        assert "b.c" in flattened.keys()
    with td.unsqueeze(0) as row:
        assert_type(row, TensorDict)
    with td.lock_() as locked:
        assert_type(locked.is_locked, bool)
    with td.unlock_() as unlocked, contextlib.suppress(KeyError):
        del unlocked["missing"]
    with set_capture_non_tensor_stack(False):
        pass
    with transition().view(-1) as rows:
        assert_type(rows, Transition)


def parameters_of_modules() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    params = TensorDict.from_module(module)
    assert params.keys() == {"0", "1"}
    with params.data.clone().to_module(module):
        module(torch.zeros(1, 3))
    wrapped = TensorDictParams(params)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    optimizer.step()
    doubled = params.data * 2
    assert doubled.apply(torch.zeros_like).sum().batch_size == torch.Size([])


def functional_calls() -> None:
    module = nn.Linear(3, 4)
    params = TensorDict.from_modules(module, nn.Linear(3, 4), as_module=True)

    def call(x: Tensor, parameters: TensorDict) -> Tensor:
        with parameters.to_module(module):
            result: Tensor = module(x)
        return result

    out = torch.vmap(call, (None, 0))(torch.zeros(2, 3), params)
    assert out.shape == (2, 2, 4)


def modules_in_sequence() -> None:
    first = TensorDictModule(nn.Linear(3, 4), in_keys=["x"], out_keys=["h"])
    second = TensorDictModule(torch.tanh, in_keys=["h"], out_keys=[("out", "y")])
    both = TensorDictSequential(first, second)
    td = both(TensorDict(x=torch.zeros(2, 3), batch_size=[2]))
    y: Tensor = td["out", "y"]
    assert y.shape == (2, 4)
    keys: list[NestedKey] = [*both.in_keys, *both.out_keys]
    assert keys[0] == "x"
    assert both[0] is first
    assert both.select_subsequence(out_keys=["h"]).out_keys == ["h"]


def probabilistic() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(3, 4), NormalParamExtractor())

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            loc, scale = self.layer(x)
            return loc, scale

    network = TensorDictModule(Policy(), in_keys=["x"], out_keys=["loc", "scale"])
    head = ProbabilisticTensorDictModule(
        in_keys=["loc", "scale"],
        out_keys=["action"],
        distribution_class=torch.distributions.Normal,
        return_log_prob=True,
    )
    policy = ProbabilisticTensorDictSequential(network, head)
    with set_interaction_type(InteractionType.MEAN):
        td = policy(TensorDict(x=torch.zeros(2, 3), batch_size=[2]))
    assert td["action"].shape == (2, 2)
    assert isinstance(policy.get_dist(td), torch.distributions.Distribution)


def own_modules() -> None:
    class Trainer(nn.Module):
        def __init__(self, module: TensorDictModule) -> None:
            super().__init__()
            self.module = module

        def loss(self, batch: TensorDictBase) -> Tensor:
            out = self.module(batch)
            value: Tensor = out["h"].pow(2).mean()
            return value

    trainer = Trainer(TensorDictModule(nn.Linear(3, 1), ["x"], ["h"]))
    loss = trainer.loss(TensorDict(x=torch.zeros(2, 3), batch_size=[2]))
    assert_type(torch.autograd.grad(loss, list(trainer.parameters()))[0], Tensor)


def datasets() -> None:
    class Rows(Dataset[Transition]):
        def __init__(self, data: Transition) -> None:
            self.data = data

        def __len__(self) -> int:
            return len(self.data)

        def __getitem__(self, index: int) -> Transition:
            return self.data[index]

    rows = Rows(transition(4))
    loader = DataLoader(rows, batch_size=2, collate_fn=Transition.stack)
    for batch in loader:
        assert batch.batch_size == torch.Size([2])
    td = TensorDict(a=torch.arange(4), batch_size=[4])
    other: DataLoader[Any] = DataLoader(
        cast("Dataset[Any]", td), batch_size=2, collate_fn=lambda x: x
    )
    assert len(list(other)) == 2


def typed_dictionaries() -> None:
    class State(TypedTensorDict):
        position: Tensor

    class Full(State):
        mass: Tensor

    state = State(position=torch.zeros(3), batch_size=[3])
    assert_type(state.position, Tensor)
    assert_type(state[0], State)
    assert_type(state.clone().position, Tensor)
    assert_type(state.to("cpu"), State)
    full = Full(position=torch.zeros(3), mass=torch.ones(3), batch_size=[3])
    assert_type(full.mass, Tensor)
    assert_type(full[:2].position, Tensor)
    position: Tensor = full["position"]
    assert position.shape == (3,)
    full.mass = torch.zeros(3)
    assert_type(State.from_tensordict(TensorDict(position=torch.zeros(3))), State)
    both: list[State] = [state, full]
    assert len(both) == 2


def non_tensors() -> None:
    text = NonTensorData("text", batch_size=[3])
    assert text.data == "text"
    assert_type(text.batch_size, torch.Size)
    assert text.tolist() == ["text"] * 3
    values = NonTensorStack("a", "b")
    assert values.tolist() == ["a", "b"]
    assert MetaData("text").data == "text"
    td = TensorDict(text=text, batch_size=[3])
    found: str = td["text"]
    assert found == "text"
    td.set_non_tensor("other", object())
    td.get_non_tensor("other")
    unbatched = UnbatchedTensor(torch.zeros(5))
    assert_type(unbatched.batch_size, torch.Size)


def generic_fields() -> None:
    class Box(TensorClass, Generic[V]):
        content: V
        weight: Tensor | None = None

        def get_content(self) -> V:
            return self.content

    box = Box(torch.zeros(3), batch_size=[3])
    assert_type(box.content, Tensor)
    assert_type(box[0].get_content(), Tensor)
    text: Box[str] = Box("text")
    assert_type(text.content, str)


def inheritance() -> None:
    class Base(TensorClass):
        a: Tensor

        def total(self) -> Tensor:
            return self.a.sum()

    class Middle(Base):
        b: Tensor | None = None

        def total(self) -> Tensor:
            rest = 0 if self.b is None else self.b.sum()
            return super().total() + rest

    class Last(Middle):
        c: int = 3

    last = Last(torch.ones(2), c=4, batch_size=[2])
    assert_type(last.clone(), Last)
    assert_type(last.total(), Tensor)
    assert_type(last.c, int)
    bases: Iterable[Base] = [Base(torch.ones(2)), last]
    assert sum(float(base.total()) for base in bases) == 4


def abstract_bases() -> None:
    class Scored(abc.ABC):
        @abc.abstractmethod
        def score(self) -> float: ...

    class Result(TensorClass, Scored):
        value: Tensor

        def score(self) -> float:
            return float(self.value.sum())

    results: list[Scored] = [Result(torch.ones(2))]
    assert results[0].score() == 2


def options() -> None:
    class Frozen(TensorClass, frozen=True):
        a: Tensor

    class Cast(TensorClass, autocast=True):
        a: Tensor
        count: int = 0

    class Raw(TensorClass, nocast=True):
        count: int

    class Only(TensorClass["tensor_only"]):
        a: Tensor

    assert_type(Frozen(torch.zeros(2)).a, Tensor)
    assert_type(Cast(torch.zeros(2), count=3).count, int)
    assert_type(Raw(3).count, int)
    assert_type(Only(torch.zeros(2))[None].a, Tensor)


def fields_of_all_kinds() -> None:
    class Color(enum.Enum):
        RED = 1

    class Kinds(TensorClass):
        version: ClassVar[int] = 1
        a: Tensor
        color: Color = Color.RED
        call: Callable[[int], int] | None = None
        pair: tuple[int, str] = (1, "one")
        late: Tensor = dataclasses.field(init=False)
        scale: float = dataclasses.field(default=1.0, kw_only=True)

        def __post_init__(self) -> None:
            self.late = self.a * 2

    kinds = Kinds(torch.ones(2), scale=2.0)
    assert_type(Kinds.version, int)
    assert_type(kinds.color, Color)
    assert_type(kinds.pair, tuple[int, str])
    assert_type(kinds.late, Tensor)
    assert_type(kinds.scale, float)
    if kinds.call is not None:
        assert_type(kinds.call(1), int)


def init_variables() -> None:
    class Scaled(TensorClass):
        a: Tensor
        factor: dataclasses.InitVar[float] = 2.0

        def __post_init__(self, factor: float) -> None:
            self.a = self.a * factor

    assert_type(Scaled(torch.ones(2), factor=3.0).a, Tensor)


def as_dataclasses() -> None:
    data = transition()
    assert_type(dataclasses.replace(data, reward=torch.ones(3)), Transition)
    assert [field.name for field in dataclasses.fields(Transition)][0] == "observation"
    assert dataclasses.is_dataclass(data)
    assert set(dataclasses.asdict(data)) >= {"observation", "action"}


def functions_over_classes() -> None:
    def normalized(data: TC) -> TC:
        return data / 2

    def mapped(function: Callable[[Transition], V], data: Transition) -> list[V]:
        return [function(row) for row in data]

    assert_type(normalized(transition()), Transition)
    assert_type(mapped(lambda row: row.reward, transition()), list[Tensor])
    assert_type(mapped(Transition.clone, transition()), list[Transition])
    halve = functools.partial(Transition.scaled, factor=0.5)
    assert_type(halve(transition()), Transition)


def conversions() -> None:
    data = transition()
    assert_type(data.to_tensordict(), TensorDict)
    assert_type(data.to_dict(), dict[str, Any])
    assert_type(Transition.from_tensordict(data.to_tensordict()), Transition)
    assert_type(Transition.from_dict(data.to_dict(), batch_size=[3]), Transition)
    assert_type(is_tensorclass(data), bool)
    assert_type(data.batch_size, torch.Size)
    assert_type(data.device, torch.device | None)
    assert_type(data.numel(), int)
    assert_type(data.is_empty(), bool)


def files() -> None:
    data = transition()
    with tempfile.TemporaryDirectory() as folder:
        assert_type(data.memmap(folder), Transition)
        assert_type(Transition.load_memmap(folder), Transition)
        path = Path(folder) / "td"
        TensorDict(a=torch.zeros(3)).save(path)
        loaded = TensorDict.load(path)
        assert loaded.keys() == {"a"}
    state: dict[str, Any] = TensorDict(a=torch.zeros(3)).state_dict()
    TensorDict(a=torch.ones(3)).load_state_dict(state)


def setters() -> None:
    data = transition()
    data.batch_size = []
    data.batch_size = torch.Size([3])
    data.names = ["time"]
    td = data.to_tensordict()
    td.batch_size = [3]
    td.names = ["time"]
    data.action = data.action + 1
    data.reward += 1
    assert_type(data.reward, Tensor)


def chained_updates() -> None:
    td = TensorDict(a=torch.zeros(3), batch_size=[3])
    assert_type(td.set("b", torch.ones(3)), TensorDict)
    assert_type(td.update({"c": torch.ones(3)}), TensorDict)
    assert_type(td.update_(td.clone()), TensorDict)
    assert_type(td.rename_key_("c", "d"), TensorDict)
    assert_type(td.exclude("d").select("a"), TensorDict)
    assert_type(td.set_("a", torch.ones(3)).fill_("a", 0.0), TensorDict)
    assert_type(transition().set("reward", torch.zeros(3)), Transition)
    td.pop("b")
    td.pop("missing", None)


def reductions() -> None:
    data = transition()
    data.sum(dim=0)
    td = TensorDict(a=torch.ones(3, 2), batch_size=[3])
    total: Tensor = td.sum(dim=0)["a"]
    assert total.shape == (2,)
    assert td.mean(0).batch_size == torch.Size([])
    assert td.sum(reduce=True) == 6
    assert bool((td == td).all())
    assert bool((td > 0).any())


def functions_of_the_package() -> None:
    tds = [TensorDict(a=torch.zeros(n), batch_size=[n]) for n in (1, 2)]
    padded = pad_sequence(tds)
    assert padded.batch_size == torch.Size([2, 2])
    assert pad(tds[0], [0, 1]).batch_size == torch.Size([2])
    merged = merge_tensordicts(tds[0], TensorDict(b=torch.zeros(1), batch_size=[1]))
    assert merged.keys() == {"a", "b"}
    assert_close(tds[0], tds[0].clone())


def coroutines() -> None:
    async def produce(size: int) -> Transition:
        await asyncio.sleep(0)
        return transition(size)

    async def gather() -> tuple[Transition, Transition]:
        return await asyncio.gather(produce(1), produce(2))

    first, second = asyncio.run(gather())
    assert_type(first, Transition)
    assert_type(second.reward, Tensor)


def patterns() -> None:
    def count(value: Tensor | Transition | TensorDict) -> int:
        match value:
            case Tensor():
                return value.numel()
            case Transition():
                return value.reward.numel()
            case TensorDict():
                return len(value.keys())

    assert count(transition()) == 3
    assert count(TensorDict(a=torch.zeros(3))) == 1


def subclasses_of_tensordict() -> None:
    class Rollout(TensorDict):
        def returns(self) -> Tensor:
            total: Tensor = self["reward"].cumsum(0)
            return total

    rollout = Rollout(reward=torch.ones(3), batch_size=[3])
    assert_type(rollout[:2], Rollout)
    assert_type(rollout.clone().returns(), Tensor)
    assert_type(rollout.to("cpu"), Rollout)
    assert_type(rollout + 1, Rollout)


def as_attributes() -> None:
    @dataclasses.dataclass
    class Config:
        data: Transition
        extra: TensorDict = dataclasses.field(default_factory=TensorDict)

    config = Config(transition())
    assert_type(config.data.reward, Tensor)
    assert_type(config.extra.is_locked, bool)


def cached() -> None:
    class Cached(TensorClass):
        a: Tensor

        def __len__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "Cached()"

        def __add__(self, other: Any) -> Self:
            return self.replace(a=self.a + other)

    cached = Cached(torch.zeros(3))
    assert_type(cached + 1, Cached)
    assert len(cached) == 7


_PROGRAMS = [
    value
    for value in list(globals().values())
    if isinstance(value, types.FunctionType) and value.__module__ == __name__
]
for _program in _PROGRAMS:
    _program()
