"""Save one object as one file: :func:`save` and :func:`load`, without pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from tensordict import _rust
from tensordict.checkpoint.ranges import whole_range
from tensordict.storage.encoding import Decoder, Encoder
from tensordict.storage.layouts.safetensors import planned
from tensordict.storage.locations import local

__all__ = ["load", "save"]

ENTRY = "tensordict.object"
VERSION = 1

MSG_NONE = (
    "'{}' was not written by tensordict.checkpoint.save: read it with "
    "tensordict.from_safetensors."
)
MSG_VERSION = (
    "'{}' has version {} of the format, and this version of tensordict reads version 1. "
    "Upgrade tensordict to load it."
)

MSG_SHARDED = (
    "One file cannot hold a DTensor, whose values are divided over ranks, and {!r} is one. "
    "Save the model with a Checkpointer, or save its full_tensor()."
)


def save(
    path: str | Path,
    obj: object,
    *,
    durable: bool = False,
    num_threads: int = 0,
) -> None:
    """Save an object as one safetensors file, which replaces an older file atomically.

    The name of a tensor in the file is its keys joined by dots, so any reader of
    safetensors finds it. A tensor that occurs several times is written once, and
    :func:`load` returns the same tensor in all these places.

    Args:
        path: the file.
        obj: tensors, collections and plain data, nested in dicts, lists and tuples.
            Unlike ``torch.save``, no objects of other classes.
        durable: whether the file is on the disk when this returns.
        num_threads: the most threads. Default: the cores of this process, at most 8.

    Raises:
        TypeError: ``obj`` contains an object of another class, or a ``DTensor``.
        OSError: the file cannot be written.

    Examples:
        >>> import tempfile
        >>> from tensordict import checkpoint
        >>> path = tempfile.mkdtemp() + "/state.safetensors"
        >>> state = {"weight": torch.ones(2), "step": 3, "betas": (0.9, 0.99)}
        >>> checkpoint.save(path, state)
        >>> checkpoint.load(path)
        {'weight': tensor([1., 1.]), 'step': 3, 'betas': (0.9, 0.99)}
    """
    encoder = Encoder("object")
    root = encoder.encode(obj)
    if encoder.sharded:
        raise TypeError(MSG_SHARDED.format(next(iter(encoder.sharded))))
    text = json.dumps({"version": VERSION, "root": root})
    texts = [("format", "pt"), (ENTRY, text)]
    files = [(str(Path(local(path)).absolute()), None, planned(encoder.tensors), texts)]
    progress = _rust.SaveProgress()
    _rust.write_safetensors(
        files, None, None, (num_threads, durable, True), progress, False
    )


def load(
    path: str | Path,
    *,
    map_location: torch.device | str | None = None,
    lazy: bool = False,
    num_threads: int = 0,
) -> Any:
    """Load the object of a file that :func:`save` wrote. No code from the file is run.

    Args:
        path: the file.
        map_location: the device for all tensors. Default: the device that each was
            saved from, or the CPU if this process has no such device.
        lazy: whether tensors are memory-mapped and read when they are used, without a
            check of their checksums. If false, tensors are read now and their checksums
            compared.
        num_threads: the most threads that read.

    Returns:
        The object, with tensors, collections and plain data as they were saved.

    Raises:
        FileNotFoundError: there is no such file.
        RuntimeError: the file is damaged.
        ValueError: another program or a newer version wrote the file.
    """
    place = os.fspath(local(path))
    texts, mapped = _rust.read_safetensors(place, "r")
    text = dict(texts).get(ENTRY)
    if text is None:
        raise ValueError(MSG_NONE.format(path))
    description = json.loads(text)
    if description["version"] != VERSION:
        raise ValueError(MSG_VERSION.format(path, description["version"]))
    tensors: dict[str, torch.Tensor] = mapped
    if not lazy:
        tensors = {
            name: torch.empty(like.shape, dtype=like.dtype)
            for name, like in mapped.items()
        }
        files = [(place, [whole_range(*pair) for pair in tensors.items()])]
        progress = _rust.SaveProgress()
        _rust.read_safetensors_into(files, num_threads, True, progress)
    device = None if map_location is None else torch.device(map_location)
    return Decoder(tensors, path, device).decode(description["root"])
