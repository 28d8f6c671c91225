"""The names of the classes that the integers of an entry stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tensordict import _rust

__all__ = ["CLASS_NAMES", "read_class_names"]

CLASS_NAMES: Final = "class_names"
"""The field of an entry's metadata that holds the names."""


def read_class_names(path: str | Path) -> dict[Any, list[str]]:
    """Return the class names of all entries of a directory, by their keys."""
    found: dict[Any, list[str]] = {}
    _read(Path(path), (), found)
    return {key[0] if len(key) == 1 else key: names for key, names in found.items()}


def _read(
    folder: Path, key: tuple[str, ...], found: dict[tuple[str, ...], list[str]]
) -> None:
    text = (folder / "meta.json").read_text(encoding="utf-8")
    inner = folder / "_tensordict"
    if (inner / "meta.json").exists():
        # The entries of a tensorclass are one level deeper.
        _read(inner, key, found)
        return
    for name, entry in json.loads(text).items():
        if not isinstance(entry, dict):
            continue
        if CLASS_NAMES in entry:
            found[*key, name] = entry[CLASS_NAMES]
        elif "type" in entry and "dtype" not in entry:
            below = folder / _rust.escape_key(name)
            if (below / "meta.json").exists():
                _read(below, (*key, name), found)
