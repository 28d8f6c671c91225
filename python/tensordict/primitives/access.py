"""Reading of entries by key."""

from __future__ import annotations

from typing import Any

from torch.overrides import has_torch_function_unary as is_special

from tensordict._rust import unravel_key_to_tuple as path_of
from tensordict.primitives.common import MSG_MEMBERSHIP, value_of
from tensordict.primitives.errors import bad_key, missing_key, through_leaf
from tensordict.primitives.index import at_plan, known_plan
from tensordict.primitives.nested_key import unravel_key_to_tuple
from tensordict.primitives.protocol import (
    NO_DEFAULT,
    NONE_IF_MISSING,
    CollectionProtocol,
)


def get(td: CollectionProtocol, key: str, default: object = NO_DEFAULT) -> Any:
    """Return the value at a nested key; ``default`` if a level on the way is missing.

    Raises:
        KeyError: the key is no nested key, or is missing and there is no default.
        ValueError: the key leads below a leaf, and there is no default or it is
            ``NONE_IF_MISSING``.
    """
    if isinstance(key, str):
        if td._is_dense and key in td._tensordict:
            return td._tensordict[key]
        path: tuple[str, ...] = (key,)
    else:
        path = unravel_key_to_tuple(key)
        if not path:
            raise bad_key(key)
    value = td
    for position, part in enumerate(path):
        if not isinstance(value, CollectionProtocol):
            if default is not NO_DEFAULT and default is not NONE_IF_MISSING:
                return default
            raise through_leaf(path, position, value)
        parent = value
        if parent._is_dense:
            value = parent._tensordict.get(part, NO_DEFAULT)
        else:
            value = parent._get_entry(part, NO_DEFAULT)
        if value is NO_DEFAULT:
            if default is NO_DEFAULT:
                raise missing_key(parent, part, path, position)
            return None if default is NONE_IF_MISSING else default
    return value


def contains(td: CollectionProtocol, key: object) -> bool:
    """Return whether an entry exists at a nested key.

    Raises:
        TypeError: the key is no nested key.
    """
    path = (key,) if isinstance(key, str) else unravel_key_to_tuple(key)
    if not path:
        raise TypeError(MSG_MEMBERSHIP)
    value = td
    for part in path:
        if not isinstance(value, CollectionProtocol):
            return False
        if value._is_dense:
            value = value._tensordict.get(part, NO_DEFAULT)
        else:
            value = value._sample_entry(part)
        if value is NO_DEFAULT:
            return False
    return True


def getitem(td: CollectionProtocol, index: Any) -> Any:
    """Return the entry if ``index`` is a nested key, else ``td._get_index(index)``.

    For non-tensor data, return the Python object.
    """
    if path_of(index):
        if td._is_dense and index in td._tensordict:
            entry = td._tensordict[index]
            return value_of(entry) if is_special(entry) else entry
        return value_of(get(td, index))
    if td._is_dense and not td._is_locked:
        try:
            plan = known_plan(td._batch_size, index, True)
        except TypeError:
            return td._get_index(index)  # raises torch's error for a string
        return td if plan is None else at_plan(td, *plan, td._batch_size)
    return td._get_index(index)
