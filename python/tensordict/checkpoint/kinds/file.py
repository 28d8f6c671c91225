"""Files of plain text, which others look for in the directory of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.kinds.interface import Kind, Saving

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.checkpoint.kinds.interface import Item
    from tensordict.checkpoint.restoring import Restoring

__all__ = ["File", "FileKind"]


class File:
    """A file of a step.

    Args:
        name: its name.
        content: its text.
    """

    def __init__(self, name: str, content: str) -> None:
        self.name = name
        self.content = content


class FileKind(Kind):
    """Saves a file beside those of tensors; it is not restored."""

    name = "file"
    is_exact = False

    def matches(self, item: object) -> bool:
        """Return whether an item is a file."""
        return isinstance(item, File)

    def describe(self, item: Item, saving: Saving) -> dict[str, Any]:
        """Return the name of the file."""
        saving.files.append((item.name, item.content.encode()))
        return {"value": item.name}

    def prepare(
        self, item: Item, name: str, about: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Return the name of the file with the plain data."""
        restoring.values[name] = restoring.value(name, about)
