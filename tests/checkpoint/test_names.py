"""Names are those of the bare model, whatever is put around it or around its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint.names import bare_text, bare_wrapper_names
from tensordict.checkpoint.steps import META, meta_bytes, read_meta

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")


class Own(nn.Module):
    """A model with a part that is called as that of a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.BatchNorm1d(2)])


def bare(model: Own) -> nn.Module:
    return model


def parallel(model: Own) -> nn.Module:
    return nn.DataParallel(model)


def compiled(model: Own) -> nn.Module:
    return torch.compile(model)  # type: ignore[return-value]


def compiled_layers(model: Own) -> nn.Module:
    model.layers[0] = torch.compile(model.layers[0])  # type: ignore[assignment]
    model.module = torch.compile(model.module)  # type: ignore[assignment]
    return model


def checkpointed_layers(model: Own) -> nn.Module:
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

    wrap = checkpoint_wrapper.checkpoint_wrapper
    model.layers[0] = wrap(model.layers[0])
    model.module = wrap(torch.compile(model.module))
    return model


def all_of_them(model: Own) -> nn.Module:
    return compiled(parallel(compiled_layers(model)))  # type: ignore[arg-type]


WRAPPERS = [bare, parallel, compiled, compiled_layers, checkpointed_layers, all_of_them]


def values(model: Own) -> list[Any]:
    return [each.tolist() for each in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize("saved", WRAPPERS)
def test_wrappers_are_no_part_of_a_name(
    tmp_path: Path, saved: Callable[..., Any]
) -> None:
    model = Own()
    wrapped = saved(model)
    optimizer = torch.optim.Adam(wrapped.named_parameters())
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, float(number + 1))
    optimizer.step()
    checkpointer = Checkpointer(tmp_path, durable=False)
    checkpointer.save(1, model=wrapped, optimizer=optimizer)
    checkpointer.save(2, optimizer=optimizer)
    names = read_meta(tmp_path / "step-1")["items"]["model"]["names"]
    assert names == list(Own().state_dict())
    moments = [optimizer.state[each]["exp_avg"].tolist() for each in model.parameters()]
    for wrap in WRAPPERS:
        fresh = Own()
        other = wrap(fresh)
        named = list(other.named_parameters())[::-1]
        for step in (1, 2):
            new = torch.optim.Adam(named)
            items = {"model": other} if step == 1 else {}
            checkpointer.restore(step, optimizer=new, **items)
            found = [new.state[each]["exp_avg"].tolist() for each in fresh.parameters()]
            assert found == moments
        assert values(fresh) == values(model)


def test_a_step_of_before_with_names_of_wrappers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    holder = nn.Module()
    holder.module = model
    checkpointer = Checkpointer(tmp_path, durable=False)
    path = checkpointer.save(1, model=holder)
    assert path is not None
    assert read_meta(path)["items"]["model"]["names"][0] == "module.0.weight"
    fresh = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    checkpointer.restore(model=fresh)
    assert torch.equal(fresh[1].weight, model[1].weight)
    meta = read_meta(path)
    assert meta["items"]["model"].pop("versions")
    (path / META).write_bytes(meta_bytes(meta))
    checkpointer.restore(model=nn.DataParallel(fresh))


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.mark.parametrize("saved", [bare, Wrapper, parallel])
@pytest.mark.parametrize("restored", [bare, Wrapper, parallel])
@pytest.mark.parametrize("strict", [True, False])
def test_a_wrapper_of_the_user(
    tmp_path: Path, saved: Any, restored: Any, strict: bool
) -> None:
    model, fresh = Own(), Own()
    items = {}
    for module, wrap in ((model, saved), (fresh, restored)):
        wrapped = wrap(module)
        optimizer = torch.optim.Adam(wrapped.parameters())
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, 2.0 if module is model else 0.0)
        optimizer.step()
        items[module] = {"model": wrapped, "optimizer": optimizer}
    checkpointer = Checkpointer(tmp_path, durable=False)
    checkpointer.save(1, **items[model])
    result = checkpointer.restore(strict=strict, **items[fresh])
    assert result.missing == result.unexpected == []
    assert values(fresh) == values(model)
    new: Any = items[fresh]["optimizer"]
    assert all(state["exp_avg"].ne(0).all() for state in new.state.values())


def test_parts_of_names() -> None:
    assert bare_text("a._orig_mod.b._checkpoint_wrapped_module.c") == "a.b.c"
    assert bare_text("orig_mod.b") == "orig_mod.b"
    saved = ["module.a", "module.module.b"]
    assert bare_wrapper_names(saved, ["a"]) == {
        "module.a": "a",
        "module.module.b": "module.b",
    }
    assert bare_wrapper_names(["a"], ["module.a"]) == {"a": "module.a"}
    assert bare_wrapper_names(["a"], ["module.a", "b"]) == {"a": "a"}
    assert bare_wrapper_names(saved, ["module.a"]) == {name: name for name in saved}
