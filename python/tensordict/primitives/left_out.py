"""Native primitives that are left out for measuring: ``TENSORDICT_NATIVE=-keys,-state``.

Their twins in Python take their places in ``tensordict._rust`` before anything else imports
them. What the native code calls by itself stays native. ``python -m benches.native`` asks in
this way what each primitive gains; ``docs/dev/native.md`` has the answers.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from tensordict import _rust

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["leave_out"]


def leave_out(setting: str, stems: Iterable[str]) -> None:
    """Put the twins of native primitives in their places.

    Args:
        setting: stems such as ``keys``, or single functions such as ``flatten_keys``, each
            with a minus before it, and commas between them.
        stems: the files that exist in Rust and in Python.

    Raises:
        ValueError: a name has no minus before it, or is that of no primitive.
    """
    modules = [
        importlib.import_module(f"tensordict.primitives.{stem}") for stem in stems
    ]
    twins: dict[str, dict[str, Any]] = {
        module.__name__.rpartition(".")[2]: _twins_of(module) for module in modules
    }
    every = {name: twin for found in twins.values() for name, twin in found.items()}
    left_out: dict[str, Any] = {}
    for asked in setting.split(","):
        name = asked.strip().removeprefix("-")
        if not asked.strip().startswith("-") or name not in {*twins, *every}:
            close = difflib.get_close_matches(name, [*twins, *every]) or list(twins)
            known = ", ".join(f"-{each}" for each in close)
            raise ValueError(
                f"TENSORDICT_NATIVE names the native primitives that are left out, each"
                f" with a minus, and has {asked!r}; such as: {known}"
            )
        left_out |= twins[name] if name in twins else {name: every[name]}
    for name, twin in left_out.items():
        setattr(_rust, name, twin)


def _twins_of(module: Any) -> dict[str, Any]:
    """Return the public functions of a module that have a native namesake."""
    return {
        name: twin
        for name, twin in vars(module).items()
        if not name.startswith("_")
        and getattr(twin, "__module__", "") == module.__name__
        and callable(getattr(_rust, name, None))
    }
