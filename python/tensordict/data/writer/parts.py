"""Join the parts that several processes wrote to one dataset.

A part is a dataset in ``<path>.parts/<name>``, next to the joined dataset. The manifest
``<path>.parts/manifest.json`` contains the number of rows of each part, and the row at which
the part begins in the joined dataset. A join checks all parts, and then writes the manifest.
Then it adds and publishes the rows of each part, and deletes the part. So the number of
published rows shows how far a killed join has come.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
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

MSG_GROWN = (
    "A join was killed, and rows were added since: the part {} has {} rows, and had {}; the "
    "dataset {} has {} rows, and had {} without this part or {} with it. If the dataset has "
    "the rows of the part, delete the part. Then delete manifest.json beside the part, and "
    "call `DatasetWriter.join` again."
)
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
    """Add the rows of all parts to the dataset, and delete the parts.

    Raises:
        RuntimeError: a writer has the dataset or a part open, or rows were added since a
            join that was killed.
        ValueError: the rows of a part do not fit the rows of the dataset. The dataset and
            all parts stay as they were.
    """
    folder = _folder(path)
    writer = writer_class(path, durable=durable)
    try:
        for name, start, num_rows in _planned(folder, writer, durable):
            part = folder / name
            if not (part / "meta.json").exists():
                shutil.rmtree(part, ignore_errors=True)
                continue
            # Opening the part raises an error if a writer has it open.
            GrowingTree(part).close()
            rows = TensorDict.load_memmap(part)
            _check_continued(writer, part, start, num_rows, len(rows))
            if len(writer) == start:
                for at in range(0, num_rows, ROWS_AT_ONCE):
                    writer.extend(rows[at : at + ROWS_AT_ONCE])
                if not num_rows:
                    writer._expect(rows)
                writer._open_tree().name_classes(read_class_names(part))
                writer.flush()
            shutil.rmtree(part)
        count = len(writer)
    finally:
        writer.abandon()
    # A part that another process has begun meanwhile stays.
    (folder / MANIFEST).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
    return count


def _planned(folder: Path, writer: Any, durable: bool) -> list[tuple[str, int, int]]:
    """Return the remaining parts, each with its first row in the dataset and its rows."""
    manifest = folder / MANIFEST
    if not folder.exists():
        return []
    if not manifest.exists():
        names = [found.name for found in folder.iterdir() if found.is_dir()]
        planned = []
        start = len(writer)
        for name in sorted(names, key=by_number):
            num_rows = 0
            if (folder / name / "meta.json").exists():
                rows = TensorDict.load_memmap(folder / name)
                # A part that does not fit is an error before any part is deleted.
                writer._expect(rows)
                num_rows = len(rows)
            planned.append([name, start, num_rows])
            start += num_rows
        text = json.dumps({"version": 1, "parts": planned})
        replace_file(str(manifest), text, durable)
    parts = json.loads(manifest.read_text(encoding="utf-8"))["parts"]
    return [(name, start, num_rows) for name, start, num_rows in parts]


def _check_continued(
    writer: Any, part: Path, start: int, num_rows: int, found: int
) -> None:
    """Refuse to continue a killed join if the dataset or the part has got rows since."""
    if found != num_rows or len(writer) not in (start, start + num_rows):
        message = MSG_GROWN.format(
            part, found, num_rows, writer.path, len(writer), start, start + num_rows
        )
        raise RuntimeError(message)


def by_number(name: str) -> tuple[int, str]:
    """Return the sort key of a part: numbers first, by value, then names."""
    return (int(name) if name.isdecimal() else 1 << 62, name)
