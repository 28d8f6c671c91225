"""Writing of rows of a tensordict into another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives.checks import is_leaf_nontensor
from tensordict.primitives.errors import missing_of_all

if TYPE_CHECKING:
    from tensordict.primitives.protocol import CollectionProtocol


def gather_into(td: CollectionProtocol, index: object, out: CollectionProtocol) -> None:
    """Write the rows of ``td`` at ``index`` into ``out``, which has their batch size.

    Raises:
        RuntimeError: ``out`` has another batch size.
        KeyError: ``out`` lacks an entry of ``td``.
    """
    pairs = _by_member(td, index, out)
    if pairs is not None:
        for member, target in pairs:
            _rust.gather_into(member, index, target)
        return
    rows = td[index]
    if out.batch_size != rows.batch_size:
        msg = (
            f"out has the batch size {tuple(out.batch_size)}, and the rows at the "
            f"indices have {tuple(rows.batch_size)}."
        )
        raise RuntimeError(msg)
    # `update_` ignores an entry that `out` lacks, unless it lacks all of them.
    missing = _paths(rows) - _paths(out)
    for key in sorted(missing, key=str):
        raise missing_of_all(out, key if isinstance(key, tuple) else (key,))
    out.update_(rows)


def _by_member(
    td: CollectionProtocol, index: object, out: CollectionProtocol
) -> list[tuple[Any, Any]] | None:
    """Return the pairs of members of two lazy stacks, for a write member by member.

    Return None if ``out`` is no such stack, or if rows span several members.
    """
    if type(index) is not torch.Tensor or index.dtype is torch.bool or index.dim() != 1:
        return None
    stack, into = td._lazy_stack(), out._lazy_stack()
    if stack is None or into is None or not stack.tensordicts:
        return None
    if len(stack.tensordicts) != len(into.tensordicts):
        return None
    if stack.stack_dim == 0 or stack.stack_dim != into.stack_dim:
        return None
    pairs = list(zip(stack.tensordicts, into.tensordicts, strict=True))
    for member, target in pairs:
        size = torch.Size([len(index), *member.batch_size[1:]])
        if target.batch_size != size or _paths(member) - _paths(target):
            return None
    return pairs


def _paths(td: CollectionProtocol) -> set[Any]:
    return set(td.keys(True, True, is_leaf=is_leaf_nontensor))
