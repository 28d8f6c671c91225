"""Calls of a function on the whole list of leaves.

An operand may be a number or a tensor without dims, which is passed on, or a tensordict
of the same batch size and keys, whose leaves are matched. With any other operand,
nothing is called, and the function returns None or False.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import has_torch_function_variadic as any_special

from tensordict import _rust
from tensordict.primitives.align import align, rebuild_as
from tensordict.primitives.common import check_results
from tensordict.primitives.lock import lock_tree
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import results_as_sources
from tensordict.primitives.tree import leaves, new, rebuild


def is_shared_tensor(operand: object) -> bool:
    """Return whether ``operand`` is one plain tensor without dims for all leaves.

    A tensor that ``torch.vmap`` maps does not count: the foreach functions of one
    operand read it as a number, which is impossible then.
    """
    if type(operand) is not torch.Tensor or operand.dim():
        return False
    is_compiling = torch.compiler.is_compiling()
    return is_compiling or not torch._C._functorch.is_batchedtensor(operand)


def is_dense_throughout(td: CollectionProtocol) -> bool:
    """Return whether ``td`` and all nested tensordicts are dense."""
    # A list comprehension: a generator would be a further frame for the compiler.
    return all([collection._is_dense for collection in _rust.containers(td)])


def _matched_operand(
    td: CollectionProtocol, operand: object, is_complete: bool = False
) -> Any:
    """Return the operand in the form to pass on; None if there is none."""
    if isinstance(operand, (int, float, complex)) or is_shared_tensor(operand):
        return operand
    if (
        not isinstance(operand, CollectionProtocol)
        or operand.batch_size != td.batch_size
    ):
        return None
    return align(td, operand, is_complete)


def _repeat_for_leaves(lists: list[Any], count: int) -> list[Any]:
    """Repeat each operand that is a tensor without dims, once for each leaf.

    Some foreach functions read the value of a single tensor, which cannot be compiled.
    """
    return [
        [operand] * count if isinstance(operand, torch.Tensor) else operand
        for operand in lists
    ]


def foreach(
    td: CollectionProtocol,
    op: Any,
    operands: tuple[Any, ...] = (),
    drop_empty: bool = False,
) -> Any:
    """Return a tensordict of the leaves that ``op(leaves, *operands)`` returns.

    Names are kept, and the lock if there are leaves; with ``drop_empty`` tensordicts
    without entries are then dropped. Return None if an operand kept ``op`` from being
    called.
    """
    lists = []
    for operand in operands:
        if isinstance(operand, (int, float, complex)):
            lists.append(operand)
            continue
        found = _matched_operand(td, operand)
        if found is None:
            return None
        lists.append(found)
    if td._is_dense:
        held = td._tensordict.copy()
        sources = [*held.values()]
        if sources and not any_special(*sources):
            # The functions below inline, since the compiler would enter them.
            held.update(
                zip(
                    held,
                    op(sources, *_repeat_for_leaves(lists, len(sources))),
                    strict=False,
                )
            )
            names = td._td_dim_names
            result = new(
                td.__class__,
                held,
                td._batch_size,
                td._device,
                None if names is None else list(names),
            )
            if td._is_locked:
                lock_tree(result)
            return result
    sources = leaves(td)
    if sources:
        values = op(sources, *_repeat_for_leaves(lists, len(sources)))
    else:
        values = sources
    if any_special(*sources):
        # The compiler does not know the classes of tensors in a list.
        values = results_as_sources(values, sources)
    some = len(values) > 0
    return rebuild(td, values, True, some, drop_empty and some)


def foreach_inplace(
    td: CollectionProtocol, op: Any, operands: tuple[Any, ...] = ()
) -> bool:
    """Call ``op(leaves, *operands)``, which writes into the leaves.

    Return False if an operand kept ``op`` from being called.
    """
    lists = []
    for operand in operands:
        found = _matched_operand(td, operand)
        if found is None:
            return False
        lists.append(found)
    values = leaves(td)
    if values:
        check_results(op, values, lists)
        op(values, *_repeat_for_leaves(lists, len(values)))
    if not is_dense_throughout(td):
        td._store_leaves(values)
    return True


def compare(
    td: CollectionProtocol, op: Any, other: CollectionProtocol, cls: type
) -> Any:
    """Return a tensordict of class ``cls`` of ``op(leaf, operand)`` for each leaf.

    It has no names and is unlocked. Return None if ``other`` kept ``op`` from being
    called.
    """
    operand = _matched_operand(td, other, True)
    if operand is None:
        return None
    if isinstance(operand, list):
        pairs = zip(leaves(td), operand, strict=True)
        values = [op(value, match) for value, match in pairs]
    else:
        values = [op(value, operand) for value in leaves(td)]
    return rebuild_as(td, values, cls)
