"""Adding tensors to a collection that is memory-mapped, and to its directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import append
from tensordict.storage.leaves import nested_table
from tensordict.storage.tensors.mapped import MemoryMappedTensor

if TYPE_CHECKING:
    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["GrowingOps"]

MSG_NO_FILE = (
    "make_memmap_from_storage got a storage without a file, so the entry {!r} is not "
    "written to the directory of the tensordict: load_memmap and memmap_refresh_ drop "
    "it, or load a stale file left at its path. Starting with TensorDict 0.17, the "
    "default will change to raising a RuntimeError. Use make_memmap_from_tensor to copy "
    "the values into a file."
)


class GrowingOps(CollectionProtocol):
    """Adding tensors to a collection that is memory-mapped, and to its directory."""

    def make_memmap(
        self,
        key: NestedKeyLike,
        shape: torch.Size | torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
        robust_key: bool | None = True,
    ) -> MemoryMappedTensor:
        """Add a tensor of zeros to a memory-mapped collection and to its directory.

        The tensordict stays locked.

        Args:
            key: where to. Nested tensordicts that are missing are made.
            shape: the shape, which begins with the batch size.
            dtype: the dtype. Default: torch's default dtype.
            robust_key: as for :meth:`memmap`.

        Raises:
            RuntimeError: the tensordict is not memory-mapped, the key exists, or the
                shape does not begin with the batch size; the tensordict, or a nested
                one that the key runs through, is none that entries are added to.
            AttributeError: the key is that of no field of a tensorclass, or runs
                through a tensor.

        Examples:
            >>> import tempfile
            >>> path = tempfile.mkdtemp()
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).memmap_(path)
            >>> _ = td.make_memmap("b", (3, 2), dtype=torch.int8)
            >>> TensorDict.load_memmap(path)["b"].shape
            torch.Size([3, 2])
        """
        size = _size_of(shape)
        dtype = dtype or torch.get_default_dtype()

        def make(file: str | None) -> torch.Tensor:
            return MemoryMappedTensor.empty(shape, dtype=dtype, filename=file)

        how = append.Adding("make_memmap", robust_key, table=_table_of(shape))
        return append.add_leaf_file(self, _path(key), size, dtype, make, how)

    def make_memmap_from_tensor(
        self,
        key: NestedKeyLike,
        tensor: torch.Tensor,
        *,
        copy_data: bool = True,
        robust_key: bool | None = True,
    ) -> MemoryMappedTensor:
        """Add a copy of a tensor to a memory-mapped collection and to its directory.

        Args:
            key: where to.
            tensor: what to copy.
            copy_data: whether its values are copied. If not, there are zeros.
            robust_key: as for :meth:`memmap`.

        Raises:
            RuntimeError: as :meth:`make_memmap`.
        """

        def make(file: str | None) -> torch.Tensor:
            return MemoryMappedTensor.from_tensor(
                tensor.detach(),
                filename=file,
                copy_existing=True,
                copy_data=copy_data,
                existsok=True,
            )

        values = tensor.detach() if copy_data else None
        table = nested_table(tensor) if tensor.is_nested else None
        size = tensor.shape if table is None else _size_of(table)
        how = append.Adding("make_memmap_from_tensor", robust_key, values, table=table)
        return append.add_leaf_file(self, _path(key), size, tensor.dtype, make, how)

    def make_memmap_from_storage(
        self,
        key: NestedKeyLike,
        storage: torch.UntypedStorage,
        shape: Any,
        *,
        dtype: torch.dtype | None = None,
        robust_key: bool | None = True,
    ) -> MemoryMappedTensor:
        """Add a tensor over a storage that is mapped from the file of the entry.

        Args:
            key: where to.
            storage: the memory, mapped from the file that the entry is to have. Where a
                save took the place of the one with that file, the values are written.
            shape: the shape.
            dtype: the dtype. Default: torch's default dtype.
            robust_key: as for :meth:`memmap`.

        Raises:
            RuntimeError: the storage is mapped from another file; or as
                :meth:`make_memmap`.
        """
        path = _path(key)
        dtype = dtype or torch.get_default_dtype()
        made = MemoryMappedTensor.from_storage(storage, shape=shape, dtype=dtype)

        def make(file: str | None) -> torch.Tensor:
            if file is None:
                return made
            if made._filename is None and _rust.is_of_replaced_file(
                storage.data_ptr(), file
            ):
                # A save took the place of the one with the file of this memory.
                return MemoryMappedTensor.from_tensor(
                    made, filename=file, existsok=True
                )
            if made._filename is None:
                warn_caller(MSG_NO_FILE.format(path[-1]))
                return made
            return MemoryMappedTensor.from_storage(
                storage, shape=shape, dtype=dtype, filename=file
            )

        how = append.Adding(
            "make_memmap_from_storage",
            robust_key,
            keeps_file=True,
            table=_table_of(shape),
        )
        return append.add_leaf_file(self, path, _size_of(shape), dtype, make, how)

    def memmap_refresh_(self, *, allow_pickle: bool | None = None) -> Self:
        """Open the files of a memory-mapped collection again.

        Entries that others added to its directory appear, those that were removed go.
        Nested tensordicts keep their identity. Batch sizes and names that were set
        since the save are kept, and written to the metadata.

        Raises:
            RuntimeError: the tensordict is not memory-mapped, or has no directory; a
                tensor that was added does not have the batch size.

        Examples:
            >>> import tempfile
            >>> path = tempfile.mkdtemp()
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).memmap_(path)
            >>> other = TensorDict.load_memmap(path).memmap_()
            >>> _ = other.make_memmap("b", (3, 2))
            >>> td.names = ["time"]
            >>> list(td.memmap_refresh_().keys())
            ['a', 'b']
            >>> TensorDict.load_memmap(path).names
            ['time']
        """
        return append.refresh(self, allow_pickle)

    def _level_to_grow(self, key: str, method: str) -> Self:
        """The dense collection that takes a new entry.

        Args:
            key: the entry.
            method: what adds it, for the message.

        Raises:
            RuntimeError: this tensordict is none that entries are added to.
        """
        if self._is_dense:
            return self
        raise RuntimeError(append.MSG_CANNOT.format(method, type(self).__name__))

    def _shape_fields(self) -> dict[str, str | None]:
        """Describe the shape for the metadata of the directory, as JSON."""
        return append.shape_fields_dense(self)


def _path(key: NestedKeyLike) -> tuple[str, ...]:
    from tensordict._rust import unravel_key_to_tuple

    path: tuple[str, ...] = unravel_key_to_tuple(key)
    if not path:
        raise RuntimeError(f"key should be a Sequence<NestedKey>, got {key!r}.")
    return path


def _table_of(shape: object) -> torch.Tensor | None:
    """The table of sizes of a nested tensor, where a shape is one."""
    if not isinstance(shape, torch.Tensor) or shape.ndim < 2:
        return None
    return shape.to("cpu", torch.int64)


def _size_of(shape: Any) -> torch.Size:
    """A shape as a size; for the table of sizes of a nested tensor, with -1 in it."""
    if not isinstance(shape, torch.Tensor):
        return torch.Size(shape)
    if shape.ndim < 2:
        return torch.Size(shape)
    is_even = (shape == shape[:1]).all(0)
    sizes = [int(n) if even else -1 for n, even in zip(shape[0], is_even, strict=True)]
    return torch.Size([len(shape), *sizes])
