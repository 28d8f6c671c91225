"""Saving to files and loading from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import layouts as _layouts
from tensordict.storage import state as _state
from tensordict.storage.layouts.directory import plan_dense, saved_dense
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

    A save is a directory: a file of raw bytes per tensor, a directory per nested
    collection, and a ``meta.json`` in each. tensordict 0.15 reads
    and writes the same.
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
        """Save to a directory and return a new collection over its files.

        The save appears in one step where ``prefix`` is absent, empty or wholly a save:
        a process that is killed leaves the old data or the new, never a mixture.
        Tensors that are mapped from ``prefix`` already are kept and not written again.
        Peak memory: nothing beyond this tensordict, but for tensors with gaps (each
        laid out once) and those of other devices.

        Args:
            prefix: the directory, or the URL of a place in an object store
                (``"s3://bucket/data"``): see the guide on object stores. Default: where
                this tensordict was saved before, or shared memory without a name.
            copy_existing: whether tensors that are mapped from other files are copied.
            num_threads: the most native threads to write with. Default: the cores that
                this process may use, at most 8.
            return_early: with ``num_threads`` above 1, return a future at once, whose
                ``result()`` is the tensordict, with ``done()``, ``cancel()`` and
                ``progress()``. Saved are the entries at the time of the call; their
                values must not change in place before it is done.
            share_non_tensor: whether the processes that the result is sent to see
                each other's changes of non-tensor values: those by :meth:`update_`,
                :meth:`set_` and assignment at an index.
            existsok: whether files that exist may be replaced.
            robust_key: whether keys are escaped to file names. Without, a key that is
                no file name is an error.
            archive: whether one file is written, an archive, and no directory. Default:
                whether ``prefix`` ends with ``.tdz``.
            compression: how the tensors of an archive are compressed: ``"stored"``
                (default: not at all, so that they can be mapped), ``"deflate"``,
                ``"bzip2"`` or ``"lzma"``.
            atomic: False to write over the files in place, as tensordict 0.15
                does: readers see the change arrive, and a kill leaves a mixture.
                Default: the save appears in one step.
            durable: whether the save is on the disk when this returns, and survives a
                power cut.
            pbar: whether a progress bar is shown.
            checks: whether checksums are kept, to tell damage later. See
                :func:`tensordict.storage.verify`.
            ragged: ``"columns"`` to save rows that differ in shape as a few files a key,
                values and shapes, and texts as one column of bytes: see
                :class:`~tensordict.data.DatasetWriter`. What is loaded is a lazy stack
                whose members are made when they are asked for. Default: a lazy stack
                gets a directory for each member.
            storage_options: where ``prefix`` is a URL of an object store, the options of
                ``obstore``: ``{"aws_region": "eu-central-1"}``. What is not there comes
                from the environment.

        Returns:
            A locked collection on the CPU, whose tensors are
            :class:`~tensordict.MemoryMappedTensor` over the files. For an archive a
            plain collection over its mapping, which keeps stores in this process.

        Raises:
            RuntimeError: a tensor is mapped from another file and ``copy_existing`` is
                not set; a file exists and ``existsok`` is not set; a key cannot be
                kept by the format; this tensordict is in shared memory.
            OSError: the files cannot be written.
            ValueError: ``atomic`` without a directory.

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
        """Save to a directory and let this tensordict be the one over its files.

        As :meth:`memmap`, but the tensors of this tensordict are replaced by those over
        the files, it is moved to the CPU and locked. Nested tensordicts keep their
        identity. If saving fails, nothing changes.

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
        """Make a collection over files of zeros, of this one's shapes and dtypes.

        The files take no space until they are stored to, so this is how a dataset is
        made that is filled row by row. It appears in one step, in the place of a save
        that is there: who has that open keeps it as it was. To go on filling a dataset,
        load it. The tensors of this tensordict are not read: they may be on the meta
        device or expanded.

        Args:
            prefix: the directory. Default: shared memory without a name.
            copy_existing: ignored.
            existsok: whether files may exist.
            num_threads: ignored, but for ``return_early``.
            return_early: as for :meth:`memmap`.
            share_non_tensor: as for :meth:`memmap`.
            robust_key: as for :meth:`memmap`.
            archive: as for :meth:`memmap`, and for a ``prefix`` that ends with ``.tdz``:
                an archive of zeros is written. What is stored to the tensors of the
                result reaches it, but they are plain tensors, and the result is not
                locked and takes no further files.
            preallocate: whether the space of the files is set aside now. If not, a store
                to a full disk is a bus error, which ends the process.

        Raises:
            OSError: with ``preallocate``, there is not enough space.
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
        """Save to a directory. As :meth:`memmap`; :meth:`load` reads it.

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
        """Load a save: a collection over its files.

        Files are mapped and not read: bytes come from the disk when they are used. Every
        file is compared with its metadata first. Loading never writes, and never makes
        a class or runs code that a file names.

        Stores into the tensors reach the files, those of an optimizer included: a model
        that is trained with parameters that were loaded (``load_memmap(path)
        .to_module(model)``) writes its checkpoint anew at each step. Load with
        ``mode="r"`` what should stay as it is on the disk.

        Args:
            prefix: the directory, or the archive; or what is in an object store: a URL
                (``"s3://bucket/data"``, ``gs://``, ``az://``, ``https://``,
                ``memory://``) or a store of ``obstore``. Of that the metadata is read, and
                rows when they are asked for: see
                :class:`~tensordict.containers.remote.RemoteTensorDict`.
            device: where to copy the tensors. On the CPU they stay mapped; for
                ``"meta"`` no file of a tensor is opened.
            non_blocking: how they are copied.
            out: a collection that takes the loaded entries in place of its own. Its
                tensors that are plain memory of the saved shape and dtype are kept, and
                the files are read into them.
            robust_key: whether keys were escaped to file names.
            subpath: the nested tensordict to load: a key, or keys joined by ``/``.
            mode: None to share stores with files that are writable, ``"r"`` to keep
                stores in this process, ``"r+"`` to require writable files. Stores to
                an archive are shared with ``"r+"`` only.
            num_threads: the most native threads to map with. Default: the cores that
                this process may use, at most 8.
            allow_pickle: whether values that were pickled are loaded.
            verify: whether all files are first read and compared with checksums:
                damage is an error, a file that was modified since the save a warning.
            storage_options: for a URL, the keys of ``obstore``, such as ``aws_region``,
                ``aws_access_key_id``, ``aws_endpoint`` and ``allow_http``. What is not
                given is taken from the environment.
            cache_dir: for a URL, a folder on a local disk where blocks of 1 MiB stay that
                were read, for all processes of the machine.
            cache_limit: the most bytes of all blocks there. Default: 16 GiB.
            download: for a URL, whether to copy the save to this machine and map the copy:
                a path that is not there yet, or True for a folder in ``cache_dir`` or the
                folder of temporary files, which stays there.
            read_limit: for a URL, the most bytes that are read without being asked for as
                rows or by ``to_tensordict``. Default: 64 MiB.

        Returns:
            A collection of the class that was saved, not locked. A tensorclass that
            inherits from ``TensorClass`` takes a plain collection that was saved as its
            fields. Under a ``FakeTensorMode`` the tensors are fake.

        Raises:
            FileNotFoundError: the directory, or a file that it should have, is missing.
            RuntimeError: a file that is read is damaged (the tensors of ``out`` are then
                written to in part); one is shorter than its shape needs, the metadata makes
                no sense, is of a newer version, or names a class that is not there.
            ValueError: the metadata is no JSON; another ``mode``; no such ``subpath``.
            KeyError: an unknown dtype.
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
        """Return what a load by this class gives of a save: what was saved."""
        return loaded

    @classmethod
    def load(cls, prefix: str | Path, *args: Any, **kwargs: Any) -> Self:
        """Load what :meth:`save` wrote. As :meth:`load_memmap`."""
        return cls.load_memmap(prefix, *args, **kwargs)

    def load_memmap_(
        self,
        prefix: str | Path,
        robust_key: bool | None = True,
        *,
        allow_pickle: bool | None = None,
        mode: str | None = None,
    ) -> Self:
        """Load a save into this tensordict, whose entries are replaced.

        Entries that the save does not have are removed. Nested tensordicts that it has
        keep their identity. If loading fails, nothing changes.

        Raises:
            RuntimeError: this tensordict is locked, or a loaded tensor does not have
                its batch size.
        """
        loaded = type(self).load_memmap(
            prefix, robust_key=robust_key, allow_pickle=allow_pickle, mode=mode
        )
        if is_remote(prefix):
            loaded = loaded.to_tensordict()
        # The entries are those over the files, as published; `out=` of
        # :meth:`load_memmap` reads into the memory that is there.
        return load_into(self, loaded)

    def load_(self, prefix: str | Path, *args: Any, **kwargs: Any) -> Self:
        """Load a save into this tensordict. Deprecated: :meth:`load_memmap_`."""
        warn_caller(
            "TensorDictBase.load_() is deprecated and will be removed in TensorDict "
            "0.17. Use load_memmap_() instead.",
            DeprecationWarning,
        )
        return self.load_memmap_(prefix, *args, **kwargs)

    # Reading the state -----------------------------------------------------------

    @property
    def saved_path(self) -> Path | None:
        """The directory of a memory-mapped collection; None for one without a name.

        Raises:
            AttributeError: it is not memory-mapped.
        """
        if self.is_memmap():
            return self._memmap_prefix
        raise AttributeError(
            f"The tensordict has no saved path (memmap={self._is_memmap}, "
            f"path={self._memmap_prefix})."
        )

    def is_memmap(self) -> bool:
        """Return whether this tensordict was made by :meth:`memmap` or :meth:`memmap_`.

        It is not once it was unlocked, nor when it was loaded.
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
        """The tensors by name, as :meth:`torch.nn.Module.state_dict` has them.

        Args:
            destination: a dictionary to add to. Default: a new one.
            prefix: what the names begin with.
            keep_vars: whether the tensors stay in the autograd graph. If not they are
                detached, and share their memory.
            flatten: whether nested keys are joined by dots. If not there are nested
                dictionaries.

        Raises:
            KeyError: two keys have one name when joined.

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
        """Take the tensors of a :meth:`state_dict`, and its batch size.

        Args:
            state_dict: the tensors by name.
            strict: whether the keys must be the same.
            assign: whether the tensors become the entries. If not, their values are
                written into the tensors that are there.
            from_flatten: whether nested keys are joined by dots. Default: as the
                metadata of ``state_dict`` says.

        Raises:
            RuntimeError: the keys differ and ``strict`` is set; ``assign`` is set and
                this tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(2)}, [2])
            >>> td.load_state_dict({"a": torch.ones(2)})["a"]
            tensor([1., 1.])
        """
        return _state.load_state_dict(self, state_dict, strict, assign, from_flatten)

    def _state_values(
        self, values: Mapping[str, Any], fields: Mapping[str, Any], strict: bool
    ) -> dict[str, Any]:
        """A level of a state without what is not loaded; ``fields`` are no tensors."""
        return _state.checked_values(self, values, strict)

    def _take_field(self, name: str, value: object, assign: bool) -> None:
        """Take a field that holds no tensor from the state of a tensorclass."""
        _state.take_field(self, name, value, assign)

    # Calls of the engine: dense collections; others override ------------------------

    def _save_plan(self, plan: object, level: int) -> None:
        """Add this tensordict to a level of a plan. See :mod:`tensordict.storage`."""
        plan_dense(self, plan, level)

    def _saved(self, leaves: SavedTensors, directory: Any, inplace: bool) -> Self:
        """Take the tensors over the files. See :mod:`tensordict.storage`."""
        return saved_dense(self, leaves, directory, inplace)

    def _unlock_saved(self) -> Self:
        """Make what :meth:`_saved` gave an ordinary collection, not tied to files."""
        return self.unlock_()

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: object) -> Self:
        """Make a collection from a directory. See :mod:`tensordict.storage`."""
        raise NotImplementedError(f"{cls} has no layout of its own")

    def _take_loaded(self, loaded: CollectionProtocol) -> Any:
        """Take what was loaded in the place of this tensordict: what then stands there."""
        return take_loaded_dense(self, loaded)

    def _refuse_in_place(self) -> None:
        """Raise where this tensordict cannot become memory-mapped itself."""
