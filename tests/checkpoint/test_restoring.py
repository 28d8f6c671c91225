"""A restore that is refused leaves everything as it was."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensordict.checkpoint import Checkpointer


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(5, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def snapshot(*items: Any) -> list[Any]:
    found: list[Any] = []

    def visit(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value.tolist())
        elif isinstance(value, dict):
            for key, inner in value.items():
                found.append(key)
                visit(inner)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                visit(inner)
        else:
            found.append(value)

    for item in items:
        visit(item.state_dict())
    return found


class Failing:
    def __init__(self) -> None:
        self.value = 1

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]
        if state["value"] == 7:
            raise ValueError("not seven")


def test_a_refused_restore_changes_nothing(tmp_path: Path) -> None:
    model, optimizer = make()
    checkpointer = Checkpointer(tmp_path, durable=False)
    failing = Failing()
    failing.value = 7
    checkpointer.save(0, model=model, optimizer=optimizer, failing=failing)
    failing.value = 1
    model, optimizer = make()
    smaller = torch.optim.AdamW(list(model.parameters())[:2])
    wrong = nn.Linear(3, 5)
    random_state = torch.get_rng_state()
    before = snapshot(model, optimizer, smaller, failing)
    refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (KeyError, "no item 'other'", {"model": model, "other": model}),
        (
            RuntimeError,
            "a module was saved",
            {"optimizer": optimizer, "model": optimizer},
        ),
        (RuntimeError, "parameter groups", {"model": model, "optimizer": smaller}),
        (RuntimeError, "missing in the checkpoint: 'weight'", {"model": wrong}),
        (
            ValueError,
            "not seven",
            {"failing": failing, "model": model, "optimizer": optimizer},
        ),
        (
            ValueError,
            "not seven",
            {"optimizer": optimizer, "model": model, "failing": failing},
        ),
    ]
    for cls, text, items in refused:
        with pytest.raises(cls, match=text):
            checkpointer.restore(**items)
        assert snapshot(model, optimizer, smaller, failing) == before
        assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize("item", ["model", "optimizer"])
def test_damage_is_found_before_anything_changes(tmp_path: Path, item: str) -> None:
    model, optimizer = make()
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    path = checkpointer.save(0, model=model, optimizer=optimizer)
    assert path is not None
    file = path / f"{item}.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    model, optimizer = make()
    before = snapshot(model, optimizer)
    with pytest.raises(RuntimeError, match=f"run/step-0/{item}.safetensors"):
        checkpointer.restore(model=model, optimizer=optimizer)
    assert snapshot(model, optimizer) == before
    file.write_bytes(content[:-10])
    with pytest.raises(RuntimeError, match="run/step-0/.*is damaged"):
        checkpointer.restore(model=model, optimizer=optimizer)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=f"run/step-0/{item}"):
        checkpointer.restore(model=model, optimizer=optimizer)
    assert snapshot(model, optimizer) == before


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, durable=False)
    checkpointer.save(0, model=nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), epoch=1)
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.Linear(2, 2))
    restored = checkpointer.restore(strict=False, model=model, extra=5)
    assert restored == {"epoch": 1, "extra": 5}
    assert restored.missing == ["model.2.weight", "model.2.bias", "extra"]
    assert restored.unexpected == ["model.1.weight", "model.1.bias"]
    assert restored.step == 0
    assert torch.equal(model[0].weight, checkpointer.load()["model", "0", "weight"])
    wrong = nn.Sequential(nn.Linear(2, 3))
    with pytest.raises(RuntimeError, match="size mismatch for '0.weight'"):
        checkpointer.restore(strict=False, model=wrong)


def test_values_are_read_into_their_place(tmp_path: Path) -> None:
    model, optimizer = make()
    checkpointer = Checkpointer(tmp_path, durable=False)
    checkpointer.save(0, model=model, optimizer=optimizer)
    fresh, fresh_optimizer = make()
    places = [parameter.data_ptr() for parameter in fresh.parameters()]
    checkpointer.restore(model=fresh, optimizer=fresh_optimizer)
    assert [parameter.data_ptr() for parameter in fresh.parameters()] == places
    assert snapshot(fresh, fresh_optimizer) == snapshot(model, optimizer)
    # A model of another dtype, with gaps, and with modules that are tied only here.
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    other[0].weight.data = torch.zeros(3, 4, dtype=torch.float64).t()
    checkpointer.restore(model=other)
    assert torch.equal(other[0].weight.float(), model[0].weight)
    assert torch.equal(other[2].bias.float(), model[2].bias)
    lazily, _ = make()
    checkpointer.restore(model=lazily, lazy=True)
    with torch.no_grad():
        lazily[0].weight.zero_()
    again, _ = make()
    checkpointer.restore(model=again)
    assert torch.equal(again[0].weight, model[0].weight)


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Leave what a cycle of references holds in memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def references(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [
        weakref.ref(value)
        for state in optimizer.state.values()
        for value in state.values()
    ]


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("options", [{}, {"lazy": True}, {"strict": False}])
def test_replaced_and_returned_values_are_released_at_once(
    tmp_path: Path, background: bool, options: dict[str, Any]
) -> None:
    model, optimizer = make()
    checkpointer = Checkpointer(tmp_path, durable=False, background=background)
    own = torch.rand(3)
    checkpointer.save(1, model=model, optimizer=optimizer, own=own)
    checkpointer.wait()
    saved = [weakref.ref(own)]
    del own
    old = references(optimizer)
    assert old
    restored = checkpointer.restore(model=model, optimizer=optimizer, **options)
    returned = [weakref.ref(restored["own"])]
    loaded = checkpointer.load()
    returned += [weakref.ref(value) for value in loaded.values(True, True)]
    del restored, loaded
    assert not [each for each in (*saved, *old, *returned) if each() is not None]


@pytest.mark.usefixtures("without_collector")
def test_a_failed_call_releases_its_items_at_once(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, durable=False)
    model, optimizer = make()
    failing = Failing()
    failing.value = 7
    checkpointer.save(1, model=model, optimizer=optimizer, failing=failing)
    for other in (failing, None):
        with pytest.raises((ValueError, RuntimeError)):
            checkpointer.restore(model=model, optimizer=optimizer, failing=other)
    with pytest.raises(TypeError):
        checkpointer.save(2, model=model, optimizer=optimizer, failing=object())
    items = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(checkpointer)]
    items += references(optimizer)
    del model, optimizer, checkpointer
    assert not [each for each in items if each() is not None]
