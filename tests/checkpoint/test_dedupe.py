"""Tensors that did not change are not written again, and are files of each step."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensordict.checkpoint import Checkpointer


def num_new_bytes(path: Path | None) -> int:
    assert path is not None
    files = [each.stat() for each in path.iterdir()]
    return sum(each.st_size for each in files if each.st_nlink == 1)


def model() -> nn.Module:
    return nn.ModuleList([nn.Linear(200, 200, bias=False) for _ in range(5)])


@pytest.mark.parametrize("background", [False, True])
def test_what_changed_is_written(tmp_path: Path, background: bool) -> None:
    net = model()
    # In another process nobody remembers the step before.
    for step in range(4):
        checkpointer = Checkpointer(
            tmp_path, dedupe=True, durable=False, background=background, keep=None
        )
        with torch.no_grad():
            net[step].weight += 1
        path = checkpointer.save(step, model=net, small=[torch.ones(3)], n=step)
        checkpointer.wait()
        if step:
            assert 160_000 < num_new_bytes(path) < 1.2 * 160_000 + 32_000
    fresh = model()
    checkpointer.restore(model=fresh)
    for own, other in zip(net.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(own, other)
    checkpointer.save(9, model=net)
    if background:
        # Nor are they copied to be written later.
        assert checkpointer.num_staged_bytes() < 200_000
    checkpointer.wait()
    assert num_new_bytes(tmp_path / "step-9") < 32_000


def test_a_step_in_the_place_of_itself(tmp_path: Path) -> None:
    net = model()
    checkpointer = Checkpointer(tmp_path, dedupe=True, durable=False, keep=1)
    checkpointer.save(1, model=net)
    with torch.no_grad():
        net[0].weight += 1
    checkpointer.save(1, model=net)
    checkpointer.save(2, model=net)
    assert os.listdir(tmp_path) == ["step-2"]
    fresh = model()
    checkpointer.restore(model=fresh)
    assert torch.equal(fresh[0].weight, net[0].weight)


def test_what_is_another_tensor_is_written(tmp_path: Path) -> None:
    values: list[Any] = [
        torch.zeros(5000),
        torch.zeros(5000, dtype=torch.int32),
        torch.zeros(50, 100),
        torch.zeros(100, 50).t(),
        torch.ones(50, 100),
        torch.tensor(float("nan")),
    ]
    checkpointer = Checkpointer(tmp_path, dedupe=True, durable=False)
    for step, value in enumerate(values):
        checkpointer.save(step, x={"value": value})
        found = checkpointer.restore()["x"]["value"]
        assert found.dtype == value.dtype
        assert found.shape == value.shape
        assert torch.equal(found.nan_to_num(7), value.nan_to_num(7))


def test_a_folder_without_links(tmp_path: Path, monkeypatch: Any) -> None:
    net = model()
    checkpointer = Checkpointer(tmp_path, dedupe=True, durable=False)
    checkpointer.save(1, model=net)
    # The files that would be linked are gone: the step before was deleted by somebody.
    (tmp_path / "step-1" / "meta.json").rename(tmp_path / "meta.json")
    checkpointer.save(2, model=net)
    assert num_new_bytes(tmp_path / "step-2") > 800_000
