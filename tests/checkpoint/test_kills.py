"""Processes that are killed while they save: the newest whole step restores, always."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensordict.checkpoint import Checkpointer

pytestmark = pytest.mark.filterwarnings("ignore:This process")

NUM_KILLS = int(os.environ.get("TENSORDICT_KILLS", "7"))

MODES: list[dict[str, Any]] = [
    {"background": False},
    {"background": True, "when_busy": "queue"},
    {"background": True, "dedupe": True, "shards": 2},
]


def make(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer all of whose values are one number."""
    model = nn.Sequential(nn.Linear(60, 60), nn.Linear(60, 60))
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
            optimizer.state[parameter] = {
                "step": torch.tensor(value),
                "exp_avg": torch.full_like(parameter, value),
                "exp_avg_sq": torch.full_like(parameter, value),
            }
    return model, optimizer


def save_for_ever(folder: Path, mode: dict[str, Any], first: int) -> tuple[int, int]:
    """A process that saves one step after the other, and where it says which are there."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(120)
            torch.set_num_threads(1)
            checkpointer = Checkpointer(folder, keep=2, durable=False, **mode)
            step = first
            while True:
                model, optimizer = make(float(step))
                checkpointer.save(
                    step, model=model, optimizer=optimizer, metrics={"step": step}
                )
                os.write(writes, (checkpointer.latest() or 0).to_bytes(4, "big"))
                step += 1
        finally:
            os._exit(1)
    os.close(writes)
    return child, reads


@pytest.mark.parametrize("mode", MODES)
def test_the_newest_whole_step_restores(tmp_path: Path, mode: dict[str, Any]) -> None:
    folder = tmp_path / "run"
    first = 1
    rng = random.Random(7)  # noqa: S311
    for _ in range(NUM_KILLS):
        child, reads = save_for_ever(folder, mode, first)
        os.read(reads, 4)
        time.sleep(rng.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said = b""
        while part := os.read(reads, 4096):
            said += part
        os.close(reads)
        checkpointer = Checkpointer(folder)
        latest = checkpointer.latest()
        assert latest is not None
        assert latest >= int.from_bytes(said[-4:], "big")
        for step in checkpointer.steps():
            model, optimizer = make(-1.0)
            restored = checkpointer.restore(step, model=model, optimizer=optimizer)
            assert restored.metrics == {"step": float(step)}
            tensors = [parameter.detach() for parameter in model.parameters()]
            tensors += [
                each for state in optimizer.state.values() for each in state.values()
            ]
            values = {float(each) for tensor in tensors for each in tensor.unique()}
            assert values == {float(step)}
        # Retention may not have come to its end; the next save sweeps what was left.
        assert len(checkpointer.steps()) <= 4
        first = latest + 1
    with Checkpointer(folder, keep=2, durable=False, **mode) as checkpointer:
        model, optimizer = make(0.5)
        checkpointer.save(first, model=model, optimizer=optimizer)
    assert len(checkpointer.steps()) == 2
    assert sorted(os.listdir(folder)) == sorted(
        f"step-{step}" for step in checkpointer.steps()
    )
