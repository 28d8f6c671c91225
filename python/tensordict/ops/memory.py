"""Shared memory."""

from __future__ import annotations

from typing import Any, Self

from tensordict import _rust
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.tensors import arena

__all__ = ["MemoryOps"]

MSG_EXCLUSIVE = (
    "memmap and shared memory are mutually exclusive features: this tensordict is "
    "memory-mapped already, which other processes can read as it is."
)


class MemoryOps(CollectionProtocol):
    """Shared memory."""

    def share_memory_(self) -> Self:
        """Move every leaf into shared memory, in place, and lock this tensordict.

        Processes that receive the tensordict use the same memory. All leaves lie in one
        block of shared memory, which needs one file descriptor; exceptions are leaves
        of 256 MiB and more, and leaves whose memory other tensors use. Leaves stay the
        same objects. Unlocking ends the shared state, since entries may then be
        replaced.

        Non-tensor data is shared, too: :meth:`update_`, :meth:`set_` and assignment at
        an index change it in all processes. A change inside a Python object stays in
        this process.

        Raises:
            RuntimeError: the tensordict is memory-mapped.
        """
        if self.is_memmap():
            raise RuntimeError(MSG_EXCLUSIVE)
        if self.is_shared():
            return self
        arena.share(_rust.leaves(self))
        self._share_values()
        for collection in _rust.containers(self):
            collection._is_shared = True
        return self.lock_()

    def _share_values(self) -> None:
        """Make changes of non-tensor data visible to the receiving processes."""
        columns: list[Any] = []
        for collection in _rust.containers(self):
            if collection._is_non_tensor:
                columns += collection._columns()
        if columns:
            columns[0]._share_all(columns)

    def is_shared(self) -> bool:
        """Return whether all leaves are in shared memory or on a CUDA device."""
        device = self.device
        if device is not None and device.type != "cpu":
            return device.type == "cuda"
        return self._is_shared
