"""Checks of the headers of safetensors files.

The description of a step contains a digest of each file's header. The digest covers
names, dtypes, shapes and sizes, which are known before the data is written. The
checksums in the header are compared with the data when it is read; here only their
format is checked.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from tensordict import _rust

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["TEXTS", "header_digest", "read_header"]

TEXTS = [("format", "pt")]
"""The entries of ``__metadata__`` besides the checksums."""

_SUMS = "tensordict.sums"
_FIELDS = ["version", "algorithm", "block_bytes", "generation", "files"]
_HEX = re.compile(r"([0-9a-f]{8})+")
_GENERATION = re.compile(r"[0-9a-f]+(-[0-9a-f]+){2}")

MSG_HEADER = "'{}' is damaged: its header is not the header that was saved."


def header_digest(tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> str:
    """Return the digest of a header.

    Args:
        tensors: the name, dtype (without ``torch.``), shape and number of bytes of each
            tensor.
    """
    fields = sorted(
        (name, dtype, list(shape), size) for name, dtype, shape, size in tensors
    )
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]


def read_header(path: str, digest: str | None) -> list[tuple[str, str, list[int]]]:
    """Return name, dtype and shape of each tensor of a file.

    Args:
        path: the file.
        digest: the digest of its header; None if the description contains none.

    Raises:
        RuntimeError: the file is damaged.
    """
    texts, tensors, _ = _rust.safetensors_header(path)
    # A file that another program rewrote has no checksums: its header is not compared.
    if digest is not None and dict(texts).keys() - dict(TEXTS).keys():
        sizes = {name: size for name, *_, size in tensors}
        described = [
            (name, dtype, shape, size) for name, dtype, shape, _, size in tensors
        ]
        if header_digest(described) != digest or not _are_complete(dict(texts), sizes):
            raise RuntimeError(MSG_HEADER.format(path))
    return [(name, dtype, shape) for name, dtype, shape, *_ in tensors]


def _are_complete(texts: Mapping[str, str], sizes: Mapping[str, int]) -> bool:
    """Return whether the header texts contain well-formed checksums of all tensors."""
    if texts.keys() != {_SUMS, *(name for name, _ in TEXTS)}:
        return False
    if any(texts[name] != text for name, text in TEXTS):
        return False
    try:
        sums = json.loads(texts[_SUMS])
    except ValueError:
        return False
    return (
        list(sums) == _FIELDS
        and sums["algorithm"] == "crc32c"
        and _GENERATION.fullmatch(sums["generation"]) is not None
        and {name: entry[0] for name, entry in sums["files"].items()} == dict(sizes)
        and len({entry[1] for entry in sums["files"].values()}) <= 1
        and all(map(_is_entry, sums["files"].values()))
    )


def _is_entry(entry: Sequence[Any]) -> bool:
    return all(_HEX.fullmatch(checksum) is not None for checksum in entry[2:])
