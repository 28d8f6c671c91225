"""Read checkpoints of other programs without running code from their pickles."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import torch

from tensordict import _rust
from tensordict.checkpoint.lazy_state import LazyTensors
from tensordict.checkpoint.optimizer_forms import is_flat_key, is_optimizer
from tensordict.storage.layouts.safetensors import index_of
from tensordict.storage.locations import local

__all__ = [
    "as_items",
    "is_foreign",
    "open_foreign",
    "read_foreign",
    "read_safetensors",
]

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
INDEX = ".bin.index.json"

MSG_REFUSED = (
    "'{}' contains code besides tensors and plain data, which is not run: {} Save its contents "
    "as state dicts in the program that wrote it."
)


def is_foreign(path: str | Path) -> bool:
    """Return whether a path is a file of ``torch.save`` or a directory of DCP."""
    path = Path(local(path))
    if path.is_dir():
        return (path / ".metadata").is_file()
    if path.name.endswith(INDEX):
        return path.is_file()
    return path.is_file() and (path.suffix in SUFFIXES or _is_torch_archive(path))


def _is_torch_archive(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/data.pkl") for name in archive.namelist())


def read_foreign(path: str | Path) -> Any:
    """Load a file of ``torch.save``, its shards, or a directory of DCP.

    Raises:
        RuntimeError: the file contains more than tensors and plain data.
        OSError: the file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        from tensordict.checkpoint.dcp_directory import read_directory

        return read_directory(path)
    if path.name.endswith(INDEX):
        weights = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        tensors: dict[str, Any] = {}
        for name in sorted(set(weights.values())):
            if Path(name).name != name:
                raise RuntimeError(
                    f"'{path}' names the file {name!r}, which is not in its directory."
                )
            tensors.update(_load(path.with_name(name)))
        return {name: tensors[name] for name in weights}
    return _load(path)


def open_foreign(path: str | Path) -> tuple[Any, LazyTensors]:
    """Open the same checkpoint, with the tensors of a DCP directory unread, on ``meta``.

    Returns:
        The object, and the reader for its ``meta`` tensors.

    Raises:
        RuntimeError: the file contains more than tensors and plain data.
        OSError: the file cannot be read.
    """
    if not Path(path).is_dir():
        return read_foreign(path), LazyTensors()
    from tensordict.checkpoint.dcp_directory import open_directory

    return open_directory(path)


def read_safetensors(path: str | Path) -> dict[str, torch.Tensor] | None:
    """Return the tensors of a safetensors file or index by name; None for other files."""
    index = index_of(path)
    if index is None:
        if not Path(path).is_file() or not _rust.is_safetensors(path):
            return None
        return _rust.read_safetensors(path, "r")[1]
    tensors: dict[str, torch.Tensor] = {}
    for file, names in _rust.read_safetensors_index(index)[0]:
        file_tensors = _rust.read_safetensors(file, "r")[1]
        tensors.update({name: file_tensors[name] for name in names})
    return tensors


def _load(path: Path) -> Any:
    try:
        return torch.load(
            path, map_location="cpu", weights_only=True, mmap=_is_torch_archive(path)
        )
    except OSError:
        raise
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise RuntimeError(MSG_REFUSED.format(path, text)) from error


def as_items(obj: object) -> dict[str, tuple[str, Any]]:
    """Return the items of a checkpoint, each with its kind.

    The state of a model becomes the item ``model``. Each value of a dictionary of
    states and values becomes an item, also if this dictionary is the only value of
    another. Tensors of a model beside the flat state of an optimizer become ``model``
    and ``optimizer``.
    """
    if _is_state(obj):
        return {"model": ("module", obj)}
    if isinstance(obj, dict) and obj and all(isinstance(key, str) for key in obj):
        items = _gathered(obj)
        if all(map(_is_name, items)):
            (only, *others) = items.values()
            if not others and isinstance(only, dict) and _kind(only) == "value":
                inner = as_items(only)
                if any(kind != "value" for kind, _ in inner.values()):
                    return inner
            return {name: (_kind(value), value) for name, value in items.items()}
    return {"object": ("value", obj)}


def _gathered(obj: dict[str, Any]) -> dict[str, Any]:
    """Return a dictionary in which the flat states of model and optimizer are items."""
    flat = {key: value for key, value in obj.items() if is_flat_key(key)}
    if not is_optimizer(flat):
        flat = {}
    remaining = {key: value for key, value in obj.items() if key not in flat}
    model = {}
    if not all(map(_is_name, remaining)):
        model = {
            key: value
            for key, value in remaining.items()
            if isinstance(value, torch.Tensor)
        }
    rest = {key: value for key, value in remaining.items() if key not in model}
    states = {"model": model} if model else {}
    if flat:
        states["optimizer"] = flat
    return obj if states.keys() & rest.keys() else {**states, **rest}


def _is_name(key: object) -> bool:
    return isinstance(key, str) and key.isidentifier()


def _kind(value: object) -> str:
    if is_optimizer(value):
        return "optimizer"
    if _is_state(value):
        return "module"
    return "value"


def _is_state(value: object) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(key, str) for key in value)
        and all(isinstance(tensor, torch.Tensor) for tensor in value.values())
    )
