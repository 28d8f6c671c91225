"""Archives: a save as one zip file, ``.tdz``.

The engine reads and writes them (``tensordict-core/src/storage/archive``). Here are the
functions around them.
"""

from __future__ import annotations

import os
from pathlib import Path

from tensordict import _rust

__all__ = [
    "compression_number",
    "is_memmap_archive",
    "pack_memmap",
    "refresh_archive_checksums",
    "unpack_memmap",
]

_METHODS = {"stored": 0, "deflate": 8, "deflated": 8, "bzip2": 12, "lzma": 14}
"""The names of methods of compression, and their numbers in zip files."""

MSG_NO_ARCHIVE = "{} is not a memory-mapped tensordict archive."


def compression_number(compression: str | int | None) -> int:
    """The number that a method of compression has in zip files.

    Raises:
        ValueError: there is no method of this name.
        NotImplementedError: there is none of this number.
    """
    if compression is None:
        return 0
    if isinstance(compression, str):
        number = _METHODS.get(compression.lower())
        if number is None:
            raise ValueError(
                f"Unknown compression {compression!r}. Expected one of "
                f"{sorted(_METHODS)} or a zipfile compression constant."
            )
        return number
    if compression not in _METHODS.values():
        raise NotImplementedError("That compression method is not supported")
    return int(compression)


def is_memmap_archive(path: str | Path) -> bool:
    """Whether a file is an archive of a saved collection, whatever its name.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/data.tdz"
        >>> _ = TensorDict({"a": torch.zeros(3)}).save(path)
        >>> is_memmap_archive(path), is_memmap_archive(tempfile.mkdtemp())
        (True, False)
    """
    file = os.fspath(path)
    if not os.path.isfile(file):
        return False
    try:
        _rust.Archive(file)
    except ValueError:
        return False
    return True


def pack_memmap(
    prefix: str | Path,
    archive_path: str | Path,
    *,
    compression: str | int | None = None,
    compresslevel: int | None = None,
) -> Path:
    """Put a saved directory into one file, an archive.

    The archive appears in one step, or replaces the one that is there. Every file of the
    directory goes into it, but for the sums, which are taken anew.

    Args:
        prefix: the directory of the save.
        archive_path: the file to make.
        compression: how tensors are compressed: ``"stored"`` (default: not at all, so
            that they can be mapped), ``"deflate"``, ``"bzip2"``, ``"lzma"``, or a
            constant of :mod:`zipfile`.
        compresslevel: how hard. Default: that of the method.

    Returns:
        ``archive_path``.

    Raises:
        ValueError: ``prefix`` is no saved directory, or the archive would lie in it.
        OSError: the archive cannot be written.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> _ = TensorDict({"a": torch.arange(3)}).save(path)
        >>> archive = pack_memmap(path, path + ".tdz")
        >>> TensorDict.load(archive)["a"]
        tensor([0, 1, 2])
    """
    source, target = Path(prefix), Path(archive_path)
    if not (source / "meta.json").is_file():
        raise ValueError(
            f"{prefix} does not look like a memory-mapped tensordict directory (no "
            "meta.json found)."
        )
    number = compression_number(compression)
    if target.resolve().is_relative_to(source.resolve()):
        raise ValueError(
            f"The archive path {archive_path} must be outside the source directory "
            f"{prefix} and must not alias a source file."
        )
    if compresslevel is not None and compresslevel > 9:
        raise ValueError(f"compresslevel must be at most 9, got {compresslevel}.")
    progress = _rust.SaveProgress()
    level = None if compresslevel is None else max(0, compresslevel)
    _rust.pack_tree(source, target, number, level, 0, progress)
    return target


def unpack_memmap(archive_path: str | Path, prefix: str | Path) -> Path:
    """Write the files of an archive into a directory.

    Each file is written beside its place and renamed; the checksums of the archive are
    compared on the way.

    Args:
        archive_path: the archive.
        prefix: the directory, which is made where it is missing.

    Returns:
        ``prefix``.

    Raises:
        ValueError: it is no archive.
        RuntimeError: the archive is damaged, or names a file outside of ``prefix``.
        OSError: a file cannot be written.

    Examples:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> _ = TensorDict({"a": torch.arange(3)}).save(folder + "/data.tdz")
        >>> TensorDict.load(unpack_memmap(folder + "/data.tdz", folder + "/data"))["a"]
        MemoryMappedTensor([0, 1, 2])
    """
    _require_archive(archive_path)
    _rust.unpack_archive(archive_path, prefix, 0)
    return Path(prefix)


def refresh_archive_checksums(archive_path: str | Path) -> Path:
    """Take the checksums of an archive anew, in place.

    For an archive that was changed through tensors loaded with ``mode="r+"``: until then
    tools that compare the checksums of zip files refuse it.

    Returns:
        ``archive_path``.

    Raises:
        ValueError: it is no archive.
        OSError: it is not writable.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/data.tdz"
        >>> _ = TensorDict({"a": torch.zeros(3)}).save(path)
        >>> _ = TensorDict.load(path, mode="r+")["a"].fill_(1)
        >>> import zipfile
        >>> zipfile.ZipFile(path).testzip()
        'a.memmap'
        >>> zipfile.ZipFile(refresh_archive_checksums(path)).testzip()
    """
    _require_archive(archive_path)
    _rust.refresh_archive(archive_path, 0, _rust.SaveProgress())
    return Path(archive_path)


def _require_archive(path: str | Path) -> None:
    if not is_memmap_archive(path):
        raise ValueError(MSG_NO_ARCHIVE.format(path))
