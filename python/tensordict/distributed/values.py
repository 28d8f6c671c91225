"""The non-tensor data of a collection, as bytes without pickles."""

from __future__ import annotations

import json
from typing import Any

import torch

from tensordict import _rust
from tensordict.distributed import wire
from tensordict.primitives import classes

__all__ = ["Values", "describe_values", "take_values"]

Values = list[tuple[tuple[str, ...], Any]]
"""Pairs of a key and the non-tensor collection at this key."""


def describe_values(values: Values) -> bytes:
    """Describe non-tensor data by its keys. The result is empty if there is none.

    Args:
        values: the non-tensor collections with their keys.

    Raises:
        TypeError: a value can only be pickled.
    """
    if not values:
        return b""
    entries = {json.dumps(path): data for path, data in values}
    td = _rust.new(classes.TensorDict, entries, torch.Size([]), None, None)
    try:
        return wire.describe(td).description
    except TypeError:
        # Describe the values one by one: the error then names the key.
        for path, data in values:
            level = data
            for part in reversed(path):
                content = {part: level}
                level = _rust.new(
                    classes.TensorDict, content, torch.Size([]), None, None
                )
            wire.describe(level)
        raise


def take_values(values: Values, content: bytes) -> None:
    """Write received values into the non-tensor collections at the same keys."""
    if not content:
        return
    received = wire.parse(content, 0).collection(torch.empty(0, dtype=torch.uint8))
    entries = dict(received._entries())
    for path, data in values:
        value = entries.get(json.dumps(path))
        if value is not None:
            data.update_(value)
