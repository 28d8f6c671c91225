"""Programs for type checkers: code as users write it; run as a test as well."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import assert_type

import torch
from torch import Tensor, nn

from tensordict import (
    LazyStackedTensorDict,
    TensorClass,
    TensorDict,
    TensorDictBase,
    TensorDictParams,
    TypedTensorDict,
    UnbatchedTensor,
    lazy_stack,
)
from tensordict.nn import TensorDictModule, TensorDictSequential


class Step(TensorClass):
    obs: Tensor
    reward: Tensor | None = None
    task: str = "walk"


class State(TypedTensorDict):
    obs: Tensor
    count: Tensor


def make(size: int = 3) -> Step:
    return Step(torch.zeros(size, 4), batch_size=[size])


def plain() -> TensorDict:
    nested = {"b": torch.zeros(3, 2)}
    return TensorDict({"a": torch.zeros(3), "n": nested}, batch_size=[3])


def entries_of_a_dictionary() -> None:
    td = plain()
    first: Tensor = td["a"]
    deep: Tensor = td["n", "b"]
    assert_type(td[0], TensorDict)
    assert_type(td[..., None], TensorDict)
    assert_type(td[torch.tensor([0, 2])], TensorDict)
    assert_type(td[1:, None], TensorDict)
    assert td.get("none", None) is None
    assert first.shape[0] == deep.shape[0]
    assert len(td.keys(True, True)) == 2


def loops_over_entries() -> None:
    td = plain()
    total = 0
    for key in td.keys(include_nested=True, leaves_only=True):
        total += len(key)
    for name, value in td.items():
        assert isinstance(name, str)
        assert value.shape[0] == 3
    shapes = [value.shape for value in td.values(True, True)]
    assert total == 3
    assert len(shapes) == 2


def functions_of_leaves() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    td = plain().apply(double)
    assert td is not None
    step = make().apply(double)
    assert step is not None
    assert_type(step.named_apply(lambda name, x: x, nested_keys=True), Step)


def training_step() -> None:
    model = TensorDictSequential(
        TensorDictModule(nn.Linear(4, 2), in_keys=["obs"], out_keys=["hidden"]),
        TensorDictModule(nn.Tanh(), in_keys=["hidden"], out_keys=["action"]),
    )
    params = TensorDict.from_module(model)
    td = TensorDict(obs=torch.zeros(3, 4), batch_size=[3])
    with params.to_module(model):
        out = model(td)
    action: Tensor = out["action"]
    loss = action.pow(2).mean()
    torch.autograd.backward(loss)
    optimizer = torch.optim.SGD(list(model.parameters()), lr=0.1)
    optimizer.step()


def module_that_holds_parameters() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = TensorDictParams(TensorDict(w=torch.zeros(4, 2)))

        def forward(self, step: Step) -> Tensor:
            weight: Tensor = self.weights["w"]
            return step.obs @ weight

    policy = Policy()
    assert policy.forward(make()).shape == (3, 2)
    assert [name for name, _ in policy.named_parameters()]


def buffer_of_steps() -> None:
    storage = make(8).clone().zero_()
    for index, step in enumerate(make(2).unbind(0)):
        assert_type(step, Step)
        storage[index] = step
    batch = storage[torch.randint(8, (4,))]
    assert_type(batch, Step)
    assert_type(batch.reshape(2, 2).obs, Tensor)
    if batch.reward is not None:
        assert_type(batch.reward, Tensor)


def joined_steps() -> None:
    assert_type(Step.stack([make(), make()]), Step)
    assert_type(Step.cat([make(), make()], dim=0), Step)
    steps: list[Tensor] = [make().obs, make().obs]
    assert_type(torch.stack(steps), Tensor)
    assert lazy_stack([plain(), plain()]).batch_size == (2, 3)
    stacked = LazyStackedTensorDict(plain(), plain(), stack_dim=0)
    assert stacked.stack_dim == 0


def there_and_back() -> None:
    assert_type(Step.from_dict({"obs": torch.zeros(3, 4)}, batch_size=[3]), Step)
    td = make().to_tensordict()
    assert_type(td, TensorDict)
    assert_type(Step.from_tensordict(td), Step)


def files() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        assert_type(make().memmap(path / "step"), Step)
        assert_type(Step.load_memmap(path / "step"), Step)
        plain().save(path / "plain")
        loaded = TensorDict.load(path / "plain")
        assert loaded.batch_size == torch.Size([3])


def typed_states() -> None:
    state = State(obs=torch.zeros(3), count=torch.zeros(3), batch_size=[3])
    assert_type(state.obs, Tensor)
    assert_type(state[0], State)
    assert_type(state.clone().count, Tensor)
    assert_type(state.to("cpu"), State)
    state.count = torch.ones(3)
    state["obs"] = torch.ones(3)


def contexts() -> None:
    td = plain()
    with td.lock_() as locked:
        assert locked.is_locked
    with td.view(3, 1) as seen:
        seen["c"] = torch.zeros(3, 1)
    step = make()
    with step.unlock_() as open_step:
        assert_type(open_step, Step)
        open_step.obs = torch.ones(3, 4)


def values_without_batch() -> None:
    td = plain()
    td["shared"] = UnbatchedTensor(torch.zeros(7))
    assert_type(td[0], TensorDict)


def code_over_any_collection() -> None:
    def normalized(td: TensorDictBase) -> TensorDictBase:
        return td.detach().to(torch.float64) / 2

    assert_type(normalized(plain()), TensorDictBase)


for _program in [
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", None) == __name__
    and not isinstance(value, type)
]:
    _program()
