"""Programs for type checkers: classes in everyday code; run as a test as well."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, assert_type

import torch
from torch import Tensor, nn

from tensordict import (
    MetaData,
    NonTensorData,
    TensorClass,
    TensorDict,
    TypedTensorDict,
    UnbatchedTensor,
    cat,
    from_dataclass,
    is_tensor_collection,
    lazy_stack,
    pad_sequence,
    stack,
)
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)

T = TypeVar("T")


class Part(Enum):
    TRAIN = 1
    TEST = 2


class Boxes(TensorClass):
    xyxy: Tensor
    score: Tensor
    label: Tensor | None = None

    @property
    def area(self) -> Tensor:
        return (self.xyxy[..., 2:] - self.xyxy[..., :2]).prod(-1)

    def best(self, count: int) -> Self:
        return self[self.score.argsort(descending=True)[:count]]


class Image(TensorClass["nocast"]):
    pixels: Tensor
    boxes: Boxes
    path: str = ""
    part: Part = Part.TRAIN
    note: str = dataclasses.field(default_factory=str)


class Transition(TensorClass):
    obs: Tensor
    action: Tensor
    reward: Tensor
    done: Tensor
    kind: ClassVar[str] = "transition"

    @classmethod
    def zeros(cls, *size: int) -> Self:
        return cls(
            obs=torch.zeros(*size, 4),
            action=torch.zeros(*size, 2),
            reward=torch.zeros(*size),
            done=torch.zeros(*size, dtype=torch.bool),
            batch_size=size,
        )

    def returns(self, gamma: float = 0.9) -> Tensor:
        total = torch.zeros_like(self.reward[0])
        for step in reversed(self.unbind(0)):
            total = step.reward + gamma * total * (~step.done).float()
        return total


class Recurrent(Transition):
    hidden: Tensor | None = None


class Pair(TensorClass, Generic[T]):
    left: Tensor
    right: T


class Pose(TypedTensorDict):
    position: Tensor
    velocity: Tensor


class Body(Pose):
    mass: Tensor


def boxes(count: int = 3) -> Boxes:
    return Boxes(torch.rand(count, 4), torch.rand(count), batch_size=[count])


def a_property_of_fields() -> None:
    assert_type(boxes().area, Tensor)
    assert_type(boxes()[0].area, Tensor)


def a_method_that_gives_the_class() -> None:
    assert_type(boxes().best(2), Boxes)
    assert_type(boxes().best(2).best(1).score, Tensor)


def a_class_in_a_class() -> None:
    image = Image(torch.zeros(3, 8, 8), boxes(), batch_size=[3])
    assert_type(image.boxes, Boxes)
    assert_type(image[:2].boxes.area, Tensor)
    assert_type(image.boxes.label, Tensor | None)
    image.boxes = boxes()
    image.boxes.score = torch.zeros(3)


def fields_that_are_no_tensors() -> None:
    image = Image(torch.zeros(8), boxes(1)[0], "a.png", Part.TEST, "x")
    assert_type(image.path, str)
    assert_type(image.part, Part)
    assert_type(image.note, str)
    image.path = "b.png"
    assert image.path.endswith("png")


def a_class_method_that_makes_one() -> None:
    assert_type(Transition.zeros(3, 2), Transition)
    assert_type(Recurrent.zeros(3), Recurrent)
    assert_type(Recurrent.zeros(3).hidden, Tensor | None)
    assert_type(Transition.kind, str)


def a_rollout() -> None:
    steps: list[Transition] = [Transition.zeros(2) for _ in range(3)]
    rollout = stack(steps, 0)
    assert_type(rollout, Transition)
    assert_type(rollout.returns(), Tensor)
    assert_type(rollout.batch_size[0], int)


def a_loop_over_batches() -> None:
    def batches(data: Transition, size: int) -> Iterator[Transition]:
        for start in range(0, len(data), size):
            yield data[start : start + size]

    total = 0
    for batch in batches(Transition.zeros(5), 2):
        assert_type(batch, Transition)
        total += len(batch)
    assert total == 5


def a_child_where_its_parent_is_asked_for() -> None:
    def reward(step: Transition) -> float:
        return step.reward.mean().item()

    assert reward(Recurrent.zeros(3)) == 0
    several: list[Transition] = [Recurrent.zeros(3), Transition.zeros(3)]
    assert [type(each) for each in several] == [Recurrent, Transition]


def a_generic_class() -> None:
    pair = Pair(torch.zeros(3), boxes(), batch_size=[3])
    assert_type(pair, Pair[Boxes])
    assert_type(pair.right.area, Tensor)
    assert_type(pair[0].right, Boxes)
    texts = Pair[str](torch.zeros(3), "text", batch_size=[3])
    assert_type(texts.clone().right, str)


def a_generic_function() -> None:
    C = TypeVar("C", bound=TensorClass)

    def twice(data: C) -> C:
        return cat([data, data])

    assert_type(twice(boxes()), Boxes)
    assert_type(twice(Recurrent.zeros(2)), Recurrent)


def changes_of_shape() -> None:
    data = Transition.zeros(2, 6)
    assert_type(data.reshape(-1), Transition)
    assert_type(data.view(12), Transition)
    assert_type(data.flatten(0, 1).unflatten(0, (3, 4)), Transition)
    assert_type(data.transpose(0, 1).contiguous(), Transition)
    assert_type(data.unsqueeze(-1).squeeze(-1), Transition)
    assert_type(data.expand(3, 2, 6).permute(2, 0, 1), Transition)
    assert_type(data.repeat(2, 1), Transition)
    assert_type(data.repeat_interleave(2, dim=0), Transition)


def moves() -> None:
    data = boxes()
    assert_type(data.to("cpu", torch.float64), Boxes)
    assert_type(data.to(device="cpu"), Boxes)
    assert_type(data.to(torch.device("cpu"), non_blocking=True), Boxes)
    assert_type(data.cpu().double().half().bfloat16(), Boxes)
    assert_type(data.detach().requires_grad_(), Boxes)
    assert_type(data.type(torch.int64), Boxes)


def functions_of_entries() -> None:
    data = boxes()
    assert_type(data.apply(torch.neg), Boxes)
    assert_type(data.apply(lambda x, y: x + y, data), Boxes)
    assert_type(data.named_apply(lambda name, x: x), Boxes)
    assert_type(data.exp().log().clamp(0, 1), Boxes)
    assert_type(data.lerp(data, 0.5), Boxes)
    assert_type(data * data.score.unsqueeze(-1).sum() + 1, Boxes)


def comparisons_of_classes() -> None:
    data = boxes()
    assert_type(data == data, Boxes)
    assert_type(data != 0, Boxes)
    assert_type((data > 0.5).score, Tensor)
    if (data == data.clone()).all():
        data.zero_()


def comparisons_of_dictionaries() -> None:
    td = TensorDict(a=torch.zeros(3), batch_size=[3])
    assert_type(td == td, TensorDict)
    assert_type(td <= 2, TensorDict)
    pose = Pose(position=torch.zeros(3), velocity=torch.zeros(3))
    assert_type(pose == pose, TensorDict)


def keys_of_dictionaries() -> None:
    td = TensorDict(b=torch.zeros(3), a=torch.zeros(3), batch_size=[3])
    names: list[str] = sorted(td.keys())
    assert_type(min(td.keys()).upper(), str)
    assert_type(td.keys() & {"a"}, set[str])
    assert names == ["a", "b"]
    assert_type(len(td.keys()), int)
    assert_type("a" in td.keys(), bool)  # noqa: SIM118
    assert len(list(td.keys(include_nested=True, leaves_only=True))) == 2


def replaced_fields() -> None:
    data = boxes()
    assert_type(dataclasses.replace(data, score=torch.zeros(3)), Boxes)
    assert_type(data.replace(score=torch.zeros(3)), Boxes)
    assert_type(copy.copy(data), Boxes)
    assert_type(copy.deepcopy(data), Boxes)
    again: Boxes = pickle.loads(pickle.dumps(data))
    assert again.score.shape == (3,)


def dictionaries_and_back() -> None:
    data = Boxes.from_dict({"xyxy": torch.zeros(3, 4), "score": torch.zeros(3)})
    assert_type(data, Boxes)
    assert_type(data.to_dict(), dict[str, Any])
    assert_type(data.to_tensordict().select("score"), TensorDict)
    assert_type(Boxes.from_tensordict(data.to_tensordict()), Boxes)


def declared_keys() -> None:
    body = Body(
        position=torch.zeros(3),
        velocity=torch.zeros(3),
        mass=torch.ones(3),
        batch_size=3,
    )
    assert_type(body.mass, Tensor)
    assert_type(body[0], Body)
    assert_type(body.reshape(3, 1).position, Tensor)

    def energy(pose: Pose) -> Tensor:
        return pose.velocity.square().sum()

    def size(td: TensorDict) -> int:
        return td.numel()

    assert energy(body) == 0
    assert size(body) == 3
    assert_type(Body.from_tensordict(body), Body)


def optional_fields() -> None:
    def labels(data: Boxes) -> Tensor:
        if data.label is None:
            return torch.zeros(len(data))
        return data.label

    assert_type(labels(boxes()), Tensor)
    labelled = boxes()
    labelled.label = torch.ones(3)
    labelled.label = None


def after_init() -> None:
    class Checked(TensorClass):
        rows: Tensor
        center: Tensor | None = None

        def __post_init__(self) -> None:
            if self.center is None:
                self.center = self.rows.mean(-1)

    checked = Checked(torch.zeros(3, 4), batch_size=[3])
    assert_type(checked.center, Tensor | None)
    assert_type(checked[0], Checked)


def literals_and_unions() -> None:
    class Mode(TensorClass["nocast"]):
        x: Tensor
        mode: Literal["train", "eval"] = "train"
        scale: float | Tensor = 1.0

    mode = Mode(torch.zeros(3), "eval", 2.0)
    assert_type(mode.mode, Literal["train", "eval"])
    assert_type(mode.scale, float | Tensor)


def modules_over_classes() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        def forward(self, step: Transition) -> Transition:
            return step.replace(action=self.net(step.obs))

    step = Policy().forward(Transition.zeros(3))
    assert_type(step, Transition)
    loss = step.action.sum()
    torch.autograd.backward(loss)


def modules_of_tensordict() -> None:
    first = TensorDictModule(nn.Linear(4, 3), in_keys=["obs"], out_keys=["h"])
    second = TensorDictModule(torch.tanh, in_keys=["h"], out_keys=["out"])
    both = TensorDictSequential(first, second)
    td = TensorDict(obs=torch.zeros(2, 4), batch_size=[2])
    out: Tensor = both(td)["out"]
    assert out.shape == (2, 3)
    assert both.in_keys == ["obs"]
    assert [str(key) for key in both.out_keys] == ["h", "out"]
    sampled = TensorDictSequential(
        both,
        ProbabilisticTensorDictModule(
            in_keys={"logits": "out"},
            out_keys=["action"],
            distribution_class=torch.distributions.Categorical,
        ),
    )
    with set_interaction_type(InteractionType.RANDOM):
        assert sampled(td)["action"].shape == (2,)


def values_of_other_kinds() -> None:
    td = TensorDict(batch_size=[2])
    td["text"] = NonTensorData("a", batch_size=[2])
    td["meta"] = MetaData("b", batch_size=[2])
    td["shared"] = UnbatchedTensor(torch.zeros(7))
    text: str = td["text"]
    assert text == "a"
    assert_type(td.get_non_tensor("text"), Any)
    assert is_tensor_collection(td)


def dataclasses_of_others() -> None:
    @dataclasses.dataclass
    class Plain:
        a: Tensor
        b: int

    made = from_dataclass(Plain(torch.zeros(3), 4))
    assert made.get("a").shape == (3,)
    assert TensorDict.from_dataclass(Plain(torch.zeros(3), 4))["b"] == 4


def sequences_of_classes() -> None:
    def total(steps: Iterable[Transition]) -> Tensor:
        return torch.stack([step.reward.sum() for step in steps]).sum()

    assert total(Transition.zeros(3)) == 0
    assert total(lazy_stack([Transition.zeros(3), Transition.zeros(3)])) == 0
    assert_type(Transition.lazy_stack([Transition.zeros(3)]), Transition)
    padded = pad_sequence(
        [TensorDict(a=torch.zeros(n), batch_size=[n]) for n in (1, 2)]
    )
    assert padded["a"].shape == (2, 2)


def writes_at_indices() -> None:
    buffer = Transition.zeros(10)
    buffer[3] = Transition.zeros(1)[0]
    buffer[torch.tensor([1, 2])] = Transition.zeros(2)
    buffer[:5] = 0
    buffer.set_("reward", torch.ones(10))
    assert_type(buffer.update_({"reward": torch.zeros(10)}), Transition)
    assert_type(buffer[buffer.done], Transition)


def matches() -> None:
    def name(value: object) -> str:
        match value:
            case Recurrent():
                return "recurrent"
            case Transition(reward=reward):
                return f"transition of {reward.ndim}"
        return "other"

    assert name(Recurrent.zeros(2)) == "recurrent"
    assert name(Transition.zeros(2)) == "transition of 1"


for _program in [
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", None) == __name__
    and not isinstance(value, (type, TypeVar))
]:
    _program()
