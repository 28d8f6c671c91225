"""Established import path: tensors over files."""

from typing import TYPE_CHECKING, Any

from tensordict._established import established_names
from tensordict.storage.tensors.anonymous import FileHandler as _FileHandler
from tensordict.storage.tensors.mapped import MemoryMappedTensor

MemmapTensor = MemoryMappedTensor
"""The name of the class in early releases."""

__all__ = ["MemmapTensor", "MemoryMappedTensor", "set_transfer_ownership"]


def set_transfer_ownership(memmap: object, value: bool = True) -> None:
    """Accept what early releases asked for: nothing has to be transferred any more.

    There a temporary file was deleted by the process that owned the tensor, and this
    said whether a process that received the tensor owned it from then on. Here a file
    with a name is never deleted, and memory without a name lives until the last process
    that maps it has let it go. So it can stay where it is, in ``td.apply_`` too.

    Args:
        memmap: a leaf of any kind.
        value: whether the receiver was to own the file.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> td = TensorDict(a=torch.ones(2)).memmap_()
        >>> td.apply_(set_transfer_ownership)["a"]
        MemoryMappedTensor([1., 1.])
    """


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
