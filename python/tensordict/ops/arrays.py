"""HDF5 files and Zarr stores: written from any tensordict, opened as tensordicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.primitives import classes
from tensordict.primitives.checks import is_tensorclass
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import torch

    from tensordict.containers.collection import TensorDictBase
    from tensordict.containers.persistent.collection import PersistentTensorDict

__all__ = ["ArrayOps", "from_h5", "from_zarr"]

MSG_TWO_SIZES = "Conflicting batch sizes in {}: batch_size and auto_batch_size cannot be both specified."
MSG_IGNORED = (
    "{} ignores batch_dims={} without auto_batch_size=True. Starting with TensorDict 0.17, "
    "the default will change to turning auto_batch_size on when batch_dims is given, as "
    "from_dict does. {}"
)
HINT_AUTO = (
    "Pass auto_batch_size=True to get that result now, or drop batch_dims to keep today's "
    "result."
)
HINT_DROP = "Drop batch_dims to keep today's result."


class ArrayOps(CollectionProtocol):
    """HDF5 files and Zarr stores."""

    def to_h5(
        self, filename: str | os.PathLike[str], **kwargs: Any
    ) -> PersistentTensorDict:
        """Write this tensordict to a new HDF5 file, and return the opened file.

        Each leaf becomes a dataset and each nested tensordict a group; attributes keep
        the batch size and the names. An existing file is replaced once the new one is
        complete; if the call fails, it stays as it was. Needs ``h5py``.

        Args:
            filename: the path of the file.
            **kwargs: options of the datasets, as for :meth:`h5py.Group.create_dataset`.
                ``chunks`` gives the sizes of the leading dimensions.

        Returns:
            A :class:`PersistentTensorDict`, open for reading and writing.

        Raises:
            TypeError: HDF5 lacks the dtype or type of an entry.
            ValueError: a key cannot be the name of a dataset.

        Examples:
            >>> import os, tempfile
            >>> td = TensorDict(a=torch.zeros(100), n={"b": torch.ones(100, 3)}, batch_size=[100])
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     path = os.path.join(directory, "data.h5")
            ...     with td.to_h5(path, compression="gzip") as written:
            ...         print(written["n", "b"].shape, written[10:20]["a"].shape)
            torch.Size([100, 3]) torch.Size([10])
        """
        return classes.PersistentTensorDict.from_dict(self, filename, **kwargs)

    def to_zarr(
        self,
        filename: str | os.PathLike[str],
        *,
        allow_pickle: bool | None = None,
        **kwargs: Any,
    ) -> PersistentTensorDict:
        """Write this tensordict to a new Zarr store, and return the opened store.

        Each leaf becomes an array and each nested tensordict a group; attributes keep
        the batch size and the names. An existing store is replaced once the new one is
        complete. Needs ``zarr`` 3.1.1 or newer.

        Args:
            filename: the path of the store, a directory, or a ``zarr.abc.store.Store``.
            allow_pickle: whether the result may read pickled values. Default: True,
                since this call wrote them.
            **kwargs: options of the arrays, as for :meth:`zarr.Group.create_array`.
                ``chunks`` gives the sizes of the leading dimensions. Default: one
                uncompressed chunk.

        Returns:
            A :class:`PersistentTensorDict`, open for reading and writing.

        Raises:
            FileExistsError: ``filename`` exists and is no Zarr store.
            TypeError: Zarr lacks the dtype of an entry.
            ValueError: a key cannot be the name of an array.

        Examples:
            >>> import os, tempfile
            >>> td = TensorDict(a=torch.zeros(100), n={"b": torch.ones(100, 3)}, batch_size=[100])
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     path = os.path.join(directory, "data.zarr")
            ...     written = td.to_zarr(path, chunks=(25,))
            ...     print(written["n", "b"].shape, written[10:20]["a"].shape)
            torch.Size([100, 3]) torch.Size([10])
        """
        return classes.PersistentTensorDict.from_dict(
            self, filename, backend="zarr", allow_pickle=allow_pickle, **kwargs
        )

    @classmethod
    def from_h5(
        cls,
        filename: str | os.PathLike[str],
        *,
        mode: str = "r",
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        batch_size: Sequence[int] | torch.Size | None = None,
        non_tensor_as_stack: bool = False,
    ) -> Any:
        """Open an HDF5 file: see :func:`tensordict.from_h5`.

        Called on a tensorclass, it reads the class's fields from the file.
        """
        made = _opened(
            "from_h5", filename, "h5", mode, auto_batch_size, batch_dims, batch_size,
            non_tensor_as_stack, None,
        )  # fmt: skip
        return _as_class(cls, made)

    @classmethod
    def from_zarr(
        cls,
        filename: str | os.PathLike[str],
        *,
        mode: str = "r",
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        batch_size: Sequence[int] | torch.Size | None = None,
        non_tensor_as_stack: bool = False,
        allow_pickle: bool | None = None,
    ) -> Any:
        """Open a Zarr store: see :func:`tensordict.from_zarr`.

        Called on a tensorclass, it reads the class's fields from the store.
        """
        made = _opened(
            "from_zarr", filename, "zarr", mode, auto_batch_size, batch_dims, batch_size,
            non_tensor_as_stack, allow_pickle,
        )  # fmt: skip
        return _as_class(cls, made)


def from_h5(
    h5_file: Any,
    *,
    mode: str = "r",
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    batch_size: Sequence[int] | torch.Size | None = None,
    non_tensor_as_stack: bool = False,
) -> TensorDictBase:
    """Open an HDF5 file as a tensordict whose entries are read on demand.

    Args:
        h5_file: the path of the file.
        mode: the mode of :class:`h5py.File`: ``"r"`` reads, ``"r+"`` changes the file.
        auto_batch_size: use the leading dimensions that all arrays share as the batch
            size, also in nested groups.
        batch_dims: the most dimensions that ``auto_batch_size`` uses.
        batch_size: the batch size. Default: the batch size that the file records, else
            the leading dimensions that all arrays share.
        non_tensor_as_stack: read an array of strings from another writer as one value
            for each row.

    Returns:
        A :class:`PersistentTensorDict`.

    Raises:
        OSError: the file is missing, no HDF5 file, truncated, or open elsewhere.
        TypeError: both ``batch_size`` and ``auto_batch_size`` were passed.
        ValueError: an array does not have the batch size as its leading dimensions.

    Examples:
        >>> import os, tempfile
        >>> from tensordict import from_h5
        >>> td = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = os.path.join(directory, "data.h5")
        ...     td.to_h5(path).close()
        ...     with from_h5(path) as data:
        ...         print(data.batch_size, data[0]["a"])
        torch.Size([3]) tensor([0., 0.])
    """
    return classes.TensorDict.from_h5(
        h5_file,
        mode=mode,
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims,
        batch_size=batch_size,
        non_tensor_as_stack=non_tensor_as_stack,
    )


def from_zarr(
    zarr_file: Any,
    *,
    mode: str = "r",
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    batch_size: Sequence[int] | torch.Size | None = None,
    non_tensor_as_stack: bool = False,
    allow_pickle: bool | None = None,
) -> TensorDictBase:
    """Open a Zarr store as a tensordict whose entries are read on demand.

    Args:
        zarr_file: the path of the store, or a ``zarr.abc.store.Store``.
        mode: the mode of :func:`zarr.open_group`: ``"r"`` reads, ``"r+"`` changes the
            store.
        auto_batch_size: see :func:`from_h5`.
        batch_dims: see :func:`from_h5`.
        batch_size: see :func:`from_h5`.
        non_tensor_as_stack: see :func:`from_h5`.
        allow_pickle: whether to read pickled values. A pickle can run any code: pass
            True only for stores that you trust. Default: read them, with a warning.

    Returns:
        A :class:`PersistentTensorDict`.

    Raises:
        OSError: the store is missing, or is no Zarr store.
        TypeError: both ``batch_size`` and ``auto_batch_size`` were passed.
        ValueError: an array does not have the batch size as its leading dimensions.

    Examples:
        >>> import os, tempfile
        >>> from tensordict import from_zarr
        >>> td = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = os.path.join(directory, "data.zarr")
        ...     td.to_zarr(path).close()
        ...     print(from_zarr(path)[0]["a"])
        tensor([0., 0.])
    """
    return classes.TensorDict.from_zarr(
        zarr_file,
        mode=mode,
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims,
        batch_size=batch_size,
        non_tensor_as_stack=non_tensor_as_stack,
        allow_pickle=allow_pickle,
    )


def _as_class(cls: Any, made: object) -> Any:
    return cls.from_tensordict(made) if is_tensorclass(cls) else made


def _opened(
    name: str,
    filename: object,
    backend: str,
    mode: str,
    is_auto: bool,
    dims: int | None,
    size: Any,
    as_stack: bool,
    allow_pickle: bool | None,
) -> PersistentTensorDict:
    if size is not None and is_auto:
        raise TypeError(MSG_TWO_SIZES.format(name))
    result = classes.PersistentTensorDict._from_file(
        filename, backend, mode, size, dims, is_auto, as_stack, allow_pickle
    )
    if (
        dims is not None
        and not is_auto
        and (size is not None or result.batch_dims > dims)
    ):
        advice = HINT_AUTO if size is None else HINT_DROP
        try:
            warn_caller(MSG_IGNORED.format(name, dims, advice))
        except FutureWarning:
            result.close()
            raise
    return result
