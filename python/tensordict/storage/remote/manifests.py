"""The manifest of a save: which objects hold the bytes of which files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MANIFEST", "SWITCH", "Manifest", "Piece", "read_manifest"]

SWITCH: Final = "meta.json"
"""The name of the object that a save is there with."""

MANIFEST: Final = "tensordict.objects"
"""The key of a switch that leads to the objects of a save."""

_VERSION: Final = 2
"""The newest version of the format."""

MSG_NEWER: Final = (
    "The save is of a newer version of the format: upgrade tensordict to read it."
)


class Piece(NamedTuple):
    """A run of bytes of a file, and the object that holds it."""

    key: str
    """The path of the object from the place of the save."""
    start: int
    """The position of the first byte in the object."""
    size: int


class Manifest:
    """The objects of a save whose switch leads to them.

    Args:
        objects: for each file that is one object, by its name: the path of the object
            from the place of the save, and its size.
        text: the content of the file that the switch stands for.
        pieces: for each other file, by its name: the runs of bytes that make the file.
        texts: the contents of further files, by their names, which are no objects.
        joined: the token of the last join of parts to the dataset, if there was a join.
    """

    def __init__(
        self,
        objects: Mapping[str, tuple[str, int]],
        text: str,
        pieces: Mapping[str, list[Piece]] | None = None,
        texts: Mapping[str, str] | None = None,
        joined: str | None = None,
    ) -> None:
        self.objects: dict[str, tuple[str, int]] = dict(objects)
        self.text = text
        self.pieces: dict[str, list[Piece]] = dict(pieces or {})
        self.texts: dict[str, str] = dict(texts or {})
        self.joined = joined

    def keys(self) -> set[str]:
        """Return the paths of all objects that it leads to."""
        found = {key for key, _ in self.objects.values()}
        return found.union(
            piece.key for pieces in self.pieces.values() for piece in pieces
        )

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the files that are objects, or pieces of objects."""
        found = {name: size for name, (_, size) in self.objects.items()}
        for name, pieces in self.pieces.items():
            found[name] = sum(piece.size for piece in pieces)
        return found

    def to_bytes(self) -> bytes:
        """Return the switch."""
        content: dict[str, Any] = {
            MANIFEST: 1,
            "objects": {name: list(found) for name, found in self.objects.items()},
            "text": self.text,
        }
        if self.pieces or self.texts:
            places: dict[str, int] = {}
            pieces = {
                name: [
                    [places.setdefault(piece.key, len(places)), piece.start, piece.size]
                    for piece in runs
                ]
                for name, runs in self.pieces.items()
            }
            content[MANIFEST] = 2
            content |= {"keys": list(places), "pieces": pieces, "texts": self.texts}
        if self.joined is not None:
            content["joined"] = self.joined
        return json.dumps(content, separators=(",", ":")).encode()


def read_manifest(content: bytes) -> Manifest | None:
    """Return the manifest that a switch is; None for the plain file.

    Raises:
        RuntimeError: it is of a newer version.
    """
    if not content.startswith(b'{"' + MANIFEST.encode() + b'"'):
        return None
    found = json.loads(content)
    if found[MANIFEST] > _VERSION:
        raise RuntimeError(MSG_NEWER)
    objects = {name: (key, size) for name, (key, size) in found["objects"].items()}
    keys = found.get("keys", [])
    pieces = {
        name: [Piece(keys[at], start, size) for at, start, size in runs]
        for name, runs in found.get("pieces", {}).items()
    }
    texts, joined = found.get("texts"), found.get("joined")
    return Manifest(objects, found["text"], pieces, texts, joined)
