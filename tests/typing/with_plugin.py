"""Programs for mypy with the plugin of this package; run as a test as well."""

from __future__ import annotations

from typing import NotRequired, Self, TypedDict, TypeVar, assert_type

import torch
from torch import Tensor

from tensordict import TensorClass, TensorDict, TensorDictBase, TypedTensorDict

AnyDict = TypeVar("AnyDict", bound=TensorDictBase)


class Data(TensorClass):
    a: Tensor

    def followed_by(self, other: Self) -> Self:
        return torch.cat([self, other])

    def row(self) -> Self:
        return torch.unbind(self, 0)[0]


class State(TypedTensorDict):
    position: Tensor
    velocity: NotRequired[Tensor]


class Options(TypedDict):
    size: NotRequired[int]


def keys_that_need_not_be_given() -> None:
    state = State(position=torch.zeros(3), batch_size=[3])
    assert "velocity" not in state
    state.velocity = torch.ones(3)
    assert_type(state.velocity, Tensor)
    assert_type(state["velocity"], Tensor)
    options: Options = {}
    assert "size" not in options


def functions_of_torch() -> None:
    data = Data(torch.zeros(4), batch_size=[4])
    td = TensorDict(a=torch.zeros(4), batch_size=[4])
    assert_type(torch.stack([td, td]), TensorDict)
    assert_type(torch.cat((data, data)), Data)
    assert_type(torch.zeros_like(data), Data)
    assert_type(torch.full_like(td, 2), TensorDict)
    assert_type(torch.clone(data), Data)
    assert_type(torch.abs(data).a, Tensor)
    assert_type(torch.abs(data.a), Tensor)


def functions_of_shape() -> None:
    data = Data(torch.zeros(4), batch_size=[4])
    assert_type(torch.reshape(data, (2, 2)), Data)
    assert_type(torch.unsqueeze(data, 0), Data)
    assert_type(torch.squeeze(data), Data)
    assert_type(torch.squeeze(data.a), Tensor)
    assert_type(torch.flatten(data, 0), Data)
    assert_type(torch.permute(data, [0]), Data)
    assert_type(torch.roll(data, 1, 0), Data)
    assert_type(torch.masked_select(data, torch.ones(4).bool()), Data)
    assert_type(torch.gather(data, 0, torch.zeros(2, dtype=torch.int64)), Data)


def functions_that_take_apart() -> None:
    data = Data(torch.zeros(4), batch_size=[4])
    assert_type(torch.unbind(data, 0), tuple[Data, ...])
    assert_type(torch.split(data, 2), tuple[Data, ...])
    assert_type(torch.chunk(data, 2), tuple[Data, ...])
    assert_type(torch.unbind(data.a), tuple[Tensor, ...])


def variables_of_types() -> None:
    def twice(td: AnyDict) -> AnyDict:
        return torch.stack([td, torch.clone(td)])

    td = TensorDict(a=torch.zeros(4), batch_size=[4])
    data = Data(torch.zeros(4), batch_size=[4])
    assert_type(twice(td), TensorDict)
    assert_type(data.followed_by(data).row(), Data)
    assert_type(torch.where(data.a > 0, data, data + 1), Data)
    assert_type(torch.where(td["a"] > 0, td, 0), TensorDict)
    assert_type(torch.where(data.a > 0, data.a, data.a + 1), Tensor)


for _program in (
    variables_of_types,
    keys_that_need_not_be_given,
    functions_of_torch,
    functions_of_shape,
    functions_that_take_apart,
):
    _program()
