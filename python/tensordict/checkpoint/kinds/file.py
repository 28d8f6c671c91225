"""The kind of text files that other programs look for in the directory of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.kinds.interface import Kind, Saving

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.checkpoint.kinds.interface import Item
    from tensordict.checkpoint.restoring import Restoring

__all__ = ["File", "FileKind"]


class File:
    """A text file of a step.

    Args:
        name: the name of the file.
        content: the text.
    """

    def __init__(self, name: str, content: str) -> None:
        self.name = name
        self.content = content


class FileKind(Kind):
    """A kind whose files are saved next to the tensors, and not restored."""

    name = "file"
    is_exact = False

    def matches(self, item: object) -> bool:
        """Return whether an item is a :class:`File`."""
        return isinstance(item, File)

    def describe(self, item: Item, saving: Saving) -> dict[str, Any]:
        """Add the file to the step; return its name."""
        saving.files.append((item.name, item.content.encode()))
        return {"value": item.name}

    def prepare(
        self, item: Item, name: str, metadata: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Return the name of the file among the plain data."""
        restoring.values[name] = restoring.value(name, metadata)
