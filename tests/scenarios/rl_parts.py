"""Parts that programs of reinforcement learning share: networks, data, a short view."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from tensordict import TensorDict, is_tensor_collection

RECORDED = "0.14"
"""The version of TorchRL whose numbers are recorded."""


def torchrl() -> Any:
    """Skip the program where TorchRL is missing, or another one than was recorded."""
    found = pytest.importorskip("torchrl")
    logging.getLogger("torchrl").setLevel(logging.ERROR)
    if not found.__version__.startswith(RECORDED):
        pytest.skip(f"the answers are those of TorchRL {RECORDED}")
    # Its distributions declare classes where instances of constraints are checked.
    torch.distributions.Distribution.set_default_validate_args(False)
    return found


def seen(value: Any) -> Any:
    """Describe a result by shapes, dtypes and rounded sums, which hold for any torch."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), _sum(value)]
    if is_tensor_collection(value) and hasattr(value, "items"):
        if type(value).__name__ in ("NonTensorData", "NonTensorStack"):
            return value.tolist()
        entries = sorted(value.items(), key=lambda item: item[0])
        return [list(value.batch_size), {key: seen(item) for key, item in entries}]
    return value


def _sum(value: torch.Tensor) -> float:
    return round(float(value.detach().double().nan_to_num().sum()), 2)


def actor(out: int = 2, key: str = "action") -> Any:
    """A deterministic policy."""
    from torchrl.modules import Actor

    return Actor(torch.nn.Linear(3, out), in_keys=["observation"], out_keys=[key])


def gaussian(**options: Any) -> Any:
    """A policy of squashed normal distributions over two actions."""
    from torchrl.data import Bounded
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal

    from tensordict.nn import TensorDictModule

    net = torch.nn.Sequential(torch.nn.Linear(3, 4), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        spec=Bounded(-1, 1, (2,)),
        **options,
    )


def categorical(**options: Any) -> Any:
    """A policy over three actions, as one-hot."""
    from torchrl.data import OneHot
    from torchrl.modules import OneHotCategorical, ProbabilisticActor

    from tensordict.nn import TensorDictModule

    return ProbabilisticActor(
        TensorDictModule(
            torch.nn.Linear(3, 3), in_keys=["observation"], out_keys=["logits"]
        ),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        spec=OneHot(3),
        **options,
    )


def value() -> Any:
    """A state value."""
    from torchrl.modules import ValueOperator

    return ValueOperator(torch.nn.Linear(3, 1), in_keys=["observation"])


def qvalue(actions: int = 2) -> Any:
    """A value of a state and an action."""
    from torchrl.modules import MLP, ValueOperator

    net = MLP(in_features=3 + actions, out_features=1, num_cells=[4])
    return ValueOperator(net, in_keys=["observation", "action"])


def steps(*size: int, actions: int = 2) -> TensorDict:
    """Steps of an environment, as a collector gives them."""
    end = torch.zeros(*size, 1, dtype=torch.bool)
    end[..., -1, :] = True
    return TensorDict(
        observation=torch.randn(*size, 3),
        action=torch.rand(*size, actions) * 1.8 - 0.9,
        done=torch.zeros(*size, 1, dtype=torch.bool),
        terminated=torch.zeros(*size, 1, dtype=torch.bool),
        next=TensorDict(
            observation=torch.randn(*size, 3),
            reward=torch.randn(*size, 1),
            done=end,
            terminated=end.clone(),
            batch_size=size,
        ),
        batch_size=size,
    )


def one_hot(data: TensorDict) -> TensorDict:
    """The same with actions out of three."""
    picked = torch.randint(3, data.batch_size)
    return data.set("action", torch.nn.functional.one_hot(picked, 3).float())


def trained(loss: Any, data: Any) -> Any:
    """Losses, and the sum of the gradients of each parameter, of one step."""
    out = loss(data)
    total = sum(item.mean() for key, item in out.items() if key.startswith("loss"))
    total.backward()
    grads = {
        name: None if each.grad is None else _sum(each.grad)
        for name, each in sorted(loss.named_parameters())
    }
    return seen(out.detach()), grads


def counted(**options: Any) -> Any:
    """An environment that counts its actions and ends after four steps."""
    from torchrl.testing.mocking_classes import CountingEnv

    return CountingEnv(max_steps=3, **options)
