"""Trees of containers to directories and back.

Saving: :func:`save` lets the container add itself to a plan (``_save_plan``), has the
engine write it, and lets the container take the tensors over its files (``_saved``).

Loading: :func:`load` has the engine read a directory with all that is below it, in one
call, and makes the containers.

The functions ``*_dense`` are what dense containers do; containers of other layouts
override the methods that call them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.primitives import registry
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.errors import locked_error
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import single
from tensordict.storage.checksums import check_loaded, check_undamaged
from tensordict.storage.future import in_background, with_bar
from tensordict.storage.layouts.archive import compression_number
from tensordict.storage.leaves import (
    MSG_MEMORY_MAPPED,
    naming_the_entry,
    nested_from_flat,
    refuse_unbatched,
    with_batch_dims,
)
from tensordict.storage.paths import SavedPath, from_one_save, subpath_parts
from tensordict.storage.read_into_memory import gets_copies, read_copies, read_into
from tensordict.storage.tensors.mapped import MemoryMappedTensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "LoadOptions",
    "SaveOptions",
    "check_fit",
    "load",
    "load_into",
    "make_like",
    "mark_mapped",
    "plan_dense",
    "save",
    "saved_dense",
    "take_loaded_dense",
]

CPU = torch.device("cpu")

MSG_SIZE = (
    "{} makes no sense: the entry {!r} has shape {}, which does not begin with the batch "
    "size {}."
)
MSG_SHARED = "memmap and shared memory are mutually exclusive features."
MSG_IS_DIRECTORY = "Cannot write an archive at {}: it is an existing directory."
MSG_COMPRESSION = (
    "compression is only supported when writing a memmap archive (pass archive=True or "
    "use a '.tdz' prefix)."
)


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

    @property
    def escapes_keys(self) -> bool:
        """Whether keys become names of files by escaping."""
        return self.robust_key is not False

    @property
    def is_later(self) -> bool:
        """Whether the save goes on after the call."""
        return self.return_early and self.num_threads > 1

    @property
    def is_in_place(self) -> bool:
        """Whether files are written over, and not committed in one step."""
        return self.atomic is False

    @property
    def threads(self) -> int:
        """The most threads; 0 for as many as this process has cores."""
        return max(0, self.num_threads)

    @property
    def how(self) -> tuple[int, bool, bool]:
        """The most threads, whether it is on the disk at the end, whether sums are taken."""
        return self.threads, self.durable, self.checks

    def is_archive(self, prefix: Any) -> bool:
        """Whether an archive is written, and no directory."""
        if self.archive is None:
            return str(prefix).endswith(".tdz")
        return self.archive


class LoadOptions(NamedTuple):
    """The arguments of :meth:`load_memmap`, tidied."""

    requested: type | None
    """The class that the caller loads."""
    robust_key: bool
    mode: str | None
    num_threads: int
    device: torch.device | None
    allow_pickle: bool | None
    size: torch.Size | None = None
    """The batch size of the container that what is loaded is an entry of, if known."""

    def home_of(self, path: SavedPath) -> Path | None:
        """The directory that a container loaded from ``path`` can grow in, if any."""
        return None if self.mode == "r" else path.directory

    @property
    def is_moved(self) -> bool:
        """Whether values are copied to a device of their own."""
        return self.device is not None and self.device.type not in ("meta", "cpu")

    @property
    def has_values(self) -> bool:
        """Whether files are mapped: not for meta and fake tensors."""
        return not (
            (self.device is not None and self.device.type == "meta") or _is_fake()
        )


# Saving -------------------------------------------------------------------------------


def save(td: Any, prefix: Any, options: SaveOptions, *, inplace: bool) -> Any:
    """Write ``td`` to the directory ``prefix``: the saved container, or a future of it.

    Without ``prefix``: to the directory where it was saved before, or to shared memory
    without a name.
    """
    _check_options(prefix, options)
    refuse_unbatched(td, MSG_MEMORY_MAPPED)
    if options.is_archive(prefix):
        return _save_archive(td, prefix, options, is_sparse=False)
    if td._is_shared and inplace:
        raise RuntimeError(MSG_SHARED)
    if inplace:
        for container in _rust.containers(td):
            container._refuse_in_place()
    path = td._memmap_prefix if prefix is None else Path(prefix)
    # Now: the working directory may be another one when the work is done.
    target = None if path is None else os.path.abspath(path)
    progress = _rust.SaveProgress()
    source = td if inplace else _of_now(td, options)
    is_single = not inplace and single.is_chosen(path, options.archive)

    def work() -> Any:
        if path is None or target is None:
            return _save_anonymous(source, True, inplace)
        if is_single:
            return single.save(source, Path(target), options, progress)
        escapes_keys = options.escapes_keys
        copies = options.copy_existing
        plan = _rust.SavePlan(target, escapes_keys, copies, False, options.threads)
        with naming_the_entry(source):
            source._save_plan(plan, 0)
        leaves = plan.write(
            options.existsok, options.is_in_place, options.how, progress
        )
        return source._saved(leaves, _Directory(path, escapes_keys), inplace)

    return _now_or_later(td, work, options, progress)


def make_like(td: Any, prefix: Any, options: SaveOptions) -> Any:
    """Make files of zeros of the shapes of ``td``, or keep those that are there."""
    _check_options(prefix, options)
    td = with_batch_dims(td)
    if options.is_archive(prefix):
        return _save_archive(td, prefix, options, is_sparse=True)
    path = None if prefix is None else Path(prefix)
    target = None if path is None else os.path.abspath(path)
    source = _of_now(td, options)
    device = source.device and CPU

    def work() -> Any:
        if path is None or target is None:
            return _with_device(_save_anonymous(source, False, False), device)
        escapes_keys = options.escapes_keys
        plan = _rust.SavePlan(target, escapes_keys, True, True, options.threads)
        source._save_plan(plan, 0)
        leaves, grown = plan.create(options.existsok, options.preallocate)
        for file, before, now, leaf in grown:
            warn_caller(
                f"memmap_like grew the existing file {file} from {before} to {now} bytes "
                f"for the leaf {leaf}, so the leaf mixes the old values and zeros. "
                "Starting with TensorDict 0.17, the default will change to raising a "
                "RuntimeError when an existing file is smaller than the leaf. Remove "
                "the file, or use a new prefix, to get a file filled with zeros."
            )
        directory = _Directory(path, options.escapes_keys)
        return _with_device(source._saved(leaves, directory, False), device)

    return _now_or_later(td, work, options, _rust.SaveProgress())


def _save_archive(
    td: Any, prefix: Any, options: SaveOptions, *, is_sparse: bool
) -> Any:
    """Write ``td`` to the archive ``prefix``: a plain container over it, or a future."""
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
    source = _of_now(td, options)

    def work() -> Any:
        escapes_keys = options.escapes_keys
        plan = _rust.SavePlan(target, escapes_keys, True, is_sparse, options.threads)
        with naming_the_entry(source):
            source._save_plan(plan, 0)
        leaves = plan.write_archive(number, options.preallocate, options.how, progress)
        # Over an archive nothing can grow, so the container is an ordinary one.
        saved = source._saved(leaves, None, False)._unlock_saved()
        return _with_device(saved, CPU)

    return _now_or_later(td, work, options, progress)


def _of_now(td: Any, options: SaveOptions) -> Any:
    """What a save is of: the entries at the time of the call, whatever becomes of ``td``."""
    return td.clone(False) if options.is_later else td


def _with_device(saved: Any, device: torch.device | None) -> Any:
    """``saved``, whose values that are no tensors get a device where they have none."""
    for container in _rust.containers(saved):
        if container._is_non_tensor and container._device is None:
            container._device = device
    return saved


def _save_anonymous(td: Any, copy_data: bool, inplace: bool) -> Any:
    plan = _AnonymousPlan(copy_data)
    td._save_plan(plan, 0)
    return td._saved(_rust.SavedTensors(plan.leaves), None, inplace)


def _now_or_later(
    td: Any, work: Callable[[], Any], options: SaveOptions, progress: Any
) -> Any:
    if options.share_non_tensor:
        unshared, work = work, lambda: _with_shared_values(unshared())
    if options.pbar:
        watched, work = work, lambda: with_bar(watched, progress)
    if options.is_later:
        return in_background(td, work, progress)
    return work()


def _with_shared_values(saved: Any) -> Any:
    saved._share_values()
    return saved


def _check_options(prefix: Any, options: SaveOptions) -> None:
    if options.compression is not None and not options.is_archive(prefix):
        raise ValueError(MSG_COMPRESSION)
    if options.atomic and prefix is None:
        raise ValueError("atomic=True needs a prefix to write the directory to.")


class _Directory(NamedTuple):
    """A directory of a save, as the caller named it."""

    path: Path
    escapes_keys: bool

    def child(self, key: str) -> _Directory:
        name = _rust.escape_key(key) if self.escapes_keys else key
        return _Directory(self.path / name, self.escapes_keys)


def plan_dense(td: Any, plan: Any, level: int) -> None:
    """Add a dense container to the level of a plan."""
    for key, child_level, value in plan.add_entries(level, td._tensordict):
        if not isinstance(value, CollectionProtocol):
            raise TypeError(
                f"the entry {key!r} of type {type(value)} cannot be saved to a directory."
            )
        value._save_plan(plan, child_level)
    cls = type(td)
    names = td._td_dim_names
    if names is not None and all(name is None for name in names):
        names = None
    texts = registry.type_text(cls), registry.class_text(cls)
    plan.close_level(level, list(td._batch_size), names, *texts)


def saved_dense(
    td: Any, leaves: _rust.SavedTensors, directory: _Directory | None, inplace: bool
) -> Any:
    """A dense container over the files of a save: ``td`` itself, or one like it."""
    # In the order of the plan: all leaves of a level, then what is below.
    entries, flat, others = leaves.take_level(td._tensordict)
    for key in flat:
        entries[key] = _as_nested(
            entries[key], td._tensordict[key]._nested_tensor_size()
        )
    for key in others:
        child = None if directory is None else directory.child(key)
        entries[key] = entries[key]._saved(leaves, child, inplace)
    if inplace:
        td._tensordict.update(entries)
        td._device = CPU
        saved = td
    else:
        names = None if td._td_dim_names is None else list(td._td_dim_names)
        saved = _rust.new(type(td), entries, td._batch_size, CPU, names)
    saved._is_memmap = True
    saved._is_shared = False
    saved._is_locked = True
    saved._memmap_prefix = None if directory is None else directory.path
    saved._last_op = None
    return saved


def _as_nested(flat: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    made = nested_from_flat(flat, table)
    if not isinstance(flat, MemoryMappedTensor):
        return made
    made = made.as_subclass(MemoryMappedTensor)
    made.__dict__.update(flat.__dict__)
    made._parent_shape = table
    return made


class _AnonymousPlan:
    """What takes the place of a plan where there are no files to plan."""

    has_files = False
    """Whether what is no tensor is written: values stay as they are."""

    def __init__(self, copy_data: bool) -> None:
        self.copy_data = copy_data
        self.leaves: list[tuple[torch.Tensor, bool]] = []
        """Tensors, and whether each has the values of a nested one, flat."""

    def add_entries(
        self, level: int, entries: dict[str, Any]
    ) -> list[tuple[str, int, Any]]:
        others = []
        for key, value in list(entries.items()):
            if isinstance(value, torch.Tensor):
                shared = self._shared(value)
                self.leaves.append((shared, value.is_nested and not shared.is_nested))
            else:
                others.append((key, level, value))
        return others

    def add_file(self, level: int, name: str, content: bytes) -> None:
        """Do nothing: there is no directory."""

    def close_level(self, level: int, *fields: Any) -> None:
        """Do nothing: there is no metadata."""

    def close_level_as(self, level: int, text: str) -> None:
        """Do nothing: there is no metadata."""

    def _shared(self, leaf: torch.Tensor) -> torch.Tensor:
        """The leaf in shared memory without a name; itself where it is there already."""
        if (
            isinstance(leaf, MemoryMappedTensor)
            and leaf._handler is not None
            and self.copy_data
            and not leaf._index_chain
        ):
            return leaf
        source = leaf.detach()
        return MemoryMappedTensor.from_tensor(source, copy_data=self.copy_data)


# Loading ------------------------------------------------------------------------------


def load(
    requested: type | None,
    prefix: Any,
    device: Any = None,
    non_blocking: bool = False,
    *,
    out: Any = None,
    robust_key: bool | None = True,
    subpath: Any = None,
    mode: str | None = None,
    num_threads: int = 0,
    allow_pickle: bool | None = None,
    verify: bool = False,
) -> Any:
    """Make a container from a directory; with ``out``, in the place of its entries."""
    if not isinstance(mode, str | None):
        raise ValueError(f"mode must be 'r', 'r+' or None, got {mode!r}.")
    options = LoadOptions(
        requested,
        robust_key is not False,
        mode,
        max(0, num_threads),
        None if device is None else torch.device(device),
        allow_pickle,
    )
    layout = single.layout_of(prefix)
    if layout is not None:
        loaded = single.load(prefix, layout, options, subpath, verify, gets_copies(out))
        return loaded if out is None else load_into(out, loaded)

    def load_from(path: SavedPath) -> Any:
        return _load_from(path, options, subpath, verify, non_blocking, out)

    is_named = verify or options.is_moved or gets_copies(out)
    loaded = from_one_save(prefix, mode, load_from, by_name=is_named)
    return loaded if out is None else load_into(out, loaded)


def _load_from(
    path: SavedPath,
    options: LoadOptions,
    subpath: Any,
    verify: bool,
    non_blocking: bool,
    out: Any,
) -> Any:
    """Load what an opened save holds, ready to be put in the place of ``out``."""
    if verify:
        check_loaded(path.root, options.num_threads, subpath)
    below = path if subpath is None else _descend(path, subpath, options.robust_key)
    loaded = load_directory(below, options)
    is_moved = options.is_moved
    is_read = is_moved and not path.is_archived
    is_checked = is_read and read_copies(path, loaded, options.num_threads)
    if (is_moved or gets_copies(out)) and not (verify or is_checked):
        check_undamaged(path.root, options.num_threads, subpath)
    if is_moved:
        loaded = loaded.to(options.device, non_blocking=non_blocking)
    if out is not None:
        _check_out(out, loaded)
        is_mapped = not path.is_archived and options.has_values and not is_moved
        if is_mapped and not out.is_memmap():
            read_into(path, loaded, out, options.num_threads)
    return loaded


def load_directory(path: SavedPath, options: LoadOptions) -> Any:
    """Make a container from a directory that was saved from a container of any class."""
    known = registry.known_texts()
    how = options.num_threads, options.has_values
    tree = path.save.load_tree(path.full_name, known, options.robust_key, *how)
    if tree.is_known:
        return _make_dense(tree, path, options)
    cls = registry.find_class(options.requested, tree.class_text, tree.type_text, path)
    return cls._load_tree(path, options)


def _make_dense(tree: Any, path: SavedPath, options: LoadOptions) -> Any:
    """The container of a level that was read, and of those below."""
    entries = tree.entries
    batch_size = torch.Size(tree.batch_size)
    home: torch.device | None = CPU if tree.has_device else None
    if options.device is not None and options.device.type == "meta":
        home = options.device
    if not options.has_values:
        device = options.device or CPU
        for key, value in entries.items():
            if type(value) is tuple:
                shape, dtype = value
                entries[key] = torch.empty(shape, dtype=dtype, device=device)
    for key in tree.nested:
        child = entries[key]
        entries[key] = _make_dense(child, _path_of(path, child.directory), options)
    for key in tree.special:
        value = entries[key]
        if isinstance(value, str):
            inner = options._replace(size=batch_size)
            made = load_directory(_path_of(path, value), inner)
            if made._is_non_tensor:
                made = made._loaded_in(batch_size, home, tree.names)
            entries[key] = made
        elif options.has_values:
            entries[key] = _as_nested(*value)
    if batch_size:
        _check_sizes(entries, batch_size, path)
    cls = registry.find_class(options.requested, tree.class_text, tree.type_text, path)
    loaded = _rust.new(cls, entries, batch_size, home, tree.names)
    loaded._memmap_prefix = options.home_of(path)
    return loaded


def _check_sizes(entries: dict[str, Any], size: torch.Size, path: SavedPath) -> None:
    """Refuse what cannot be an entry of a container of this batch size.

    Raises:
        RuntimeError: the shape of an entry does not begin with it.
    """
    ndim = len(size)
    for key, value in entries.items():
        if isinstance(value, torch.Tensor) and _is_strided_nested(value):
            shape = torch.Size([value.size(0)])
        else:
            shape = value.shape
        if shape[:ndim] != size:
            found = MSG_SIZE.format(path / "meta.json", key, list(shape), list(size))
            raise RuntimeError(found)


def _path_of(parent: SavedPath, directory: str) -> SavedPath:
    return parent / os.path.basename(directory)


def _is_fake() -> bool:
    key = torch._C._TorchDispatchModeKey.FAKE
    return torch._C._get_dispatch_mode(key) is not None


def _descend(path: SavedPath, subpath: Any, escapes_keys: bool) -> SavedPath:
    """The directory of a nested key, given as a tuple or with slashes."""
    below = path
    for part in subpath_parts(subpath):
        if part:
            name = _rust.escape_key(part) if escapes_keys else part
            fields = below / "_tensordict" / name / "meta.json"
            if not (below / name / "meta.json").exists() and fields.exists():
                # The entries of a tensorclass are one level deeper.
                below = below / "_tensordict"
            below = below / name
    if not (below / "meta.json").exists():
        raise ValueError(
            f"No tensordict found under subpath {subpath!r} "
            f"(missing meta.json in {below})."
        )
    return below


def _check_out(out: Any, loaded: Any) -> None:
    if out._is_dense and loaded._is_dense and not _brings_collection(out, loaded):
        # Its own names stay, as in the release, where only a new nested collection
        # brings those of the save.
        names = out._td_dim_names
        if loaded._has_names() and (names is None or len(names) == loaded.batch_dims):
            loaded.names = names
    # The lock of a memory-mapped container guards its tie to a directory, which is
    # what changes here; any other lock guards its entries.
    if out.is_locked and not out.is_memmap():
        raise locked_error(out)
    check_fit(out, loaded)


def _brings_collection(out: Any, loaded: Any) -> bool:
    """Whether there is a nested collection in ``loaded`` that ``out`` does not have."""
    return any(
        isinstance(value, CollectionProtocol)
        and not value._is_non_tensor
        and not isinstance(out._get_entry(key, None), CollectionProtocol)
        for key, value in loaded.items()
    )


def load_into(out: Any, loaded: Any) -> Any:
    """Give ``out`` the entries of ``loaded``, and only those."""
    _check_out(out, loaded)
    taken = out._take_loaded(loaded)
    if taken._is_dense and taken.is_memmap():
        mark_mapped(taken)
    return taken


def check_fit(out: Any, loaded: Any) -> None:
    """Check, before anything changes, that the loaded entries fit."""
    if not out._is_dense:
        return
    batch_size = out.batch_size
    for key, value in loaded.items():
        # A strided nested tensor has no shape: it knows the number of its components.
        is_ragged = isinstance(value, torch.Tensor) and _is_strided_nested(value)
        shape = torch.Size([value.size(0)]) if is_ragged else value.shape
        if shape[: len(batch_size)] != batch_size:
            raise RuntimeError(
                f"the {type(value).__name__} {key} has shape {shape} which is "
                f"incompatible with the batch-size {batch_size}."
            )
        present = out._get_entry(key, None)
        if isinstance(present, CollectionProtocol) and not isinstance(
            value, torch.Tensor
        ):
            check_fit(present, value)
    names, loaded_names = out._td_dim_names, loaded._td_dim_names
    is_both = names is not None and loaded_names is not None
    if is_both and any(
        old not in (None, new) for old, new in zip(names, loaded_names, strict=False)
    ):
        raise RuntimeError(
            f"refine_names: cannot coerce TensorDict names {loaded_names} with {names}."
        )


def _is_strided_nested(value: torch.Tensor) -> bool:
    return value.is_nested and value.layout is torch.strided


def _is_loaded_already(present: Any, value: Any) -> bool:
    """Whether a leaf has no bytes to load; it says where it is saved none the less."""
    return (
        isinstance(present, MemoryMappedTensor)
        and not present.numel()
        and isinstance(value, torch.Tensor)
        and value.dtype == present.dtype
        and not value.is_nested
        and value.shape == present.shape
    )


def take_loaded_dense(out: Any, loaded: Any) -> Any:
    """Give a dense container the entries that were loaded for it, nested ones kept."""
    if loaded._is_non_tensor:
        return loaded
    entries: dict[str, Any] = {}
    for key, value in loaded.items():
        present = out._get_entry(key, None)
        is_pair = isinstance(present, CollectionProtocol) and isinstance(
            value, CollectionProtocol
        )
        if is_pair:
            value = present._take_loaded(value)
        elif _is_loaded_already(present, value):
            value = present
        entries[key] = value
    out._tensordict.clear()
    out._tensordict.update(entries)
    names = loaded._td_dim_names
    if names is not None and len(names) == len(out.batch_size):
        out._td_dim_names = list(names)
    out._memmap_prefix = loaded._memmap_prefix
    return out


def mark_mapped(td: Any) -> None:
    """Say of a container that was loaded, and of those below it, that it is saved."""
    td._is_memmap = True
    td._is_shared = False
    td._is_locked = True
    for value in td._children():
        mark_mapped(value)
