"""Turning native primitives off for measurements: ``TENSORDICT_NATIVE=-keys,-lock``.

Their Python twins replace them in ``tensordict._rust`` before any other module imports
them. Calls inside the native code stay native. ``python -m benches.native`` measures in
this way what each primitive gains; ``docs/dev/native.md`` has the results.
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
    """Replace native primitives by their Python twins.

    Args:
        setting: names of files such as ``keys``, or of functions such as
            ``flatten_keys``, each with a minus before it, separated by commas.
        stems: the files that exist in Rust and in Python.

    Raises:
        ValueError: a name has no minus before it, or no primitive has this name.
    """
    modules = [
        importlib.import_module(f"tensordict.primitives.{stem}") for stem in stems
    ]
    twins: dict[str, dict[str, Any]] = {
        module.__name__.rpartition(".")[2]: _twins_of(module) for module in modules
    }
    every = {name: twin for found in twins.values() for name, twin in found.items()}
    left_out: dict[str, Any] = {}
    for item in setting.split(","):
        name = item.strip().removeprefix("-")
        if not item.strip().startswith("-") or name not in {*twins, *every}:
            close = difflib.get_close_matches(name, [*twins, *every]) or list(twins)
            known = ", ".join(f"-{each}" for each in close)
            raise ValueError(
                "TENSORDICT_NATIVE lists the native primitives to turn off, each with a"
                f" minus before it, and contains {item!r}. Valid names: {known}."
            )
        left_out |= twins[name] if name in twins else {name: every[name]}
    for name, twin in left_out.items():
        setattr(_rust, name, twin)


def _twins_of(module: Any) -> dict[str, Any]:
    """Return the public functions of a module that have a native form."""
    return {
        name: twin
        for name, twin in vars(module).items()
        if not name.startswith("_")
        and getattr(twin, "__module__", "") == module.__name__
        and callable(getattr(_rust, name, None))
    }
