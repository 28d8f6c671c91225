"""The tree of files of a directory, as text."""

from __future__ import annotations

import logging
import os

from tensordict.storage.locations import local

__all__ = ["print_directory_tree"]

_UNITS = ("B", "KB", "MB", "GB", "TB")


def print_directory_tree(
    path: str | os.PathLike[str], indent: str = "", display_metadata: bool = True
) -> str:
    """Log the files below a directory, one per line, and return the text.

    Args:
        path: the directory.
        indent: the beginning of each line.
        display_metadata: whether the first line shows the size of all files.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> _ = TensorDict({"a": torch.zeros(2)}, [2]).save(path)
        >>> text = print_directory_tree(path, display_metadata=False)
        >>> [line.strip() for line in text.splitlines()[1:]]
        ['a.memmap', 'meta.json']
    """
    path = local(path)
    lines = []
    if display_metadata:
        lines.append(f"Directory size: {_readable(_num_bytes(path))}")
    _add_lines(path, indent, lines)
    logger = logging.getLogger("tensordict")
    for line in lines:
        logger.info(line)
    return "\n".join(lines)


def _add_lines(path: str | os.PathLike[str], indent: str, lines: list[str]) -> None:
    name = os.path.basename(os.path.normpath(path))
    if not os.path.isdir(path):
        lines.append(f"{indent}{name}")
        return
    lines.append(f"{indent}{name}/")
    for entry in sorted(os.listdir(path)):
        # Readers of the published format do not know these files.
        if entry.startswith(".tensordict-"):
            continue
        _add_lines(os.path.join(path, entry), f"{indent}    ", lines)


def _num_bytes(path: str | os.PathLike[str]) -> int:
    found = (
        os.path.join(directory, file)
        for directory, _, files in os.walk(path)
        for file in files
    )
    return sum(os.lstat(file).st_size for file in found)


def _readable(num_bytes: float) -> str:
    for unit in _UNITS[:-1]:
        if num_bytes < 1024:
            return f"{num_bytes:.2f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} {_UNITS[-1]}"
