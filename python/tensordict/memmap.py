"""Established import path: tensors over files."""

from tensordict.storage.anonymous import FileHandler as _FileHandler
from tensordict.storage.mapped import MemoryMappedTensor

MemmapTensor = MemoryMappedTensor
"""The name of the class in early releases."""

__all__ = ["MemmapTensor", "MemoryMappedTensor"]
