"""Write the rows of a collection into another one."""

from __future__ import annotations

from typing import Any


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
    out.update_(rows)
