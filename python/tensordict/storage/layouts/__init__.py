"""The layouts on disk, a file each, and which of them a save is in.

:data:`LAYOUTS` is the one table of them. Everything that works on a save of any layout
(:func:`save`, :func:`load`, :func:`~tensordict.storage.verify`,
:func:`~tensordict.storage.seal`, :func:`~tensordict.storage.inspect.survey`, the
commands) asks :func:`find` for the layout, and then calls its methods: see
:class:`~tensordict.storage.layouts.interface.Layout`.
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

An archive is recognized by its end, which a tensor of another file can look like: it is
the last. Those of :func:`register` are the first.
"""

MSG_REGISTERED = "There is a layout of the name {!r} already."
MSG_RAGGED = "ragged must be 'columns' or None, got {!r}."
MSG_RAGGED_PLACE = (
    "ragged='columns' needs the path of a directory, and writes no archive."
)
MSG_COMPRESSION = (
    "compression is only supported when writing a memmap archive (pass archive=True or "
    "use a '.tdz' prefix)."
)


def register(layout: Layout) -> None:
    """Add a layout: saves, loads and the commands know it from now on.

    It is asked before the others.

    Raises:
        ValueError: there is one of that name.

    Examples:
        >>> from tensordict.storage import layouts
        >>> [layout.name for layout in layouts.LAYOUTS]
        ['tree', 'safetensors', 'consolidated', 'archive']
    """
    if any(layout.name == each.name for each in LAYOUTS):
        raise ValueError(MSG_REGISTERED.format(layout.name))
    LAYOUTS.insert(0, layout)


def find(path: str | Path) -> Layout | None:
    """The layout of what is at ``path``; None where it is none, or nothing is there."""
    path = local(path)
    for layout in LAYOUTS:
        if layout.matches(path):
            return layout
    return None


def of_name(name: str) -> Layout:
    """The layout that commands and reports call by this name."""
    return next(layout for layout in LAYOUTS if layout.name == name)


def by_suffix(path: str | Path) -> Layout:
    """The layout that the end of a name chooses; a directory where it chooses none."""
    return next((layout for layout in LAYOUTS if layout.is_named(path)), DIRECTORY)


class SaveOptions(NamedTuple):
    """The arguments of :meth:`memmap` and its kin, and what follows from them."""

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
    """True if the collection itself becomes the one over the files."""
    max_shard_size: int | str | None = None
    shards: int | None = None
    ragged: str | None = None
    """``"columns"``: rows that differ in shape become columns of values and shapes."""
    storage_options: Any = None
    """The options of an object store that ``prefix`` is in."""

    @property
    def escapes_keys(self) -> bool:
        """Return whether keys become names of files by escaping."""
        return self.robust_key is not False

    @property
    def is_later(self) -> bool:
        """Return whether the save goes on after the call."""
        return self.return_early and self.num_threads > 1

    @property
    def is_in_place(self) -> bool:
        """Return whether files are written over, and not committed in one step."""
        return self.atomic is False

    @property
    def threads(self) -> int:
        """The most threads; 0 for as many as this process has cores."""
        return max(0, self.num_threads)

    @property
    def how(self) -> tuple[int, bool, bool]:
        """The most threads, and whether to sync to the disk and to take checksums."""
        return self.threads, self.durable, self.checks


class LoadOptions(NamedTuple):
    """The arguments of :meth:`load_memmap`, tidied."""

    requested: type | None
    """The class that the caller loads."""
    robust_key: bool
    mode: str | None
    num_threads: int
    device: torch.device | None
    allow_pickle: bool | None
    non_blocking: bool = False
    subpath: Any = None
    """The key of the nested collection that is loaded instead of the whole save."""
    verify: bool = False
    size: torch.Size | None = None
    """The batch size of the collection that what is loaded is an entry of, if known."""

    def home_of(self, path: SavedPath) -> Path | None:
        """The directory that a collection loaded from ``path`` can grow in, if any."""
        return None if self.mode == "r" else path.directory

    @property
    def is_moved(self) -> bool:
        """Return whether values are copied to a device of their own."""
        return self.device is not None and self.device.type not in ("meta", "cpu")

    @property
    def has_values(self) -> bool:
        """Return whether files are mapped: not for meta and fake tensors."""
        return not (
            (self.device is not None and self.device.type == "meta") or _is_fake()
        )


def _is_fake() -> bool:
    key = torch._C._TorchDispatchModeKey.FAKE
    return torch._C._get_dispatch_mode(key) is not None


def save(td: CollectionProtocol, prefix: object, options: SaveOptions) -> Any:
    """Write ``td`` to ``prefix``, in the layout of its suffix: the collection, or a future.

    Without ``prefix``: to the directory where it was saved before, or to shared memory
    without a name.
    """
    if is_remote(prefix):
        from tensordict.storage.remote.saving import save as save_remotely

        return save_remotely(td, prefix, options)
    prefix = local(prefix)
    if options.ragged is not None:
        return _save_columns(td, prefix, options)
    return chosen(td, prefix, options).save(td, prefix, options)


def _save_columns(td: CollectionProtocol, prefix: Any, options: SaveOptions) -> Any:
    """Write ``td`` as a directory of columns: ``ragged="columns"``."""
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
    """The layout that a collection is saved in: the first that says so, or a directory.

    Raises:
        ValueError: the arguments are of another layout; ``prefix`` is a URL, or the name
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
    """Save zeros of the shapes of ``td``, which take no space until they are stored to."""
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
    """Make a collection of a save; with ``out``, in the place of its entries.

    ``remote`` are the arguments for saves in object stores.
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
    if is_remote(prefix):
        from tensordict.storage.remote.loads import RemoteOptions, load_place

        return load_place(
            prefix,
            options,
            out,
            RemoteOptions(**remote),
            lambda path: _load(path, options, out),
        )
    return _load(prefix, options, out)


def _load(prefix: Any, options: LoadOptions, out: Any) -> Any:
    """Load a save of this machine."""
    # A file in no other layout is opened as an archive, which refuses all but one: to
    # ask before whether it is one would read the file twice.
    if ":" in str(prefix):
        prefix = local(prefix)
    layout = next((each for each in LAYOUTS[:-1] if each.matches(prefix)), ARCHIVE)
    loaded = layout.load(prefix, options, out)
    return loaded if out is None else load_into(out, loaded)
