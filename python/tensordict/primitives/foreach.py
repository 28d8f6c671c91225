"""Call a function on the whole list of leaves.

An operand is a number or a tensor without dims,
which is passed on, or a collection of the same batch size and keys, whose leaves are
put in line. With anything else, nothing is called, and the function says so.
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

    ``torch.vmap`` cannot read a tensor that it maps as a number, as the foreach forms of
    one operand do.
    """
    if type(operand) is not torch.Tensor or operand.dim():
        return False
    is_compiling = torch.compiler.is_compiling()
    return is_compiling or not torch._C._functorch.is_batchedtensor(operand)


def is_dense_throughout(td: CollectionProtocol) -> bool:
    """Return whether ``td`` and all collections in it are dense."""
    # A list: the compiler has no frame more to follow.
    return all([collection._is_dense for collection in _rust.containers(td)])


def _in_line(td: CollectionProtocol, operand: object, is_complete: bool = False) -> Any:
    """The operand as it is passed on; None where it cannot be."""
    if isinstance(operand, (int, float, complex)) or is_shared_tensor(operand):
        return operand
    if (
        not isinstance(operand, CollectionProtocol)
        or operand.batch_size != td.batch_size
    ):
        return None
    return align(td, operand, is_complete)


def _of_each(lists: list[Any], count: int) -> list[Any]:
    """The operands with one value per leaf for each that is a tensor of no dims.

    Given one tensor, some functions of lists read its value, which cannot be compiled.
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
    """A collection of the leaves that ``op(leaves, *operands)`` gives.

    It keeps names and, where there are leaves, the lock; with ``drop_empty`` it is then
    without the tensordicts that hold nothing. None where ``op`` was not called because of
    an operand.
    """
    lists = []
    for operand in operands:
        if isinstance(operand, (int, float, complex)):
            lists.append(operand)
            continue
        found = _in_line(td, operand)
        if found is None:
            return None
        lists.append(found)
    if td._is_dense:
        held = td._tensordict.copy()
        sources = [*held.values()]
        if sources and not any_special(*sources):
            # In line what the functions below do, which the compiler would enter.
            held.update(
                zip(held, op(sources, *_of_each(lists, len(sources))), strict=False)
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
        values = op(sources, *_of_each(lists, len(sources)))
    else:
        values = sources
    if any_special(*sources):
        # The compiler does not ask the classes of tensors in a list.
        values = results_as_sources(values, sources)
    some = len(values) > 0
    return rebuild(td, values, True, some, drop_empty and some)


def foreach_inplace(
    td: CollectionProtocol, op: Any, operands: tuple[Any, ...] = ()
) -> bool:
    """Call ``op(leaves, *operands)``, which writes into the leaves.

    False where it was not called because of an operand.
    """
    lists = []
    for operand in operands:
        found = _in_line(td, operand)
        if found is None:
            return False
        lists.append(found)
    values = leaves(td)
    if values:
        check_results(op, values, lists)
        op(values, *_of_each(lists, len(values)))
    if not is_dense_throughout(td):
        td._store_leaves(values)
    return True


def compare(
    td: CollectionProtocol, op: Any, other: CollectionProtocol, cls: type
) -> Any:
    """A collection of the class ``cls`` of ``op(leaf, operand)`` for each leaf.

    It has no names and is not locked. None where ``op`` was not called because of
    ``other``.
    """
    operand = _in_line(td, other, True)
    if operand is None:
        return None
    if isinstance(operand, list):
        pairs = zip(leaves(td), operand, strict=True)
        values = [op(value, match) for value, match in pairs]
    else:
        values = [op(value, operand) for value in leaves(td)]
    return rebuild_as(td, values, cls)
