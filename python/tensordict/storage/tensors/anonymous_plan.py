"""A save without a path: tensors in shared memory without a name."""

from __future__ import annotations

from typing import Any

import torch

from tensordict import _rust
from tensordict.storage.tensors.mapped import MemoryMappedTensor

__all__ = ["save_anonymous"]


def save_anonymous(td: Any, copy_data: bool, inplace: bool) -> Any:
    """Return a collection over shared memory: with the values of ``td``, or zeros."""
    plan = _AnonymousPlan(copy_data)
    td._save_plan(plan, 0)
    return td._saved(_rust.SavedTensors(plan.leaves), None, inplace)


class _AnonymousPlan:
    """A plan without files, for shared memory."""

    has_files = False
    """Whether non-tensor data is written to files. Here it stays as it is."""

    def __init__(self, copy_data: bool) -> None:
        self.copy_data = copy_data
        self.leaves: list[tuple[torch.Tensor, bool]] = []
        """Tensors, and whether each holds the flat values of a nested tensor."""

    def add_entries(
        self, level: int, entries: dict[str, Any]
    ) -> list[tuple[str, int, Any]]:
        others = []
        for key, value in list(entries.items()):
            if isinstance(value, torch.Tensor):
                shared = self._shared(value)
                self.leaves.append((shared, value.is_nested and not shared.is_nested))
            else:
                others.append((key, level, value))
        return others

    def add_file(self, level: int, name: str, content: bytes) -> None:
        """Do nothing: there is no directory."""

    def close_level(self, level: int, *fields: object) -> None:
        """Do nothing: there is no metadata."""

    def close_level_as(self, level: int, text: str) -> None:
        """Do nothing: there is no metadata."""

    def _shared(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return the leaf in shared memory without a name, without a copy if it is there already."""
        if (
            isinstance(leaf, MemoryMappedTensor)
            and leaf._handler is not None
            and self.copy_data
            and not leaf._index_chain
        ):
            return leaf
        source = leaf.detach()
        return MemoryMappedTensor.from_tensor(source, copy_data=self.copy_data)
