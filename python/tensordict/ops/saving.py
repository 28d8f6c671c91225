"""Saving to files and loading from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import layouts as _layouts
from tensordict.storage import state as _state
from tensordict.storage.layouts.directory import plan_dense, saved_dense
from tensordict.storage.remote.copied import is_copied
from tensordict.storage.remote.place import is_remote
from tensordict.storage.take_loaded import load_into, take_loaded_dense

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from tensordict._rust import SavedTensors
    from tensordict.primitives.protocol import NestedKeyLike
    from tensordict.storage.paths import SavedPath

__all__ = ["SavingOps"]


class SavingOps(CollectionProtocol):
    """Saving to files and loading from them.

    A save in the directory layout holds a file of raw bytes for each tensor, a
    directory for each nested tensordict, and a ``meta.json`` in every directory.
    tensordict 0.15 reads and writes the same files.
    """

    # Saving ----------------------------------------------------------------------

    def memmap(
        self,
        prefix: str | Path | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        existsok: bool = True,
        robust_key: bool | None = True,
        archive: bool | None = None,
        compression: str | int | None = None,
        atomic: bool | None = None,
        durable: bool = False,
        pbar: bool = False,
        checks: bool = True,
        ragged: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Save to a directory or an archive, and return a tensordict over its files.

        If ``prefix`` is missing, empty or itself a save, the new save appears in one
        step: after a kill, the directory contains either the old data or the new.
        Tensors that are already mapped from ``prefix`` are not written again. Saving
        needs no memory beyond this tensordict, except for a contiguous copy of each
        tensor that is not contiguous or on another device.

        Args:
            prefix: the directory, or the URL of a place in an object store
                (``"s3://bucket/data"``): see the guide on object stores. Default: the
                directory of the last save of this tensordict, or anonymous shared
                memory.
            copy_existing: copy tensors that are mapped from other files.
            num_threads: the most native threads that write. Default: the cores that
                this process may use, at most 8.
            return_early: with ``num_threads`` above 1, return a future at once. Its
                ``result()`` is the tensordict; it also has ``done()``, ``cancel()`` and
                ``progress()``. The entries at the time of the call are saved; do not
                change their values in place before the future is done.
                If `resize_` or `share_memory_` frees the memory of a tensor
                meanwhile, the save raises ``RuntimeError`` and the target stays.
            share_non_tensor: share non-tensor data between the processes that the
                result is sent to: changes by :meth:`update_`, :meth:`set_` and
                assignment at an index reach all of them.
            existsok: allow existing files to be replaced.
            robust_key: escape keys to file names. If False, a key that is no file name
                raises an error.
            archive: write one archive file instead of a directory. Default: True if
                ``prefix`` ends with ``.tdz``.
            compression: how the tensors of an archive are compressed: ``"stored"``
                (default: uncompressed, so that they can be mapped), ``"deflate"``,
                ``"bzip2"`` or ``"lzma"``.
            atomic: False to overwrite the files in place, as tensordict 0.15 does:
                readers see a half-written save, and so does a process after a kill.
                Default: the save appears in one step.
            durable: return only when the save is on the disk, so that it survives a
                power cut.
            pbar: show a progress bar.
            checks: keep checksums, which find damage later. See
                :func:`tensordict.storage.verify`.
            ragged: ``"columns"`` to save ragged rows in a few files for each key
                (values and shapes) and strings as one column of bytes: see
                :class:`~tensordict.data.DatasetWriter`. Loading gives a lazy stack that
                makes its members on demand. Default: a lazy stack is saved as one
                directory for each member.
            storage_options: for a URL, the options of ``obstore``, such as
                ``{"aws_region": "eu-central-1"}``. Options that are not passed come
                from the environment.

        Returns:
            A locked tensordict on the CPU whose tensors are
            :class:`~tensordict.MemoryMappedTensor` over the files. For an archive, a
            plain tensordict over the mapped file; writes to it stay in this process.

        Raises:
            RuntimeError: a tensor is mapped from another file and ``copy_existing`` is
                not set; a file exists and ``existsok`` is not set; the layout cannot
                store a key; this tensordict is in shared memory.
            OSError: the files cannot be written.
            ValueError: ``atomic`` was passed without a directory.

        Examples:
            >>> import tempfile
            >>> path = tempfile.mkdtemp()
            >>> td = TensorDict({"a": torch.arange(3)}, [3])
            >>> saved = td.memmap(path)
            >>> saved["a"]
            MemoryMappedTensor([0, 1, 2])
            >>> saved.is_memmap(), saved.is_locked, td.is_memmap()
            (True, True, False)
            >>> TensorDict.load_memmap(path)["a"]
            MemoryMappedTensor([0, 1, 2])
        """
        options = _layouts.SaveOptions(
            copy_existing=copy_existing,
            num_threads=num_threads,
            return_early=return_early,
            existsok=existsok,
            robust_key=robust_key,
            atomic=atomic,
            archive=archive,
            compression=compression,
            durable=durable,
            pbar=pbar,
            checks=checks,
            share_non_tensor=share_non_tensor,
            ragged=ragged,
            storage_options=storage_options,
        )
        return _layouts.save(self, prefix, options)

    def memmap_(
        self,
        prefix: str | Path | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        existsok: bool = True,
        robust_key: bool | None = True,
        atomic: bool | None = None,
        durable: bool = False,
        pbar: bool = False,
        checks: bool = True,
    ) -> Self:
        """Save to a directory and replace this tensordict's tensors with its files.

        As :meth:`memmap`, but the tensors of this tensordict become the ones over the
        files; it moves to the CPU and is locked. Nested tensordicts stay the same
        objects. If saving fails, nothing changes.

        Examples:
            >>> import tempfile
            >>> td = TensorDict({"a": torch.arange(3)}, [3])
            >>> td.memmap_(tempfile.mkdtemp()) is td
            True
            >>> td["a"]
            MemoryMappedTensor([0, 1, 2])
        """
        options = _layouts.SaveOptions(
            copy_existing=copy_existing,
            num_threads=num_threads,
            return_early=return_early,
            existsok=existsok,
            robust_key=robust_key,
            atomic=atomic,
            archive=False,
            durable=durable,
            pbar=pbar,
            checks=checks,
            share_non_tensor=share_non_tensor,
            inplace=True,
        )
        return _layouts.save(self, prefix, options)

    def memmap_like(
        self,
        prefix: str | Path | None = None,
        copy_existing: bool = False,
        *,
        existsok: bool = True,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        robust_key: bool | None = True,
        archive: bool | None = None,
        preallocate: bool = False,
    ) -> Self:
        """Make a memory-mapped tensordict of zeros with these shapes and dtypes.

        Use it to create a dataset and fill it row by row. The files take no space
        until they are written to. They appear in one step; a process that has an older
        save at ``prefix`` open keeps the old data. To continue filling a dataset, load
        it. The values of this tensordict are not read: its tensors may be on the meta
        device or expanded.

        Args:
            prefix: the directory. Default: anonymous shared memory.
            copy_existing: ignored.
            existsok: allow existing files.
            num_threads: ignored, except for ``return_early``.
            return_early: as for :meth:`memmap`.
            share_non_tensor: as for :meth:`memmap`.
            robust_key: as for :meth:`memmap`.
            archive: write an archive of zeros, as :meth:`memmap` does. Writes into the
                result's tensors reach the archive, but the tensors are plain ones, and
                the result is unlocked and takes no further files.
            preallocate: reserve the space of the files now. Without it, a write to a
                full disk is a bus error, which ends the process.

        Raises:
            OSError: ``preallocate`` is set and the disk has too little space.
            RuntimeError: a file exists and ``existsok`` is not set.

        Examples:
            >>> import tempfile
            >>> row = TensorDict({"image": torch.zeros(3, 8, 8, dtype=torch.uint8)})
            >>> data = row.expand(1000).memmap_like(tempfile.mkdtemp())
            >>> data["image"].shape
            torch.Size([1000, 3, 8, 8])
            >>> data[0] = row + 1
            >>> int(data["image"][0].max()), int(data["image"][1].max())
            (1, 0)
        """
        options = _layouts.SaveOptions(
            num_threads=num_threads,
            return_early=return_early,
            existsok=existsok,
            robust_key=robust_key,
            archive=archive,
            preallocate=preallocate,
            share_non_tensor=share_non_tensor,
        )
        return _layouts.make_like(self, prefix, options)

    def save(
        self,
        prefix: str | Path | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        robust_key: bool | None = True,
        archive: bool | None = None,
        compression: str | int | None = None,
        atomic: bool | None = None,
        durable: bool = False,
        pbar: bool = False,
        checks: bool = True,
        ragged: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Save to a directory or an archive, as :meth:`memmap`; :meth:`load` reads it.

        Examples:
            >>> import tempfile
            >>> path = tempfile.mkdtemp()
            >>> _ = TensorDict({"a": torch.arange(3)}, [3]).save(path)
            >>> TensorDict.load(path)["a"]
            MemoryMappedTensor([0, 1, 2])
        """
        return self.memmap(
            prefix,
            copy_existing,
            num_threads=num_threads,
            return_early=return_early,
            share_non_tensor=share_non_tensor,
            robust_key=robust_key,
            archive=archive,
            compression=compression,
            atomic=atomic,
            durable=durable,
            pbar=pbar,
            checks=checks,
            ragged=ragged,
            storage_options=storage_options,
        )

    dumps = save

    # Loading ---------------------------------------------------------------------

    @classmethod
    def load_memmap(
        cls,
        prefix: str | Path,
        device: torch.device | None = None,
        non_blocking: bool = False,
        *,
        out: object = None,
        robust_key: bool | None = True,
        subpath: NestedKeyLike | None = None,
        mode: str | None = None,
        num_threads: int = 0,
        allow_pickle: bool | None = None,
        verify: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | Path | None = None,
        cache_limit: int | None = None,
        download: bool | str | Path | None = None,
        read_limit: int | None = None,
    ) -> Self:
        """Load a save as a memory-mapped tensordict.

        Files are mapped, not read: bytes come from the disk when they are used. The
        size of every file is checked against its metadata first. Loading never writes,
        and never creates a class or runs code that a file names.

        Writes into the tensors reach the files. This includes an optimizer's: a model
        that trains on loaded parameters (``load_memmap(path).to_module(model)``)
        overwrites its checkpoint at each step. Pass ``mode="r"`` to keep the files as
        they are.

        Args:
            prefix: the directory or archive; or, in an object store, a URL
                (``"s3://bucket/data"``, ``gs://``, ``az://``, ``https://``,
                ``memory://``) or a store of ``obstore``. From an object store only the
                metadata is read at first, and rows on demand: see
                :class:`~tensordict.containers.remote.RemoteTensorDict`.
            device: the device to copy the tensors to. On the CPU they stay mapped; for
                ``"meta"`` no file of a tensor is opened.
            non_blocking: passed to torch for that copy.
            out: a tensordict whose entries are replaced by the loaded ones. Its plain
                tensors of the saved shape and dtype are kept, and the files are read
                into them.
            robust_key: whether the save's keys are escaped to file names.
            subpath: the nested tensordict to load: a key, or keys joined by ``/``.
            mode: None to write through to files that are writable, ``"r"`` to keep
                writes in this process, ``"r+"`` to require writable files. Writes reach
                an archive with ``"r+"`` only.
            num_threads: the most native threads that map. Default: the cores that this
                process may use, at most 8.
            allow_pickle: whether to load pickled values.
            verify: first read all files and compare them with their checksums. Damage
                raises an error; a file that was modified since the save gives a
                warning.
            storage_options: for a URL, the options of ``obstore``, such as
                ``aws_region``, ``aws_access_key_id``, ``aws_endpoint`` and
                ``allow_http``. Options that are not passed come from the environment.
            cache_dir: for a URL, a local folder that keeps the blocks of 1 MiB that
                were read, for all processes of the machine.
            cache_limit: the most bytes of all blocks in ``cache_dir``. Default: 16 GiB.
            download: for a URL, copy the save to this machine and map the copy. Pass a
                path that does not exist yet, or True for a folder in ``cache_dir`` (or
                else in the folder of temporary files), which is kept.
            read_limit: for a URL, the most bytes that are read without a request for
                rows or a call of ``to_tensordict``. Default: 64 MiB.

        Returns:
            A tensordict of the saved class, unlocked. A class that inherits from
            ``TensorClass`` reads a save of a plain tensordict as its fields. Under a
            ``FakeTensorMode`` the tensors are fake.

        Raises:
            FileNotFoundError: the directory, or a file that its metadata names, is
                missing.
            RuntimeError: a file is damaged (the tensors of ``out`` are then partly
                overwritten) or shorter than its shape needs; or the metadata is
                invalid, of a newer version, or names a class that does not exist.
            ValueError: the metadata is no JSON, ``mode`` is none of the three values,
                or ``subpath`` does not exist.
            KeyError: the metadata names an unknown dtype.
            PermissionError: ``mode`` is ``"r+"`` and a file is not writable.

        Examples:
            >>> import tempfile
            >>> path = tempfile.mkdtemp()
            >>> td = TensorDict({"a": torch.arange(3), "n": {"b": torch.zeros(3)}}, [3])
            >>> _ = td.memmap(path)
            >>> TensorDict.load_memmap(path, subpath="n")
            TensorDict(
                fields={
                    b: MemoryMappedTensor(shape=torch.Size([3]), device=cpu, dtype=torch.float32, is_shared=True)},
                batch_size=torch.Size([3]),
                device=cpu,
                is_shared=False)
            >>> TensorDict.load_memmap(path, device="meta")["a"]
            tensor(..., device='meta', size=(3,), dtype=torch.int64)
        """
        loaded = _layouts.load(
            cls,
            prefix,
            device,
            non_blocking,
            out=out,
            robust_key=robust_key,
            subpath=subpath,
            mode=mode,
            num_threads=num_threads,
            allow_pickle=allow_pickle,
            verify=verify,
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
            download=download,
            read_limit=read_limit,
        )
        return loaded if out is not None else cls._asked_for(loaded)

    @classmethod
    def _asked_for(cls, loaded: CollectionProtocol) -> Any:
        """Return the result of a load by this class: by default what was loaded."""
        return loaded

    @classmethod
    def load(cls, prefix: str | Path, *args: Any, **kwargs: Any) -> Self:
        """Load a save, as :meth:`load_memmap` does."""
        return cls.load_memmap(prefix, *args, **kwargs)

    def load_memmap_(
        self,
        prefix: str | Path,
        robust_key: bool | None = True,
        *,
        allow_pickle: bool | None = None,
        mode: str | None = None,
    ) -> Self:
        """Load a save into this tensordict, replacing its entries.

        Entries that the save lacks are removed. Nested tensordicts that the save
        contains stay the same objects. If loading fails, nothing changes.

        Raises:
            RuntimeError: this tensordict is locked, or a loaded tensor does not have
                its batch size.
        """
        loaded = type(self).load_memmap(
            prefix, robust_key=robust_key, allow_pickle=allow_pickle, mode=mode
        )
        if is_remote(prefix) or is_copied(prefix):
            loaded = loaded.to_tensordict()
        # The new entries are mapped over the files, as those of the published package
        # are; `out=` of :meth:`load_memmap` reads into existing memory instead.
        return load_into(self, loaded)

    def load_(self, prefix: str | Path, *args: Any, **kwargs: Any) -> Self:
        """Load a save into this tensordict. Deprecated: use :meth:`load_memmap_`."""
        warn_caller(
            "TensorDictBase.load_() is deprecated and will be removed in TensorDict "
            "0.17. Use load_memmap_() instead.",
            DeprecationWarning,
        )
        return self.load_memmap_(prefix, *args, **kwargs)

    # Reading the state -----------------------------------------------------------

    @property
    def saved_path(self) -> Path | None:
        """The directory of the save; None if the save is in anonymous shared memory.

        Raises:
            AttributeError: this tensordict was not made by :meth:`memmap` or
                :meth:`memmap_`.
        """
        if self.is_memmap():
            return self._memmap_prefix
        raise AttributeError(
            f"The tensordict has no saved path (memmap={self._is_memmap}, "
            f"path={self._memmap_prefix})."
        )

    def is_memmap(self) -> bool:
        """Return whether :meth:`memmap` or :meth:`memmap_` made this tensordict.

        False after it is unlocked, and for a tensordict that was loaded.
        """
        return self._is_memmap

    # State dicts -----------------------------------------------------------------

    def state_dict(
        self,
        destination: object = None,
        prefix: str = "",
        keep_vars: bool = False,
        flatten: bool = True,
    ) -> OrderedDict[str, Any]:
        """Return the tensors by name, as :meth:`torch.nn.Module.state_dict` does.

        Args:
            destination: a dictionary to add to. Default: a new one.
            prefix: the beginning of every name.
            keep_vars: keep the tensors in the autograd graph. If False they are
                detached; either way they share memory with the entries.
            flatten: join nested keys by dots. If False, the result has nested
                dictionaries.

        Raises:
            KeyError: two keys give the same joined name.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(2), "n": {"b": torch.ones(2)}}, [2])
            >>> list(td.state_dict())
            ['a', 'n.b']
            >>> list(td.state_dict(flatten=False))
            ['a', 'n']
        """
        return _state.state_dict(self, destination, prefix, keep_vars, flatten)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
        from_flatten: bool | None = None,
    ) -> Self:
        """Take the tensors and the batch size of a :meth:`state_dict`.

        Args:
            state_dict: the tensors by name.
            strict: require equal keys.
            assign: make the given tensors the entries. If False, their values are
                written into the existing tensors.
            from_flatten: whether nested keys are joined by dots. Default: the metadata
                of ``state_dict`` decides.

        Raises:
            RuntimeError: the keys differ and ``strict`` is set; or ``assign`` is set
                and this tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(2)}, [2])
            >>> td.load_state_dict({"a": torch.ones(2)})["a"]
            tensor([1., 1.])
        """
        return _state.load_state_dict(self, state_dict, strict, assign, from_flatten)

    def _state_values(
        self, values: Mapping[str, Any], fields: Mapping[str, Any], strict: bool
    ) -> dict[str, Any]:
        """Return one level of a state without its ``fields``, which are no tensors."""
        return _state.checked_values(self, values, strict)

    def _take_field(self, name: str, value: object, assign: bool) -> None:
        """Take a tensorclass's field that is no tensor from its state."""
        _state.take_field(self, name, value, assign)

    # Calls of the engine for dense tensordicts. Other classes override them. ---------

    def _save_plan(self, plan: object, level: int) -> None:
        """Add this tensordict to a level of a plan. See :mod:`tensordict.storage`."""
        plan_dense(self, plan, level)

    def _saved(self, leaves: SavedTensors, directory: Any, inplace: bool) -> Self:
        """Take the tensors over the files. See :mod:`tensordict.storage`."""
        return saved_dense(self, leaves, directory, inplace)

    def _loaded_in(
        self,
        size: torch.Size,
        device: torch.device | None,
        names: list[str | None] | None,
    ) -> Self:
        """Return a loaded entry with what non-tensor data takes from its parent."""
        return self

    def _unlock_saved(self) -> Self:
        """Unlock the result of :meth:`_saved` and detach it from its files."""
        return self.unlock_()

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: object) -> Self:
        """Make a tensordict from a directory. See :mod:`tensordict.storage`."""
        raise NotImplementedError(f"{cls} has no layout of its own")

    def _take_loaded(self, loaded: CollectionProtocol) -> Any:
        """Replace this tensordict's entries by the loaded ones; return the result."""
        return take_loaded_dense(self, loaded)

    def _refuse_in_place(self) -> None:
        """Raise an error if this tensordict cannot become memory-mapped itself."""
