"""The values of a collection that are no tensors, as bytes without pickles."""

from __future__ import annotations

import json
from typing import Any

import torch

from tensordict import _rust
from tensordict.distributed import wire
from tensordict.primitives import classes

__all__ = ["Values", "describe_values", "take_values"]

Values = list[tuple[tuple[str, ...], Any]]
"""Collections of values, each behind its key."""


def describe_values(values: Values) -> bytes:
    """Describe values by their keys; nothing where there are none.

    Args:
        values: the collections that hold them.

    Raises:
        TypeError: a value can only be pickled.
    """
    if not values:
        return b""
    sent = {json.dumps(path): held for path, held in values}
    made = _rust.new(classes.TensorDict, sent, torch.Size([]), None, None)
    try:
        return wire.describe(made).description
    except TypeError:
        # Again one by one, for an error that names the key.
        for path, held in values:
            level = held
            for part in reversed(path):
                content = {part: level}
                level = _rust.new(
                    classes.TensorDict, content, torch.Size([]), None, None
                )
            wire.describe(level)
        raise


def take_values(values: Values, content: bytes) -> None:
    """Put values that were described where there are some under the same keys."""
    if not content:
        return
    received = wire.parse(content, 0).collection(torch.empty(0, dtype=torch.uint8))
    found = dict(received._entries())
    for path, held in values:
        value = found.get(json.dumps(path))
        if value is not None:
            held.update_(value)
