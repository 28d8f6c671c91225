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


def describe_values(values: Values, *, is_strict: bool = False) -> bytes:
    """Describe values by their keys; nothing where there are none.

    Args:
        values: the collections that hold them.
        is_strict: whether one that is no plain data is an error. Otherwise it stays out.

    Raises:
        TypeError: ``is_strict``, and a value can only be pickled.
    """
    sent = {}
    for path, held in values:
        try:
            wire.describe(held)
        except TypeError as error:
            if is_strict:
                key = path[0] if len(path) == 1 else path
                text = f"Cannot save the entry {key!r}: it is no plain data. {error}"
                raise TypeError(text) from error
            continue
        sent[json.dumps(path)] = held
    if not sent:
        return b""
    made = _rust.new(classes.TensorDict, sent, torch.Size([]), None, None)
    return wire.describe(made).description


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
