"""Writes ``pickles_0_15_3``: pickles by release 0.15.3, which must go on loading."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from tensordict import TensorDict
from tensordict.nn import TensorDictParams

FOLDER = Path(__file__).parent / "pickles_0_15_3"


def main() -> None:
    """Write every sample in two protocols."""
    FOLDER.mkdir(exist_ok=True)
    leaf = torch.arange(6.0).view(3, 2)
    plain = TensorDict(
        {"a": leaf, "n": {"b": torch.ones(3), "e": {}}}, [3], names=["x"]
    )
    parameter = TensorDict({"a": torch.nn.Parameter(leaf.clone())}, [3], names=["x"])
    params = TensorDictParams(
        TensorDict({"a": leaf.clone(), "n": {"b": torch.ones(1)}})
    )
    samples = {
        "plain": plain,
        "locked": plain.clone().lock_(),
        "device": plain.to("cpu"),
        "empty": TensorDict(batch_size=[2]),
        "subclassed_leaf": parameter,
        "params": params.lock_(),
    }
    for name, sample in samples.items():
        for protocol in (2, 4):
            path = FOLDER / f"{name}.{protocol}.pickle"
            path.write_bytes(pickle.dumps(sample, protocol))
