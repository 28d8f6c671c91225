"""Every dtype of torch through every save: it comes back, or the save says key and dtype."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tensordict import TensorDict, checkpoint
from tensordict.checkpoint import Checkpointer
from tensordict.data import DatasetWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)},
    key=str,
)
QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
# The dtypes that torch has memory for, and no operation.
BARE = {f"torch.{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}


def make(dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose bytes are all different."""
    if dtype in QUANTIZED:
        if dtype in (torch.quint4x2, torch.quint2x4):
            scales, zeros = torch.ones(2), torch.zeros(2)
            return torch.quantize_per_channel(torch.ones(2, 4), scales, zeros, 0, dtype)
        return torch.quantize_per_tensor(torch.arange(6.0).reshape(2, 3), 0.5, 0, dtype)
    made = torch.empty(2, 3, dtype=dtype)
    size = made.numel() * made.element_size()
    content = torch.arange(1, 1 + size, dtype=torch.uint8)
    if dtype is torch.bool:
        content %= 2
    made.view(torch.uint8).copy_(content.reshape(2, -1))
    return made


def empty_like(value: torch.Tensor) -> torch.Tensor:
    made = torch.empty(value.shape, dtype=value.dtype)
    made.view(torch.uint8).zero_()
    return made


def is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and torch.equal(
            first.detach().contiguous().view(torch.uint8),
            second.detach().contiguous().view(torch.uint8),
        )
    )


def memmap(path: Path, value: torch.Tensor) -> Any:
    TensorDict(a=value).memmap(path)
    return TensorDict.load_memmap(path)["a"]


def memmap_into_memory(path: Path, value: torch.Tensor) -> Any:
    TensorDict(a=value).memmap(path)
    out = TensorDict(a=empty_like(value))
    return TensorDict.load_memmap(path, out=out)["a"]


def saved_as(name: str) -> Callable[[Path, torch.Tensor], Any]:
    def save(path: Path, value: torch.Tensor) -> Any:
        TensorDict(a=value).save(path / name)
        return TensorDict.load(path / name)["a"]

    return save


def consolidated(path: Path, value: torch.Tensor) -> Any:
    TensorDict(a=value).consolidate(path / "file")
    return TensorDict.from_consolidated(path / "file")["a"]


def consolidated_and_pickled(path: Path, value: torch.Tensor) -> Any:
    file = path / "file.pickle"
    file.write_bytes(pickle.dumps(TensorDict(a=value).consolidate()))
    return pickle.loads(file.read_bytes())["a"]


def written(path: Path, value: torch.Tensor) -> Any:
    with DatasetWriter(path / "rows") as writer:
        writer.append({"a": value})
    return TensorDict.load_memmap(path / "rows")["a"][0]


def of_one_file(**options: Any) -> Callable[[Path, torch.Tensor], Any]:
    def save(path: Path, value: torch.Tensor) -> Any:
        checkpoint.save(path / "one.safetensors", {"a": value})
        return checkpoint.load(path / "one.safetensors", **options)["a"]

    return save


def module(value: torch.Tensor) -> nn.Module:
    made = nn.Module()
    made.register_buffer("a", value)
    return made


def checkpointed(**options: Any) -> Callable[[Path, torch.Tensor], Any]:
    def save(path: Path, value: torch.Tensor) -> Any:
        with Checkpointer(path, durable=False, **options) as checkpointer:
            checkpointer.save(1, model=module(value), state={"a": value})
        fresh = module(empty_like(value))
        restored = Checkpointer(path).restore(model=fresh)
        lazily = module(empty_like(value))
        Checkpointer(path).restore(model=lazily, lazy=True)
        for found in (fresh.a, lazily.a, Checkpointer(path).load()["model", "a"]):
            assert is_same(found, value)
        return restored["state"]["a"]

    return save


WAYS: dict[str, Callable[[Path, torch.Tensor], Any]] = {
    "memmap": memmap,
    "memmap into memory": memmap_into_memory,
    "directory": saved_as("directory"),
    "archive": saved_as("file.td"),
    "safetensors": saved_as("file.safetensors"),
    "consolidated": consolidated,
    "consolidated and pickled": consolidated_and_pickled,
    "rows that are written": written,
    "one file": of_one_file(),
    "one file, lazy": of_one_file(lazy=True),
    "checkpoint": checkpointed(),
    "checkpoint in the background": checkpointed(background=True),
    "checkpoint, deduped": checkpointed(dedupe=True),
}
CHECKPOINTS = {name for name in WAYS if name.startswith(("one file", "checkpoint"))}


def is_held(way: str, dtype: torch.dtype) -> bool:
    """Return whether a format has a dtype."""
    if dtype in QUANTIZED:
        return False
    if way in CHECKPOINTS:
        return True
    name = str(dtype)
    if name in BARE or name.startswith(("torch.bits", "torch.bcomplex")):
        return False
    is_wide = dtype in (torch.complex32, torch.complex128)
    return not (way == "safetensors" and is_wide)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_through_every_save(tmp_path: Path, dtype: torch.dtype) -> None:
    value = make(dtype)
    for way, save in WAYS.items():
        path = tmp_path / way
        path.mkdir()
        if is_held(way, dtype):
            assert is_same(save(path, value), value), way
            continue
        with pytest.raises((TypeError, NotImplementedError)) as caught:
            save(path, value)
        text = str(caught.value)
        assert "a" in text.replace('"', "'").split("'"), (way, text)
        assert str(dtype) in text, (way, text)
        assert not (path / "meta.json").exists(), way
