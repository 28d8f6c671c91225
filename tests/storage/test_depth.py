"""Collections and values that are nested deep: what is saved loads, or is refused."""

import pytest
import torch

from tensordict import NonTensorData, TensorDict, to_safetensors
from tensordict.storage import verify

NAMES = ["x", "x.tdz", "x.safetensors", "x.cons"]


def save(td, path):
    if path.suffix == ".cons":
        td.consolidate(path)
    elif path.suffix == ".safetensors":
        to_safetensors(td, path)
    else:
        td.memmap(path)


def deep_value(depth, kind=list):
    value = 1
    for _ in range(depth):
        value = kind([value]) if kind is not dict else {"k": value}
    return value


def deep_levels(depth):
    td = TensorDict(a=torch.ones(2))
    for _ in range(depth):
        td = TensorDict(n=td)
    return td


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("depth", [256, 257, 450])
def test_deep_values(depth, kind, name, tmp_path):
    value = deep_value(depth, kind)
    save(TensorDict(v=NonTensorData(value), a=torch.ones(2)), tmp_path / name)
    assert TensorDict.load(tmp_path / name)["v"] == value
    assert {found.outcome for found in verify(tmp_path / name).findings} == {"good"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [list, dict, tuple])
@pytest.mark.parametrize("depth", [451, 700])
def test_values_that_are_too_deep_are_refused(depth, kind, name, tmp_path):
    save(TensorDict(a=torch.ones(2)), tmp_path / name)
    td = TensorDict(v=NonTensorData(deep_value(depth, kind)), a=torch.zeros(2))
    with pytest.raises(RuntimeError, match=r"nested more than \d+ times") as raised:
        save(td, tmp_path / name)
    assert not isinstance(raised.value, RecursionError)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert TensorDict.load(tmp_path / name)["a"].eq(1).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_holds_itself_is_refused(name, tmp_path):
    value = []
    value.append(value)
    td = TensorDict(v=NonTensorData(value), a=torch.zeros(2))
    with pytest.raises(RuntimeError, match="nested more than"):
        save(td, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


DEEPEST = {"x": 400, "x.tdz": 400, "x.safetensors": 180, "x.cons": 250}


@pytest.mark.parametrize("name", NAMES)
def test_deep_levels(name, tmp_path):
    save(deep_levels(DEEPEST[name]), tmp_path / name)
    td = TensorDict.load(tmp_path / name)
    assert td[(*["n"] * DEEPEST[name], "a")].eq(1).all()
    assert not verify(tmp_path / name).is_damaged


@pytest.mark.parametrize("name", ["x.safetensors", "x.cons"])
@pytest.mark.parametrize("more", [1, 60])
def test_levels_that_are_too_deep_are_refused(more, name, tmp_path):
    save(TensorDict(a=torch.ones(2)), tmp_path / name)
    with pytest.raises(RuntimeError, match=r"nested more than \d+ times"):
        save(deep_levels(DEEPEST[name] + more), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert TensorDict.load(tmp_path / name)["a"].eq(1).all()
