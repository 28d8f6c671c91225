"""Adding of tensors to a memory-mapped tensordict and its directory."""

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
    """Adding of tensors to a memory-mapped tensordict and its directory."""

    def make_memmap(
        self,
        key: NestedKeyLike,
        shape: torch.Size | torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
        robust_key: bool | None = True,
    ) -> MemoryMappedTensor:
        """Add a tensor of zeros to a memory-mapped tensordict and its directory.

        The tensordict stays locked.

        Args:
            key: a nested key. Missing levels are created.
            shape: the shape of the tensor; it starts with the batch size.
            dtype: the dtype. Default: torch's default dtype.
            robust_key: as for :meth:`memmap`.

        Raises:
            RuntimeError: the tensordict is not memory-mapped, the key exists, or the
                shape does not start with the batch size; or the class of the
                tensordict, or of a nested one on the way, takes no new entries.
            AttributeError: a tensorclass has no field of this name, or the key leads
                below a tensor.

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
        """Add a copy of a tensor to a memory-mapped tensordict and its directory.

        Args:
            key: a nested key. Missing levels are created.
            tensor: the tensor to copy.
            copy_data: copy the values. If False, the new tensor contains zeros.
            robust_key: as for :meth:`memmap`.

        Raises:
            RuntimeError: as for :meth:`make_memmap`.
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
        """Add a tensor over a storage that is mapped from the entry's file.

        Args:
            key: a nested key. Missing levels are created.
            storage: the memory, mapped from the file of the entry. If a later save has
                replaced that file, the values are written to the new file.
            shape: the shape of the tensor.
            dtype: the dtype. Default: torch's default dtype.
            robust_key: as for :meth:`memmap`.

        Raises:
            RuntimeError: the storage is mapped from another file; or as for
                :meth:`make_memmap`.
        """
        path = _path(key)
        dtype = dtype or torch.get_default_dtype()
        mapped = MemoryMappedTensor.from_storage(storage, shape=shape, dtype=dtype)

        def make(file: str | None) -> torch.Tensor:
            if file is None:
                return mapped
            if mapped._filename is None and _rust.is_of_replaced_file(
                storage.data_ptr(), file
            ):
                # A later save replaced the file that this memory is mapped from.
                return MemoryMappedTensor.from_tensor(
                    mapped, filename=file, existsok=True
                )
            if mapped._filename is None:
                warn_caller(MSG_NO_FILE.format(path[-1]))
                return mapped
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
        """Open the files of a memory-mapped tensordict again.

        Entries that other processes added to its directory appear, and removed entries
        disappear. Nested tensordicts stay the same objects. Batch sizes and names that
        were set after the save are kept and written to the metadata.

        Raises:
            RuntimeError: the tensordict is not memory-mapped or has no directory; or an
                added tensor does not have the batch size as its leading dimensions.

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
        """Return the dense tensordict that takes a new entry.

        Args:
            key: the key of the entry.
            method: the name of the public method, for the message.

        Raises:
            RuntimeError: the class of this tensordict takes no new entries.
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
    """Return the table of sizes of a nested tensor if ``shape`` is one, else None."""
    if not isinstance(shape, torch.Tensor) or shape.ndim < 2:
        return None
    return shape.to("cpu", torch.int64)


def _size_of(shape: Any) -> torch.Size:
    """Convert a shape to a size; a table of sizes gives -1 in its ragged dims."""
    if not isinstance(shape, torch.Tensor):
        return torch.Size(shape)
    if shape.ndim < 2:
        return torch.Size(shape)
    is_even = (shape == shape[:1]).all(0)
    sizes = [int(n) if even else -1 for n, even in zip(shape[0], is_even, strict=True)]
    return torch.Size([len(shape), *sizes])
