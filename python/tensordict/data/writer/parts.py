"""Join the parts that several processes wrote to one dataset.

A part is a dataset in ``<path>.parts/<name>``, next to the joined dataset. The manifest
``<path>.parts/manifest.json`` contains the row at which each part begins in the joined
dataset. A join writes the manifest first. Then it adds and publishes the rows of each
part, and deletes the part. So the number of published rows shows how far a killed join
has come.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from tensordict import TensorDict
from tensordict.storage.growing.class_names import read_class_names
from tensordict.storage.growing.publish import replace_file
from tensordict.storage.growing.tree import GrowingTree
from tensordict.storage.locations import new_directory

__all__ = ["by_number", "checked_name", "join", "part_path"]

PARTS = ".parts"
"""The suffix of the folder of parts."""

MANIFEST = "manifest.json"
ROWS_AT_ONCE = 4096

MSG_NAME = (
    "The name of a part must be a number, or letters, digits, '-' and '_', got {!r}."
)


def part_path(path: str | Path, part: str | int) -> Path:
    """Return the path of a part of a dataset.

    Raises:
        ValueError: the name is not allowed.
    """
    return _folder(path) / checked_name(part)


def checked_name(part: str | int) -> str:
    """Return the name of a part as a string, after a check.

    Raises:
        ValueError: the name is not allowed.
    """
    name = str(part)
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
        raise ValueError(MSG_NAME.format(part))
    return name


def _folder(path: str | Path) -> Path:
    path = Path(new_directory(path)).absolute()
    return path.with_name(path.name + PARTS)


def join(writer_class: Any, path: str | Path, durable: bool) -> int:
    """Add the rows of all parts to the dataset, and delete the parts."""
    folder = _folder(path)
    with writer_class(path, durable=durable) as writer:
        for name, start in _planned(folder, len(writer), durable):
            part = folder / name
            if not (part / "meta.json").exists():
                shutil.rmtree(part, ignore_errors=True)
                continue
            # Opening the part raises an error if a writer has it open.
            GrowingTree(part).close()
            rows = TensorDict.load_memmap(part)
            done = len(writer) - start
            for at in range(max(0, done), rows.batch_size[0], ROWS_AT_ONCE):
                writer.extend(rows[at : at + ROWS_AT_ONCE])
            if not rows.batch_size[0]:
                writer._expect(rows)
            writer._open_tree().name_classes(read_class_names(part))
            writer.flush()
            shutil.rmtree(part)
        count = len(writer)
    shutil.rmtree(folder, ignore_errors=True)
    return count


def _planned(folder: Path, num_rows: int, durable: bool) -> list[tuple[str, int]]:
    """Return the remaining parts, each with the row at which it begins."""
    manifest = folder / MANIFEST
    if not folder.exists():
        return []
    if not manifest.exists():
        names = [found.name for found in folder.iterdir() if found.is_dir()]
        planned = []
        for name in sorted(names, key=by_number):
            planned.append([name, num_rows])
            if (folder / name / "meta.json").exists():
                num_rows += TensorDict.load_memmap(folder / name).batch_size[0]
        text = json.dumps({"version": 1, "parts": planned})
        replace_file(str(manifest), text, durable)
    parts = json.loads(manifest.read_text(encoding="utf-8"))["parts"]
    return [(name, start) for name, start in parts]


def by_number(name: str) -> tuple[int, str]:
    """Return the sort key of a part: numbers first, by value, then names."""
    return (int(name) if name.isdecimal() else 1 << 62, name)
