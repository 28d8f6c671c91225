"""Established import path: memory-mapped tensors."""

from typing import TYPE_CHECKING, Any

from tensordict._established import established_names
from tensordict.storage.tensors.anonymous import FileHandler as _FileHandler
from tensordict.storage.tensors.mapped import MemoryMappedTensor

MemmapTensor = MemoryMappedTensor
"""The name of the class in early releases."""

__all__ = ["MemmapTensor", "MemoryMappedTensor", "set_transfer_ownership"]


def set_transfer_ownership(memmap: object, value: bool = True) -> None:
    """Do nothing: memory-mapped tensors need no transfer of ownership any more.

    In early releases, the process that owned a memory-mapped tensor deleted its
    temporary file, and this function made a receiver the owner. Today a named file is
    never deleted automatically, and anonymous memory lives until the last process
    unmaps it. The function stays for code that still calls it, such as
    ``td.apply_(set_transfer_ownership)``.

    Args:
        memmap: a leaf of any kind.
        value: ignored.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> td = TensorDict(a=torch.ones(2)).memmap_()
        >>> td.apply_(set_transfer_ownership)["a"]
        MemoryMappedTensor([1., 1.])
    """


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
