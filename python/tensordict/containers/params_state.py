"""The two forms of the state of parameters: dotted names, and nested dictionaries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["flat_state", "nested_state"]


def nested_state(
    td: CollectionProtocol, flat: Mapping[str, Any], prefix: str
) -> OrderedDict[str, Any]:
    """The state of ``td`` with a dictionary for each collection, of values an empty one.

    Args:
        td: the collection of the parameters.
        flat: its state by dotted names, each of which begins with ``prefix``.
        prefix: what the names of the outermost entries begin with in the result, too.
    """
    return OrderedDict((prefix + key, value) for key, value in _level(td, flat, prefix))


def _level(
    td: CollectionProtocol, flat: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Any]]:
    for key, value in td._entries().items():
        if isinstance(value, CollectionProtocol):
            held = () if value._is_non_tensor else _level(value, flat, f"{path}{key}.")
            yield key, OrderedDict(held)
        elif path + key in flat:
            yield key, flat[path + key]


def flat_state(state: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The pairs of dotted name and tensor of a state in either form."""
    for key, value in state.items():
        if isinstance(value, Mapping):
            yield from flat_state(value, f"{path}{key}.")
        else:
            yield path + key, value
