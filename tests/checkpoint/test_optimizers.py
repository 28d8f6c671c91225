"""States of optimizers go by the names of parameters, and what does not fit is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint.steps import META, meta_bytes, read_meta

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Model(nn.Module):
    """Parameters of one shape, so that a mistaken one would fit."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(width, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)
        self.third = nn.Linear(width, width, bias=False)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Step with gradients that tell the parameters apart."""
    for number, parameter in enumerate(model.parameters(), 1):
        parameter.grad = torch.full_like(parameter, float(number))
    optimizer.step()


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    return {
        name: float(optimizer.state[parameter]["exp_avg"].mean())
        for name, parameter in model.named_parameters()
        if optimizer.state[parameter]
    }


def adam(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.5, **options)


def in_order(model: nn.Module) -> torch.optim.Optimizer:
    return adam(model.parameters())


def named(model: nn.Module) -> torch.optim.Optimizer:
    return adam(model.named_parameters())


def named_backwards(model: nn.Module) -> torch.optim.Optimizer:
    return adam(list(model.named_parameters())[::-1])


def backwards(model: nn.Module) -> torch.optim.Optimizer:
    return adam(list(model.parameters())[::-1])


def in_groups(model: nn.Module) -> torch.optim.Optimizer:
    first, *others = model.parameters()
    return adam([{"params": others}, {"params": [first]}])


MAKERS = [in_order, named, named_backwards, backwards, in_groups]


def save(path: Path, make: Callable[..., Any], **items: Any) -> tuple[Any, Any]:
    model = Model()
    optimizer = make(model)
    stepped(model, optimizer)
    checkpointer = Checkpointer(path, durable=False)
    checkpointer.save(1, model=model, optimizer=optimizer, **items)
    return checkpointer, moments(model, optimizer)


@pytest.mark.parametrize("saved", MAKERS)
def test_states_go_by_name(tmp_path: Path, saved: Callable[..., Any]) -> None:
    checkpointer, expected = save(tmp_path, saved)
    assert len(set(expected.values())) == 3
    for make in MAKERS:
        for is_stepped in (False, True):
            model = Model()
            optimizer = make(model)
            if is_stepped:
                stepped(model, optimizer)
                stepped(model, optimizer)
            checkpointer.restore(model=model, optimizer=optimizer)
            assert moments(model, optimizer) == expected
            assert optimizer.param_groups[0]["lr"] == 0.5
            # It goes on, with its own groups and names.
            names = [group.get("param_names") for group in optimizer.param_groups]
            fresh = make(Model())
            assert names == [group.get("param_names") for group in fresh.param_groups]
            stepped(model, optimizer)


def test_named_parameters_need_no_model(tmp_path: Path) -> None:
    model = Model()
    optimizer = named(model)
    stepped(model, optimizer)
    checkpointer = Checkpointer(tmp_path, durable=False)
    checkpointer.save(1, optimizer=optimizer)
    other = Model()
    fresh = named_backwards(other)
    checkpointer.restore(optimizer=fresh)
    assert moments(other, fresh) == moments(model, optimizer)
    # Without names on one side the order counts.
    fresh = in_order(other)
    checkpointer.restore(optimizer=fresh)
    assert moments(other, fresh) == moments(model, optimizer)


class Wider(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 1, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.third = nn.Linear(4, 4, bias=False)


class Larger(Model):
    def __init__(self) -> None:
        super().__init__()
        self.fourth = nn.Linear(4, 4, bias=False)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)


REFUSED: list[tuple[Callable[[], nn.Module], Callable[..., Any], str]] = [
    (Wider, in_order, r"size mismatch for 'first.weight': the parameter has \[1, 4\]"),
    (lambda: Model(8), in_order, r"has \[8, 8\], and had \[4, 4\]"),
    (Larger, in_order, r"has no state of 'parameter 3'\n.*groups have \[4\]"),
    (Model, sgd, "has no option 'momentum', 'dampening'"),
    (
        Model,
        lambda model: adam(model.first.parameters()),
        "no parameter 'second.weight'",
    ),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
@pytest.mark.parametrize("is_old", [False, True])
def test_what_does_not_fit_is_refused(tmp_path: Path, case: int, is_old: bool) -> None:
    make_model, make, text = REFUSED[case]
    checkpointer, _ = save(tmp_path, in_order)
    if is_old:
        forget_parameters(tmp_path / "step-1")
    model = make_model()
    optimizer = make(model)
    stepped(model, optimizer)
    before = json.dumps(optimizer.state_dict(), default=lambda value: value.tolist())
    if is_old:
        text = "size mismatch|no option|parameter groups"
    with pytest.raises(RuntimeError, match=text) as caught:
        checkpointer.restore(optimizer=optimizer, strict=True)
    assert "Nothing was changed" in str(caught.value)
    after = json.dumps(optimizer.state_dict(), default=lambda value: value.tolist())
    assert after == before
    if not is_old:
        with pytest.raises(RuntimeError, match="differ"):
            checkpointer.restore(model=model, optimizer=optimizer)


def forget_parameters(step: Path) -> None:
    """Make a step as it was before names and shapes were saved."""
    meta = read_meta(step)
    del meta["items"]["optimizer"]["parameters"]
    (step / META).write_bytes(meta_bytes(meta))


def test_what_fits_is_restored_where_that_is_wished(tmp_path: Path) -> None:
    checkpointer, expected = save(tmp_path, in_order)
    model = Larger()
    optimizer = in_order(model)
    restored = checkpointer.restore(model=model, optimizer=optimizer, strict=False)
    assert restored.missing == ["model.fourth.weight", "optimizer.fourth.weight"]
    assert moments(model, optimizer) == expected
    model = Model()
    optimizer = adam([model.third.weight, model.first.weight])
    restored = checkpointer.restore(model=model, optimizer=optimizer, strict=False)
    assert restored.unexpected == ["optimizer.second.weight"]
    del expected["second.weight"]
    assert moments(model, optimizer) == expected


def test_options_go_with_the_parameters(tmp_path: Path) -> None:
    model = Model()
    optimizer = adam(
        [
            {"params": [model.first.weight], "weight_decay": 0.0},
            {"params": [model.second.weight, model.third.weight], "lr": 0.25},
        ]
    )
    checkpointer = Checkpointer(tmp_path, durable=False)
    checkpointer.save(1, model=model, optimizer=optimizer)
    other = Model()
    split = adam([{"params": [each]} for each in [*other.parameters()][::-1]])
    checkpointer.restore(model=other, optimizer=split)
    assert [group["lr"] for group in split.param_groups] == [0.25, 0.25, 0.5]
    assert [group["weight_decay"] for group in split.param_groups] == [0.01, 0.01, 0.0]
    joined = in_order(other)
    with pytest.raises(RuntimeError, match="had lr=0.5 and lr=0.25: split the group"):
        checkpointer.restore(model=other, optimizer=joined)
    # An option that a newer version has is as that version fills it in.
    for group in optimizer.param_groups:
        del group["maximize"]
    checkpointer.save(2, model=model, optimizer=optimizer)
    checkpointer.restore(2, model=other, optimizer=split)
    assert split.param_groups[0]["maximize"] is False
    # The options that a scheduler adds to groups stay.
    torch.optim.lr_scheduler.StepLR(split, 1)
    checkpointer.restore(2, model=other, optimizer=split)
    assert "initial_lr" in split.param_groups[0]


def test_modules_that_have_the_same_names(tmp_path: Path) -> None:
    actor, critic = Model(), Model()
    optimizer = adam([*actor.parameters(), *critic.parameters()])
    stepped(nn.ModuleList([actor, critic]), optimizer)
    checkpointer = Checkpointer(tmp_path, durable=False)
    checkpointer.save(1, actor=actor, critic=critic, optimizer=optimizer)
    one, two = Model(), Model()
    fresh = adam([*two.parameters(), *one.parameters()])
    checkpointer.restore(actor=one, critic=two, optimizer=fresh)
    assert moments(one, fresh) == moments(actor, optimizer)
    assert moments(two, fresh) == moments(critic, optimizer)
    # A copy that no optimizer has takes nothing from the names.
    ema = Model()
    single = in_order(actor)
    stepped(actor, single)
    checkpointer.save(2, actor=actor, ema=ema, optimizer=single)
    fresh = backwards(one)
    checkpointer.restore(2, actor=one, optimizer=fresh)
    assert moments(one, fresh) == moments(actor, single)


def test_states_of_their_own_shape(tmp_path: Path) -> None:
    model = nn.Linear(8, 6)
    optimizer = torch.optim.Adafactor(model.parameters())
    stepped(model, optimizer)
    checkpointer = Checkpointer(tmp_path, durable=False)
    checkpointer.save(1, model=model, optimizer=optimizer)
    for is_old in (False, True):
        if is_old:
            forget_parameters(tmp_path / "step-1")
        fresh = torch.optim.Adafactor(model.parameters())
        checkpointer.restore(model=model, optimizer=fresh)
        for parameter in model.parameters():
            for key, value in optimizer.state[parameter].items():
                assert torch.equal(fresh.state[parameter][key], value)
