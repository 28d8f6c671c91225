"""Write the rows of a collection into another one."""

from __future__ import annotations

from typing import Any

from tensordict.primitives.checks import is_leaf_nontensor
from tensordict.primitives.errors import missing_of_all


def gather_into(td: Any, index: Any, out: Any) -> None:
    """Write the rows of ``td`` at ``index`` into ``out``, a collection of their size.

    Raises:
        RuntimeError: ``out`` has another batch size.
        KeyError: it lacks an entry of ``td``.
    """
    rows = td[index]
    if out.batch_size != rows.batch_size:
        msg = (
            f"out has the batch size {tuple(out.batch_size)}, and the rows at the "
            f"indices have {tuple(rows.batch_size)}."
        )
        raise RuntimeError(msg)
    # An update in place passes over an entry that has no place, unless none has one.
    held = set(out.keys(True, True, is_leaf=is_leaf_nontensor))
    for key in rows.keys(True, True, is_leaf=is_leaf_nontensor):
        if key not in held:
            raise missing_of_all(out, key if isinstance(key, tuple) else (key,))
    out.update_(rows)
