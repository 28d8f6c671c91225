"""Loading into memory: files are read in parallel and checked, instead of mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives.checks import inside, is_branch
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.tensors.mapped import MemoryMappedTensor

if TYPE_CHECKING:
    from tensordict.storage.paths import SavedPath

__all__ = ["gets_copies", "read_copies", "read_into"]


def read_into(
    root: SavedPath, loaded: CollectionProtocol, out: object, num_threads: int
) -> None:
    """Read the files of ``loaded`` into the tensors of ``out``.

    A tensor of ``out`` is filled if it is a plain, contiguous CPU tensor of the saved shape
    and dtype. It becomes the entry of ``loaded``. Other entries stay mapped.

    Args:
        root: the opened directory of the save.
        loaded: the collection loaded from the directory.
        out: the collection to fill.
        num_threads: the most threads.

    Raises:
        RuntimeError: a file is damaged. Some tensors of ``out`` are overwritten then.
    """
    reading = _Reading(root, num_threads)
    reading.add(loaded, out, ())
    reading.read()


def read_copies(root: SavedPath, loaded: CollectionProtocol, num_threads: int) -> bool:
    """Read the files of ``loaded`` into new tensors, which become its entries.

    Returns:
        Whether all files were read, and so compared with their checksums.

    Raises:
        RuntimeError: a file is damaged.
    """
    reading = _Reading(root, num_threads)
    reading.add(loaded, None, ())
    reading.read()
    return not reading.has_more


def gets_copies(out: Any) -> bool:
    """Return whether ``out``, or a part of it, copies loaded values to its own memory."""
    return out is not None and any(
        is_branch(part) and not (part._is_dense or _parts(part))
        for part in (out, *_rust.containers(out))
    )


def _parts(td: CollectionProtocol) -> dict[str, Any]:
    """Return the tensordict of a tensorclass or the members of a lazy stack, by name."""
    inner = inside(td)
    if inner is not td:
        return {"": inner}
    members = td.__dict__.get("tensordicts")
    return {str(number): member for number, member in enumerate(members or ())}


class _Reading:
    """The files to read, and the tensors to fill."""

    def __init__(self, root: SavedPath, num_threads: int) -> None:
        self.save: Any = root.save
        self.num_threads = num_threads
        self.wanted: list[tuple[str, str, torch.Tensor]] = []
        self.places: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        # Two keys may share one tensor, which cannot hold the values of both.
        self.taken: set[int] = set()
        self.has_more = False

    def add(self, loaded: CollectionProtocol, out: Any, path: tuple[str, ...]) -> None:
        parts = _parts(loaded)
        if parts:
            targets = dict.fromkeys(parts) if out is None else _parts(out)
            for name, part in parts.items() if targets.keys() == parts.keys() else ():
                self.add(part, targets[name], (*path, name) if name else path)
            return
        if not loaded._is_dense or not (out is None or out._is_dense):
            self.has_more |= not loaded._is_non_tensor
            return
        entries = loaded._tensordict
        for key, value in entries.items():
            present: Any = None if out is None else out._get_entry(key, None)
            if isinstance(value, CollectionProtocol):
                if out is None or isinstance(present, CollectionProtocol):
                    self.add(value, present, (*path, key))
                continue
            if not _is_whole_file(value):
                self.has_more |= value.is_nested or value.numel() > 0
                continue
            if out is None:
                present = torch.empty(value.shape, dtype=value.dtype)
            elif not _can_take(present, value) or present.data_ptr() in self.taken:
                continue
            self.taken.add(present.data_ptr())
            name = repr((*path, key)) if path else repr(key)
            # As bytes, because DLPack does not support every dtype.
            content = present.reshape(-1).view(torch.uint8)
            self.wanted.append((name, value.filename, content))
            self.places.append((entries, key, present))

    def read(self) -> None:
        if self.wanted:
            self.save.read_into(self.wanted, self.num_threads)
        for entries, key, tensor in self.places:
            entries[key] = tensor


def _is_whole_file(value: object) -> bool:
    return (
        type(value) is MemoryMappedTensor
        and value._filename is not None
        and not value._index_chain
        and not value.is_nested
        and value.numel() > 0
    )


def _can_take(tensor: object, value: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.dtype == value.dtype
        and tensor.shape == value.shape
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    )
