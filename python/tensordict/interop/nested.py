"""Conversion between lazy stacks of ragged rows and nested tensors of either layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.containers.dense import TensorDict
from tensordict.interop.leaves import check_collection, path_of
from tensordict.primitives import special
from tensordict.primitives.checks import holds_values, is_branch
from tensordict.primitives.errors import KeyMessageError

if TYPE_CHECKING:
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["to_nested"]

LAYOUTS = (torch.jagged, torch.strided)

MSG_LAYOUT = "to_nested expects layout=torch.jagged or torch.strided, got {!r}."
MSG_FAILED = (
    "to_nested cannot make a nested tensor of layout {layout} from the rows at {key!r}, "
    "whose shapes are {shapes}: {error}"
)
MSG_KEYS = (
    "to_nested got a lazy stack whose members do not all have {keys}: select the common "
    "keys."
)


def to_nested(td: CollectionProtocol, *, layout: torch.layout = torch.jagged) -> Any:
    """Convert rows that differ in shape to nested tensors of a layout.

    Rows of one shape are stacked to one tensor. ``to_lazystack(0)`` reverses the
    conversion.

    Args:
        td: a lazy stack along its first dim, or any other tensordict: its nested
            tensors are converted to the layout.
        layout: ``torch.jagged``, whose rows may differ in one dim, or
            ``torch.strided``.

    Returns:
        For a lazy stack, a :class:`TensorDict` of batch size ``[N]``. Otherwise, a
        tensordict of the same class that shares all other leaves with ``td``.

    Raises:
        RuntimeError: rows differ in more dims than the layout allows.
        KeyError: the members of a lazy stack differ in keys.
        ValueError: ``layout`` is another layout.

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
        key_path = (*path, key)
        if is_branch(value):
            changed[key] = _nested(key_path, value, layout)
            continue
        rows = special.rows(value)
        if rows is not None and value.layout is not layout:
            changed[key] = _joined(key_path, rows, layout, True)
    if all(td.get(key) is value for key, value in changed.items()):
        return td
    result = td.copy()
    for key, value in changed.items():
        result.set(key, value)
    return result


def _of_members(path: tuple[str, ...], td: Any, layout: torch.layout) -> Any:
    """Join the members of a lazy stack, key by key."""
    members = list(td.tensordicts)
    tables = [dict(member._entries()) for member in members]
    keys = list(tables[0]) if tables else []
    partial_keys = {
        key
        for table in tables
        for key in table
        if not all(key in entries for entries in tables)
    }
    if partial_keys:
        raise KeyMessageError(MSG_KEYS.format(keys=sorted(partial_keys)))
    result: Any = TensorDict({}, [len(members)], names=td.names[:1], device=td.device)
    for key in keys:
        key_path = (*path, key)
        rows = [table[key] for table in tables]
        if all(isinstance(row, torch.Tensor) for row in rows):
            result.set(key, _joined(key_path, rows, layout, False))
        elif any(map(holds_values, rows)):
            result.set(key, td._get_entry(key, None))
        else:
            result.set(key, _nested(key_path, td._get_entry(key, None), layout))
    return result


def _joined(
    path: tuple[str, ...],
    rows: list[torch.Tensor],
    layout: torch.layout,
    is_nested: bool,
) -> torch.Tensor:
    """Stack rows; if they differ in shape or ``is_nested``, make a nested tensor."""
    shapes = [tuple(row.shape) for row in rows]
    if not is_nested and len(set(shapes)) == 1:
        return torch.stack(rows)
    try:
        return torch.nested.as_nested_tensor(rows, layout=layout)
    except Exception as error:
        # Torch raises many kinds of exceptions here.
        msg = MSG_FAILED.format(
            layout=layout, key=path_of(path), shapes=shapes, error=error
        )
        raise RuntimeError(msg) from error
