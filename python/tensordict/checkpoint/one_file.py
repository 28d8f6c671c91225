"""One file for one object: :func:`save` and :func:`load`, without pickles."""

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
    "'{}' is of version {} of the format, and this version of tensordict reads version 1. "
    "Upgrade tensordict to load it."
)

MSG_SHARDED = (
    "One file holds no DTensor, of which each rank has a part, as {!r} is: save the model "
    "with a Checkpointer, or its full_tensor()."
)


def save(
    path: str | Path,
    obj: object,
    *,
    durable: bool = False,
    num_threads: int = 0,
) -> None:
    """Save an object as one safetensors file, which takes the place of an older one at once.

    The tensors have the names of the keys that lead to them, joined by dots, so any
    reader of safetensors has them. Tensors that are one are saved once, and are one again.

    Args:
        path: the file.
        obj: tensors, collections and plain data, nested in dicts, lists and tuples as they
            like: what ``torch.save`` is given, but for objects of classes.
        durable: whether it is on the disk when this returns.
        num_threads: the most threads. Default: the cores of this process, at most 8.

    Raises:
        TypeError: it holds something else.
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
        files, None, None, num_threads, durable, True, progress, False
    )


def load(
    path: str | Path,
    *,
    map_location: torch.device | str | None = None,
    lazy: bool = False,
    num_threads: int = 0,
) -> Any:
    """Load an object of :func:`save`; nothing that the file says is run.

    Args:
        path: the file.
        map_location: where tensors go. Default: where they were, or else the CPU.
        lazy: whether tensors stay mapped to the file, and are read when they are used.
            Otherwise they are compared with their checksums.
        num_threads: the most threads that read.

    Raises:
        FileNotFoundError: there is no such file.
        RuntimeError: it is damaged.
        ValueError: it is the file of others, or of a newer version.
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
