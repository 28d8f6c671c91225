"""A training that is killed at any moment goes on with the same losses, bit for bit."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # Once, and not by the optimizer of each child.
from torch import nn
from torch.utils.data import DataLoader, Sampler

from separate_process import SERVER
from tensordict.checkpoint import Checkpointer

NUM_STEPS = 24


class Order(Sampler[int]):
    """Rows without end, with a state: the order of this epoch, and how far it is."""

    def __init__(self, length: int) -> None:
        self.order = torch.randperm(length)
        self.place = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            if self.place == len(self.order):
                self.order, self.place = torch.randperm(len(self.order)), 0
            self.place += 1
            yield int(self.order[self.place - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.place = state["order"], state["place"]


def train(folder: Path, losses: Path, options: dict[str, Any]) -> None:
    """Train from the latest step on, and write down the loss of each step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (the generator that programs use)
    model = nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)
    rows = torch.rand(50, 4)
    order = Order(len(rows))
    # Whoever iterates over a loader has it draw a number: from another generator than that
    # of the training, of which a resumed one would have drawn once more.
    loader = DataLoader(rows, 8, sampler=order, generator=torch.Generator())
    items = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "order": order,
    }
    with Checkpointer(folder, keep=2, durable=False, **options) as checkpointer:
        first = 0
        if checkpointer.latest() is not None:
            first = checkpointer.restore(**items)["done"]
        batches = iter(loader)
        for step in range(first, NUM_STEPS):
            batch = next(batches) * random.random() + np.random.random()  # noqa: S311, NPY002
            loss = (
                (model(batch.float()) - batch.sum(1, keepdim=True).float())
                .square()
                .mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            with losses.open("a") as file:
                file.write(json.dumps([step, loss.item().hex()]) + "\n")
            checkpointer.save(step, done=step + 1, **items)


def in_a_child(*arguments: Any) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(120)
            train(*arguments)
            status = 0
        finally:
            os._exit(status)
    return child


def read(losses: Path) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for line in losses.read_text().splitlines():
        step, loss = json.loads(line)
        found.setdefault(step, set()).add(loss)
    return found


@pytest.mark.parametrize(
    "options", [{}, {"background": True, "dedupe": True, "when_busy": "queue"}]
)
def test_a_killed_training_goes_on_bit_for_bit(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    # Autograd forbids forks of a process that used it, as other tests may have.
    process = SERVER.Process(target=kill_and_go_on, args=(tmp_path, options))
    process.start()
    process.join(200)
    process.kill()
    process.join()
    assert process.exitcode == 0


def kill_and_go_on(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = in_a_child(tmp_path / "whole", tmp_path / "expected", options)
    assert os.waitstatus_to_exitcode(os.waitpid(whole, 0)[1]) == 0
    expected = read(tmp_path / "expected")
    assert sorted(expected) == list(range(NUM_STEPS))
    rng = random.Random(3)  # noqa: S311
    kills = 0
    for _ in range(60):
        child = in_a_child(tmp_path / "run", tmp_path / "losses", options)
        time.sleep(rng.uniform(0.01, 0.08) if kills < 4 else 0)
        if kills < 4:
            os.kill(child, signal.SIGKILL)
            kills += 1
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            break
        assert status == -signal.SIGKILL
    # Steps that were done twice, too.
    assert read(tmp_path / "losses") == expected
