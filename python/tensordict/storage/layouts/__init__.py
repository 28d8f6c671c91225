"""The layouts on disk, one module each, and the choice of the layout of a save.

:data:`LAYOUTS` is the table of all layouts. All functions that work on saves of any layout
(:func:`save`, :func:`load`, :func:`~tensordict.storage.verify`, :func:`~tensordict.storage.seal`,
:func:`~tensordict.storage.inspect.survey`, the commands) call :func:`find`, and then the methods of
the layout that it returns: see :class:`~tensordict.storage.layouts.interface.Layout`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from tensordict import _rust
from tensordict.storage.future import now_or_later, of_now
from tensordict.storage.layouts.archive import ArchiveLayout
from tensordict.storage.layouts.consolidated import ConsolidatedLayout
from tensordict.storage.layouts.directory import DirectoryLayout
from tensordict.storage.layouts.interface import Entry, Layout, short
from tensordict.storage.layouts.safetensors import SafetensorsLayout
from tensordict.storage.locations import local, new_directory
from tensordict.storage.remote.copied import MSG_COPY, followed, is_copied
from tensordict.storage.remote.place import is_remote
from tensordict.storage.take_loaded import load_into

if TYPE_CHECKING:
    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.storage.paths import SavedPath

__all__ = [
    "LAYOUTS",
    "Entry",
    "Layout",
    "LoadOptions",
    "SaveOptions",
    "by_suffix",
    "chosen",
    "find",
    "load",
    "make_like",
    "of_name",
    "register",
    "save",
    "short",
]

DIRECTORY: Final = DirectoryLayout()
SAFETENSORS: Final = SafetensorsLayout()
CONSOLIDATED: Final = ConsolidatedLayout()
ARCHIVE: Final = ArchiveLayout()

LAYOUTS: Final[list[Layout]] = [DIRECTORY, SAFETENSORS, CONSOLIDATED, ARCHIVE]
"""All layouts, in the order in which they are tried.

An archive is recognized by its last bytes, and the last bytes of a file in another layout may look
the same: so archives come last. Layouts of :func:`register` come first.
"""

MSG_REGISTERED = "A layout named {!r} is registered already."
MSG_RAGGED = "ragged must be 'columns' or None, got {!r}."
MSG_RAGGED_PLACE = "ragged='columns' writes a directory: pass the path of a directory, and not archive=True."
MSG_COMPRESSION = (
    "compression is only supported when writing a memmap archive (pass archive=True or "
    "use a '.tdz' prefix)."
)


def register(layout: Layout) -> None:
    """Add a layout to the table, before the other layouts.

    Raises:
        ValueError: a layout of this name is registered already.

    Examples:
        >>> from tensordict.storage import layouts
        >>> [layout.name for layout in layouts.LAYOUTS]
        ['tree', 'safetensors', 'consolidated', 'archive']
    """
    if any(layout.name == registered.name for registered in LAYOUTS):
        raise ValueError(MSG_REGISTERED.format(layout.name))
    LAYOUTS.insert(0, layout)


def find(path: str | Path) -> Layout | None:
    """Return the layout of the save at ``path``, ``None`` if there is no save.

    Raises:
        ValueError: the save has a manifest, as in an object store.
    """
    path = local(path)
    for layout in LAYOUTS:
        if layout.matches(path):
            if layout is DIRECTORY and is_copied(path):
                raise ValueError(MSG_COPY.format(path=path))
            return layout
    return None


def of_name(name: str) -> Layout:
    """Return the layout with this name in commands and reports."""
    return next(layout for layout in LAYOUTS if layout.name == name)


def by_suffix(path: str | Path) -> Layout:
    """Return the layout that the suffix of a path chooses. The default is a directory."""
    return next((layout for layout in LAYOUTS if layout.is_named(path)), DIRECTORY)


class SaveOptions(NamedTuple):
    """The arguments of :meth:`memmap` and its relatives, with values derived from them."""

    copy_existing: bool = False
    num_threads: int = 0
    return_early: bool = False
    existsok: bool = True
    robust_key: bool | None = True
    atomic: bool | None = None
    archive: bool | None = None
    compression: str | int | None = None
    durable: bool = False
    pbar: bool = False
    checks: bool = True
    preallocate: bool = False
    share_non_tensor: bool = False
    inplace: bool = False
    """Whether the collection itself becomes memory-mapped."""
    max_shard_size: int | str | None = None
    shards: int | None = None
    ragged: str | None = None
    """``"columns"`` saves rows that differ in shape as columns of values and shapes."""
    storage_options: Any = None
    """The options of the object store, if ``prefix`` is a URL."""

    @property
    def escapes_keys(self) -> bool:
        """Whether keys are escaped in file names."""
        return self.robust_key is not False

    @property
    def is_later(self) -> bool:
        """Whether the save continues after the call."""
        return self.return_early and self.num_threads > 1

    @property
    def is_in_place(self) -> bool:
        """Whether existing files are overwritten, instead of one commit at the end."""
        return self.atomic is False

    @property
    def threads(self) -> int:
        """The most threads, 0 for one for each core of this process."""
        return max(0, self.num_threads)

    @property
    def how(self) -> tuple[int, bool, bool]:
        """The most threads, whether to sync to the disk, whether to compute checksums."""
        return self.threads, self.durable, self.checks


class LoadOptions(NamedTuple):
    """The arguments of :meth:`load_memmap`, in a uniform form."""

    requested: type | None
    """The class whose method the caller called."""
    robust_key: bool
    mode: str | None
    num_threads: int
    device: torch.device | None
    allow_pickle: bool | None
    non_blocking: bool = False
    subpath: Any = None
    """The key of the nested collection to load instead of the whole save."""
    verify: bool = False
    size: torch.Size | None = None
    """The batch size of the parent collection, if it is known."""

    def home_of(self, path: SavedPath) -> Path | None:
        """Return the directory to which a collection loaded from ``path`` can add entries."""
        return None if self.mode == "r" else path.directory

    @property
    def is_moved(self) -> bool:
        """Whether values are copied to another device."""
        return self.device is not None and self.device.type not in ("meta", "cpu")

    @property
    def has_values(self) -> bool:
        """Whether files are mapped: true except for meta and fake tensors."""
        return not (
            (self.device is not None and self.device.type == "meta") or _is_fake()
        )


def _is_fake() -> bool:
    key = torch._C._TorchDispatchModeKey.FAKE
    return torch._C._get_dispatch_mode(key) is not None


def save(td: CollectionProtocol, prefix: object, options: SaveOptions) -> Any:
    """Write ``td`` to ``prefix``, in the layout that the suffix chooses.

    Without ``prefix``, write to the directory of the last save, or to shared memory without a
    name.

    Returns:
        The collection over the save, or a future.
    """
    if is_remote(prefix):
        from tensordict.storage.remote.saving import save as save_remotely

        return save_remotely(td, prefix, options)
    prefix = local(prefix)
    if options.ragged is not None:
        return _save_columns(td, prefix, options)
    return chosen(td, prefix, options).save(td, prefix, options)


def _save_columns(td: CollectionProtocol, prefix: Any, options: SaveOptions) -> Any:
    """Write ``td`` to a directory of columns: ``ragged="columns"``."""
    from tensordict.storage.growing.saving import write_columns

    if options.ragged != "columns":
        raise ValueError(MSG_RAGGED.format(options.ragged))
    if prefix is None or chosen(td, prefix, options) is not DIRECTORY:
        raise ValueError(MSG_RAGGED_PLACE)
    path = Path(prefix)
    target = os.path.abspath(path)
    source = of_now(td, options)

    def work() -> Any:
        write_columns(source, target, options.existsok, options.durable, options.checks)
        saved = load(None, target)
        saved._is_memmap = True
        saved._memmap_prefix = path
        return saved.lock_()

    return now_or_later(td, work, options, _rust.SaveProgress())


def chosen(td: CollectionProtocol, prefix: object, options: SaveOptions) -> Layout:
    """Return the layout for a save: the first whose ``chosen_by`` is true, or a directory.

    Raises:
        ValueError: an argument belongs to another layout; ``prefix`` is a URL, or the name
            of a file in another format.
    """
    prefix = local(prefix)
    others = (layout for layout in LAYOUTS if layout.chosen_by(td, prefix, options))
    layout = next(others, DIRECTORY)
    if options.compression is not None and layout is not ARCHIVE:
        raise ValueError(MSG_COMPRESSION)
    if options.atomic and prefix is None:
        raise ValueError("atomic=True needs a prefix to write the directory to.")
    if layout is DIRECTORY and (options.inplace or options.archive is None):
        new_directory(prefix)
    return layout


def make_like(td: CollectionProtocol, prefix: object, options: SaveOptions) -> Any:
    """Save zeros with the shapes of ``td``. They take no disk space until they are written to."""
    if is_remote(prefix):
        from tensordict.storage.remote.saving import refuse_mapping

        refuse_mapping(prefix, "memmap_like")
    prefix = local(prefix)
    is_anonymous = prefix is None and not options.archive
    layout = DIRECTORY if is_anonymous else chosen(td, prefix, options)
    return layout.make_like(td, prefix, options)


def load(
    requested: type | None,
    prefix: Any,
    device: torch.device | str | int | None = None,
    non_blocking: bool = False,
    *,
    out: Any = None,
    robust_key: bool | None = True,
    subpath: object = None,
    mode: str | None = None,
    num_threads: int = 0,
    allow_pickle: bool | None = None,
    verify: bool = False,
    **remote: Any,
) -> Any:
    """Load a save as a collection; with ``out``, replace the entries of ``out``.

    ``remote`` holds the arguments for saves in object stores.
    """
    if not isinstance(mode, str | None):
        raise ValueError(f"mode must be 'r', 'r+' or None, got {mode!r}.")
    options = LoadOptions(
        requested,
        robust_key is not False,
        mode,
        max(0, num_threads),
        None if device is None else torch.device(device),
        allow_pickle,
        non_blocking,
        subpath,
        verify,
    )
    if not is_remote(prefix):
        try:
            return _load(prefix, options, out)
        except (OSError, RuntimeError, ValueError, KeyError):
            place = followed(prefix)
            if place is None:
                raise
        prefix = place
    from tensordict.storage.remote.loads import RemoteOptions, load_place

    return load_place(
        prefix,
        options,
        out,
        RemoteOptions(**remote),
        lambda path: _load(path, options, out),
    )


def _load(prefix: Any, options: LoadOptions, out: Any) -> Any:
    """Load a save from the file system of this machine."""
    # If no other layout matches, the file is opened as an archive, which raises an error
    # if it is not one. Asking `matches` first would read the file twice.
    if ":" in str(prefix):
        prefix = local(prefix)
    others = (layout for layout in LAYOUTS[:-1] if layout.matches(prefix))
    layout = next(others, ARCHIVE)
    loaded = layout.load(prefix, options, out)
    return loaded if out is None else load_into(out, loaded)
