"""Functions that create tensors over files, and over shared memory without a name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict import _rust
from tensordict.storage.leaves import nested_from_flat, prepare
from tensordict.storage.locations import local
from tensordict.storage.tensors.anonymous import FileHandler

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "absolute",
    "check_target",
    "checked_dtype",
    "file_of",
    "fill",
    "make_zeros",
    "over_handler",
    "parse_arguments",
    "wrap",
    "write",
    "write_nested",
]


def absolute(filename: str | Path) -> str:
    """Return the absolute path of a file as text."""
    return os.path.abspath(os.fspath(local(filename)))


def wrap(
    cls: Any,
    tensor: torch.Tensor,
    filename: str | None,
    handler: FileHandler | None,
) -> Any:
    """Return a tensor as an instance of ``cls`` that holds its file name or its handler."""
    wrapped = tensor.as_subclass(cls)
    if filename is not None:
        wrapped._filename = filename
    if handler is not None:
        wrapped._handler = handler
    return wrapped


def file_of(storage: torch.UntypedStorage) -> str | None:
    """Return the file whose first byte is the first byte of a storage, ``None`` if there is none."""
    address = storage.data_ptr()
    found = _rust.mapping_of(address) if address else None
    if found is not None:
        path, offset, _, _ = found
        return os.path.abspath(path) if offset == 0 else None
    return storage.filename


def check_target(filename: str | Path, existsok: bool) -> str:
    """Return the absolute path of a file to create.

    Raises:
        RuntimeError: the path is a symbolic link, or exists although ``existsok`` is false.
    """
    if os.path.islink(filename):
        raise RuntimeError(
            f"Refusing to write memory-mapped tensor through symlink {filename}."
        )
    if not existsok and os.path.exists(filename):
        raise RuntimeError(f"The file {filename} already exists.")
    return absolute(filename)


def over_handler(
    handler: FileHandler, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor:
    """Return a tensor over shared memory without a name."""
    size = torch.Size(shape)
    num_items = size.numel()
    if num_items == 0:
        return torch.empty(size, dtype=dtype)
    flat = torch.frombuffer(handler.buffer, dtype=dtype, count=num_items)
    return flat.view(size)


def make_zeros(
    cls: Any,
    shape: torch.Size | torch.Tensor,
    dtype: torch.dtype,
    filename: str | Path | None,
    existsok: bool,
    reserve: bool = False,
) -> Any:
    """Create a tensor of zeros. If its file exists, the file keeps its bytes."""
    sizes = (
        [int(shape.prod(1).sum())] if isinstance(shape, torch.Tensor) else list(shape)
    )
    if filename is not None:
        path = check_target(filename, existsok)
        mapped: Any = _rust.create_file(path, str(dtype), sizes)
        if isinstance(shape, torch.Tensor):
            mapped = wrap(cls, nested_from_flat(mapped, shape), path, None)
            mapped._parent_shape = shape
        return mapped
    size = torch.Size(sizes).numel() * dtype.itemsize
    return cls._from_handler(FileHandler(max(1, size), reserve), dtype, shape)


def write(
    cls: type,
    source: torch.Tensor,
    size: torch.Size,
    filename: str | Path | None,
    existsok: bool,
) -> Any:
    """Create a tensor with the values of another, over a file or shared memory."""
    if filename is None:
        mapped = make_zeros(cls, size, source.dtype, None, existsok, reserve=True)
        torch.Tensor.copy_(mapped, source)
        return mapped
    path = check_target(filename, existsok)
    plain = prepare(source)[0]
    return _rust.write_file(path, plain, str(source.dtype), list(size))


def write_nested(
    cls: Any,
    source: torch.Tensor,
    filename: str | Path | None,
    existsok: bool,
) -> Any:
    """Create a nested tensor with the values of another, over a file or shared memory."""
    flat, _, _, _, _ = prepare(source)
    table = source._nested_tensor_size()
    if filename is not None:
        path = check_target(filename, existsok)
        flat = _rust.write_file(path, flat, str(source.dtype), list(flat.shape))
        mapped = wrap(cls, nested_from_flat(flat, table), path, None)
        mapped._parent_shape = table
        return mapped
    handler = FileHandler(max(1, flat.numel() * flat.element_size()), reserve=True)
    over_handler(handler, flat.dtype, flat.shape).copy_(flat)
    return cls._from_handler(handler, flat.dtype, table)


def fill(
    cls: type,
    shape: torch.Size,
    dtype: torch.dtype,
    filename: str | Path | None,
    existsok: bool,
    fill_value: Any,
) -> Any:
    """Create a tensor filled with one value, over a file or shared memory."""
    if filename is None:
        return make_zeros(cls, shape, dtype, None, existsok, True).fill_(fill_value)
    path = check_target(filename, existsok)
    # Writing a repeated block to the file raises an error if the disk is full. Filling a
    # mapping would end the process instead.
    num_items = min(torch.Size(shape).numel(), (1 << 20) // dtype.itemsize)
    block = torch.full((num_items,), fill_value, dtype=dtype)
    return _rust.write_file(path, block, str(dtype), list(shape))


def checked_dtype(dtype: object) -> torch.dtype:
    """Return a dtype; torch's default dtype for None.

    Raises:
        TypeError: ``dtype`` is not a dtype.
    """
    if dtype is None:
        return torch.get_default_dtype()
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, not {type(dtype).__name__}.")
    return dtype


def parse_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the shape, dtype, file name, ``existsok`` and device of a call like torch.empty."""
    kwargs = dict(kwargs)
    shape = kwargs.pop("shape", None)
    if args:
        is_one = len(args) == 1 and not isinstance(args[0], (int, np.integer))
        shape = args[0] if is_one else args
    if shape is None:
        raise TypeError("Could not find the shape argument in the arguments.")
    if isinstance(shape, (int, np.integer)):
        shape = (shape,)
    if not isinstance(shape, torch.Tensor):
        shape = torch.Size(shape)
    device = kwargs.pop("device", None)
    if device is not None and torch.device(device).type != "cpu":
        raise RuntimeError("Only CPU tensors are supported.")
    if not isinstance(shape, torch.Tensor) and any(size < 0 for size in shape):
        raise RuntimeError(
            f"{list(shape)} is not the shape of a tensor: sizes are at least 0."
        )
    dtype = checked_dtype(kwargs.pop("dtype", None))
    filename = kwargs.pop("filename", None)
    existsok = bool(kwargs.pop("existsok", False))
    return shape, dtype, filename, existsok, device
