"""Write the table of methods that differ on views, files and servers.

The table in docs/guide/kept_elsewhere.md is made from the declarations ``refused(...)``
and ``on_a_copy()`` in the classes, and from the table of operations. ``python
tools/kept_elsewhere.py`` writes it.
"""

from __future__ import annotations

from pathlib import Path

from tensordict import PersistentTensorDict, TensorDictStore
from tensordict.containers import elsewhere
from tensordict.containers.view import _SubTensorDict
from tensordict.primitives.operations import ONLY_VIEWS, REFUSED_BY_VIEWS

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "kept_elsewhere.md"
KINDS = {
    "View of rows": _SubTensorDict,
    "HDF5, Zarr": PersistentTensorDict,
    "Redis": TensorDictStore,
}
HEADING = "## Methods that differ"


def cell(kind: type, name: str) -> str:
    """Return in a few words how a method behaves for a tensordict class."""
    difference = getattr(getattr(kind, name), "differs", None)
    if isinstance(difference, elsewhere.Refused):
        return f"`{difference.refusal.error.__name__}`"
    if isinstance(difference, elsewhere.OnACopy):
        return (
            "on a copy" if difference.inplace is None else "on a copy, never in place"
        )
    if name in ONLY_VIEWS:
        return "for a dtype only"
    return "`RuntimeError`" if name in REFUSED_BY_VIEWS else "works"


def table() -> str:
    """Return the table: a row for each method that differs for one of the classes."""
    names = {
        name
        for kind in KINDS.values()
        for name in dir(kind)
        if hasattr(getattr(kind, name, None), "differs")
    }
    lines = [
        "| Method | " + " | ".join(KINDS) + " |",
        "| --- |" + " --- |" * len(KINDS),
    ]
    for name in sorted(names | REFUSED_BY_VIEWS):
        cells = [cell(kind, name) for kind in KINDS.values()]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return the text of the page with the current table."""
    return f"{text.partition(HEADING)[0].rstrip()}\n\n{HEADING}\n\n{table()}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
