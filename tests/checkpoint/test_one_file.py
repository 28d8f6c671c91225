"""One file for one object, which runs nothing when it is read."""

from pathlib import Path

import pytest
import torch
from torch import nn

from plain_values import VALUES, equal
from tensordict import TensorDict
from tensordict.checkpoint import load, save


def test_objects_come_back(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    for value in [*VALUES, {"all": VALUES}]:
        save(path, value)
        for lazy in (False, True):
            assert equal(load(path, lazy=lazy), value), value


def test_states_of_modules_and_optimizers(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "file.safetensors"
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(4, 2)).sum().backward()
    optimizer.step()
    save(path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    names = safetensors.load_file(path)  # type: ignore[operator]
    assert torch.equal(names["model.0.weight"], model[0].weight)
    loaded = load(path)
    assert loaded["model"]._metadata == model.state_dict()._metadata
    fresh = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    fresh.load_state_dict(loaded["model"])
    torch.optim.AdamW(fresh.parameters()).load_state_dict(loaded["optimizer"])
    assert torch.equal(fresh[1].running_mean, model[1].running_mean)
    save(path, model.state_dict())
    fresh.load_state_dict(safetensors.load_file(path))  # type: ignore[operator]
    with pytest.raises(TypeError, match="Save its state"):
        save(path, {"model": model})


def test_tensors_that_are_one_are_one_again(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    tensor = torch.arange(1000.0)
    parameter = nn.Parameter(torch.ones(2), requires_grad=False)
    save(path, [tensor, {"again": tensor}, parameter, torch.ones(1).requires_grad_()])
    first, again, kept, trains = load(path)
    assert first is again["again"]
    assert type(kept) is nn.Parameter
    assert not kept.requires_grad
    assert trains.requires_grad
    assert path.stat().st_size < 8000
    load(path, lazy=True)[0].zero_()
    assert load(path)[0].sum() == tensor.sum()
    td = TensorDict(a=torch.ones(3), n={"b": torch.zeros(2)})
    save(path, {"td": td, "where": torch.device("cpu")})
    assert (load(path, map_location="cpu")["td"] == td).all()


def test_what_is_damaged_or_of_others(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    save(path, {"x": torch.arange(100)})
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="not those that were saved"):
        load(path)
    TensorDict(x=torch.ones(2)).save(path)
    with pytest.raises(ValueError, match="not written by tensordict.checkpoint.save"):
        load(path)
    torch.save({"x": 1}, path)
    with pytest.raises(RuntimeError, match="not a safetensors"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "other")
