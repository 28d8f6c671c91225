"""Programs for type checkers: tensorclasses of the class form; run as a test, too."""

from __future__ import annotations

from typing import Any, assert_type

import torch

from tensordict import TensorClass, TensorDict


class Inner(TensorClass):
    z: torch.Tensor


class Data(TensorClass):
    image: torch.Tensor
    label: torch.Tensor | None = None
    inner: Inner | None = None
    text: str = "none"

    def doubled(self) -> torch.Tensor:
        return self.image * 2


class Raw(TensorClass, nocast=True):
    number: int


data = Data(torch.zeros(3, 4), label=torch.ones(3), batch_size=[3])
Data(image=torch.zeros(3), batch_size=[3], device="cpu", names=["time"])

assert_type(data.image, torch.Tensor)
assert_type(data.label, torch.Tensor | None)
assert_type(data.inner, Inner | None)
assert_type(data.text, str)
assert_type(Raw(3).number, int)
assert_type(data.doubled(), torch.Tensor)

assert_type(data.clone(), Data)
assert_type(data.view(3, 1), Data)
assert_type(data.reshape(3, 1), Data)
assert_type(data.unsqueeze(0), Data)
assert_type(data.expand(2, 3), Data)
assert_type(data.contiguous(), Data)
assert_type(data.detach(), Data)
assert_type(data.to("cpu"), Data)
assert_type(data.lock_(), Data)
assert_type(data.unlock_(), Data)
assert_type(data.copy(), Data)
assert_type(data.batch_size, torch.Size)
assert_type(data.device, torch.device | None)
assert_type(data[0], Data)
assert_type(data[:2], Data)
assert_type(data[..., None], Data)

data.image = torch.zeros(3)
data.label = None

td = TensorDict({"a": torch.zeros(3)}, batch_size=[3])
assert_type(td[0], TensorDict)
assert_type(td[torch.tensor([0, 1])], TensorDict)
assert_type(td.clone(), TensorDict)
assert_type(Data.from_tensordict(TensorDict(image=torch.zeros(3))), Data)
value: Any = td["a"]
