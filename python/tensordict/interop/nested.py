"""Collections with nested tensors, of either layout, and lazy stacks of ragged rows."""

from __future__ import annotations

from typing import Any

import torch

from tensordict.containers.dense import TensorDict
from tensordict.interop.leaves import check_collection, path_of
from tensordict.primitives import special
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["to_nested"]

LAYOUTS = (torch.jagged, torch.strided)

MSG_LAYOUT = "to_nested expects layout=torch.jagged or torch.strided, got {!r}."
MSG_FAILED = (
    "to_nested cannot make a nested tensor of layout {layout} of the rows at {key!r}, of "
    "the shapes {shapes}: {error}"
)
MSG_KEYS = (
    "to_nested got a lazy stack of which only some members have {keys}: select the keys "
    "that all of them have."
)


def to_nested(td: CollectionProtocol, *, layout: torch.layout = torch.jagged) -> Any:
    """Hold rows that differ in shape as nested tensors, of the layout that is asked for.

    Rows of one shape are one tensor. ``to_lazystack(0)`` goes back to rows of their own.

    Args:
        td: a lazy stack along its first dim; or any collection, whose nested tensors get
            the layout.
        layout: ``torch.jagged``, whose rows differ in one dim, or ``torch.strided``.

    Returns:
        A :class:`TensorDict` of batch size ``[N]`` for a lazy stack, and a collection
        as ``td`` is for any other, which shares all other leaves with it.

    Raises:
        RuntimeError: rows differ in more dims than the layout can say.
        KeyError: the members of a stack do not have the same keys.

    Examples:
        >>> from tensordict import lazy_stack
        >>> rows = [TensorDict(a=torch.arange(n), b=torch.zeros(2)) for n in (1, 3)]
        >>> td = to_nested(lazy_stack(rows))
        >>> td["a"].layout, td["b"].shape
        (torch.jagged, torch.Size([2, 2]))
        >>> td.to_lazystack(0)[1]["a"]
        tensor([0, 1, 2])
    """
    check_collection(td, "to_nested")
    if layout not in LAYOUTS:
        raise ValueError(MSG_LAYOUT.format(layout))
    return _nested((), td, layout)


def _nested(path: tuple[str, ...], td: Any, layout: torch.layout) -> Any:
    is_stack = not td._is_dense and getattr(td, "stack_dim", None) == 0
    if is_stack:
        return _of_members(path, td, layout)
    changed = {}
    for key, value in list(td.items()):
        here = (*path, key)
        if isinstance(value, CollectionProtocol):
            if not value._is_non_tensor:
                changed[key] = _nested(here, value, layout)
            continue
        rows = special.rows(value)
        if rows is not None and value.layout is not layout:
            changed[key] = _joined(here, rows, layout, True)
    if all(td.get(key) is value for key, value in changed.items()):
        return td
    made = td.copy()
    for key, value in changed.items():
        made.set(key, value)
    return made


def _of_members(path: tuple[str, ...], td: Any, layout: torch.layout) -> Any:
    """A collection of the rows that a lazy stack has."""
    members = list(td.tensordicts)
    tables = [dict(member._entries()) for member in members]
    keys = list(tables[0]) if tables else []
    some = {
        key
        for table in tables
        for key in table
        if not all(key in one for one in tables)
    }
    if some:
        raise KeyMessageError(MSG_KEYS.format(keys=sorted(some)))
    made: Any = TensorDict({}, [len(members)], names=td.names[:1], device=td.device)
    for key in keys:
        here = (*path, key)
        rows = [table[key] for table in tables]
        if all(isinstance(row, torch.Tensor) for row in rows):
            made.set(key, _joined(here, rows, layout, False))
        elif any(row._is_non_tensor for row in rows):
            made.set(key, td._get_entry(key, None))
        else:
            made.set(key, _nested(here, td._get_entry(key, None), layout))
    return made


def _joined(
    path: tuple[str, ...],
    rows: list[torch.Tensor],
    layout: torch.layout,
    is_nested: bool,
) -> torch.Tensor:
    """Rows as one tensor: a nested one where they differ, or where they were one."""
    shapes = [tuple(row.shape) for row in rows]
    if not is_nested and len(set(shapes)) == 1:
        return torch.stack(rows)
    try:
        return torch.nested.as_nested_tensor(rows, layout=layout)
    except Exception as error:
        # Torch has many kinds for one thing.
        msg = MSG_FAILED.format(
            layout=layout, key=path_of(path), shapes=shapes, error=error
        )
        raise RuntimeError(msg) from error
