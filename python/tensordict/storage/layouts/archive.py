"""Archives: a save as one zip file, ``.tdz``.

The Rust engine reads and writes archives (``tensordict-core/src/storage/archive``). An archive
contains the files of a saved directory, and is loaded in the same way.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tensordict import _rust
from tensordict.storage.foreign import MSG_NO_LAYOUT, explain
from tensordict.storage.future import now_or_later, of_now
from tensordict.storage.layouts.directory import (
    CPU,
    DirectoryLayout,
    level_entries,
    with_device,
)
from tensordict.storage.layouts.interface import MSG_CUT_OFF, Entry
from tensordict.storage.leaves import (
    MSG_MEMORY_MAPPED,
    naming_the_entry,
    refuse_special,
    with_batch_dims,
)
from tensordict.storage.locations import local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.storage.layouts import SaveOptions

__all__ = [
    "ArchiveLayout",
    "compression_number",
    "is_memmap_archive",
    "pack_memmap",
    "refresh_archive_checksums",
    "unpack_memmap",
]

_METHODS = {"stored": 0, "deflate": 8, "deflated": 8, "bzip2": 12, "lzma": 14}
"""The compression methods by name, with their numbers in zip files."""

MSG_NO_ARCHIVE = "{} is not a memory-mapped tensordict archive."
MSG_IS_DIRECTORY = "Cannot write an archive at {}: it is an existing directory."


class ArchiveLayout(DirectoryLayout):
    """The files of a saved directory, in one zip file."""

    name = "archive"
    suffixes: ClassVar[tuple[str, ...]] = (".tdz",)

    def chosen_by(self, td: object, path: object, options: SaveOptions) -> bool:
        """Return whether a save gets this layout: ``archive`` decides, or else the suffix."""
        return self.is_named(path) if options.archive is None else options.archive

    def matches(self, path: str | Path) -> bool:
        """Return whether the file begins or ends like a zip file."""
        if not os.path.isfile(path):
            return False
        with open(path, "rb", buffering=0) as file:
            begins = file.read(4) == b"PK\x03\x04"
        return begins or zipfile.is_zipfile(path)

    def save(self, td: CollectionProtocol, path: Any, options: SaveOptions) -> Any:
        """Write to an archive; return an unlocked collection over the archive."""
        refuse_special(td, MSG_MEMORY_MAPPED)
        return _save(td, path, options, is_sparse=False)

    def make_like(
        self, td: CollectionProtocol, prefix: object, options: SaveOptions
    ) -> Any:
        """Create an archive of zeros with the shapes of ``td``."""
        return _save(with_batch_dims(td), prefix, options, is_sparse=True)

    def inspect(self, path: str) -> Iterator[Entry]:
        """Yield the entries of all levels.

        Raises:
            ValueError: the file is a zip file of another program.
        """
        if explanation := explain(path):
            raise ValueError(f"{path} is not a save. {explanation}")
        if not zipfile.is_zipfile(path):
            yield Entry((), "collection", problem=MSG_CUT_OFF)
            return
        with zipfile.ZipFile(path) as archive:
            yield from level_entries(_Members(archive), "", ())

    def seal(
        self, path: str | Path, num_threads: int, progress: _rust.SaveProgress
    ) -> int:
        """Compute the checksums of all entries; return their number.

        Raises:
            ValueError: the file is a zip file of another program.
        """
        if not is_memmap_archive(path):
            raise ValueError(f"{path} is not a save. {explain(path) or MSG_NO_LAYOUT}")
        return _rust.refresh_archive(os.fspath(path), max(0, num_threads), progress)

    def _file(self, path: str | Path, file: str) -> bytes:
        try:
            with zipfile.ZipFile(path) as archive:
                return archive.read(file.partition("::/")[2])
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from error


def _save(
    td: CollectionProtocol, prefix: Any, options: SaveOptions, *, is_sparse: bool
) -> Any:
    """Write ``td`` to the archive ``prefix``; return a collection over it, or a future."""
    if prefix is None:
        raise ValueError("A path is required to write a memmap archive.")
    target = os.path.abspath(prefix)
    if os.path.isdir(target):
        raise ValueError(MSG_IS_DIRECTORY.format(prefix))
    if not options.existsok and os.path.lexists(target):
        raise RuntimeError(
            f"A file already exists at {prefix}, cannot save the tensordict there. Set "
            "existsok=True to overwrite."
        )
    number = compression_number(options.compression)
    progress = _rust.SaveProgress()
    source = of_now(td, options)
    # Plan now: the plan references the present memory of the tensors.
    plan = _rust.SavePlan(
        target, options.escapes_keys, True, is_sparse, options.threads
    )
    with naming_the_entry(source):
        source._save_plan(plan, 0)

    def work() -> Any:
        leaves = plan.write_archive(number, options.preallocate, options.how, progress)
        # An archive cannot get further entries, so the collection needs no lock.
        saved = source._saved(leaves, None, False)._unlock_saved()
        return with_device(saved, CPU)

    return now_or_later(td, work, options, progress)


class _Members:
    """The members of a zip file."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.root = archive.filename
        self.sizes = {info.filename: info.file_size for info in archive.infolist()}

    def content(self, name: str) -> bytes:
        if name not in self.sizes:
            raise FileNotFoundError(2, "No such entry", name)
        return self.archive.read(name)

    def text(self, name: str) -> str:
        return self.content(name).decode()

    def size(self, name: str) -> int | None:
        return self.sizes.get(name)

    def folders(self, name: str) -> list[str]:
        start = f"{name}/" if name else ""
        below = [key[len(start) :] for key in self.sizes if key.startswith(start)]
        return list(dict.fromkeys(key.split("/")[0] for key in below if "/" in key))


def compression_number(compression: str | int | None) -> int:
    """Return the number of a compression method in zip files.

    Raises:
        ValueError: the name is unknown.
        NotImplementedError: the number is unknown.
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
    """Return whether a file is an archive of a saved tensordict. Its name does not matter.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/data.tdz"
        >>> _ = TensorDict({"a": torch.zeros(3)}).save(path)
        >>> is_memmap_archive(path), is_memmap_archive(tempfile.mkdtemp())
        (True, False)
    """
    file = os.fspath(local(path))
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
    """Copy a saved directory to one file, an archive.

    The archive appears, or replaces an existing one, in one step. It contains every file of
    the directory except the checksums, which are computed again.

    Args:
        prefix: the directory of the save.
        archive_path: the archive to create.
        compression: the compression of the tensors: ``"stored"`` (the default, no
            compression, so that they can be mapped), ``"deflate"``, ``"bzip2"``,
            ``"lzma"``, or a constant of :mod:`zipfile`.
        compresslevel: the level of compression. The default depends on the method.

    Returns:
        ``archive_path``.

    Raises:
        ValueError: ``prefix`` is not a saved directory, or the archive would be inside
            of it.
        OSError: the archive cannot be written.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> _ = TensorDict({"a": torch.arange(3)}).save(path)
        >>> archive = pack_memmap(path, path + ".tdz")
        >>> TensorDict.load(archive)["a"]
        tensor([0, 1, 2])
    """
    source, target = Path(local(prefix)), Path(local(archive_path))
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

    Each file is written under another name and then renamed. The checksums of the archive
    are compared while it is read.

    Args:
        archive_path: the archive.
        prefix: the directory. It is created if it does not exist.

    Returns:
        ``prefix``.

    Raises:
        ValueError: ``archive_path`` is not an archive.
        RuntimeError: the archive is damaged, or names a file outside of ``prefix``.
        OSError: a file cannot be written.

    Examples:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> _ = TensorDict({"a": torch.arange(3)}).save(folder + "/data.tdz")
        >>> TensorDict.load(unpack_memmap(folder + "/data.tdz", folder + "/data"))["a"]
        MemoryMappedTensor([0, 1, 2])
    """
    prefix = local(prefix)
    archive_path = local(archive_path)
    _require_archive(archive_path)
    _rust.unpack_archive(archive_path, prefix, 0)
    return Path(prefix)


def refresh_archive_checksums(archive_path: str | Path) -> Path:
    """Compute the checksums of an archive again, in place.

    Call it after writing to tensors that were loaded with ``mode="r+"``. Before the call,
    zip tools refuse the archive because its checksums are wrong.

    Returns:
        ``archive_path``.

    Raises:
        ValueError: ``archive_path`` is not an archive.
        OSError: the archive is not writable.

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
    archive_path = local(archive_path)
    _require_archive(archive_path)
    _rust.refresh_archive(archive_path, 0, _rust.SaveProgress())
    return Path(archive_path)


def _require_archive(path: str | Path) -> None:
    if not is_memmap_archive(path):
        raise ValueError(MSG_NO_ARCHIVE.format(path))
