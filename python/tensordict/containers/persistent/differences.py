"""Refuse what a file cannot do, and give ordinary collections elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

from tensordict.containers.persistent.state import PersistentState
from tensordict.primitives.operations import ONLY_VIEWS, REFUSED_BY_VIEWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from tensordict._rust import SavedTensors

__all__ = ["Differences"]

MSG_REFUSED = (
    "Cannot call `{}` on a PersistentTensorDict. Call {}`to_tensordict()` first."
)
MSG_FLATTEN = (
    "Cannot call {} in_place with a PersistentTensorDict. Call it without inplace, or on "
    "what to_tensordict() gives."
)
MSG_CONTENT = (
    "An operation that replaces all tensors in place is not supported on a "
    "PersistentTensorDict; call .to_tensordict() first or use inplace=False."
)
MSG_MEMMAP = (
    "Cannot build a memmap TensorDict in-place from a PersistentTensorDict. Use "
    "`td.memmap()` instead."
)
MSG_SHARE = (
    "Cannot call share_memory_ on a PersistentTensorDict. Call `to_tensordict()` first."
)
MSG_PIN = (
    "Cannot pin memory of a PersistentTensorDict. Call to_tensordict() before making this "
    "call."
)
MSG_MAKE = (
    "Cannot call `{}` on a PersistentTensorDict. Only a memory-mapped TensorDict supports "
    "it."
)


class Differences(PersistentState):
    """Refuse what a file cannot do, and give ordinary collections elsewhere."""

    def unflatten(
        self, dim: int, unflattened_size: Sequence[int], *, inplace: bool = False
    ) -> Any:
        """Split one batch dim into several, in an ordinary collection."""
        if inplace:
            raise NotImplementedError(MSG_CONTENT)
        return self._shown().unflatten(dim, unflattened_size)

    def flatten_keys(
        self,
        separator: str = ".",
        inplace: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> Any:
        """All leaves under keys of one part, in an ordinary collection."""
        if inplace:
            raise ValueError(MSG_FLATTEN.format("flatten_keys"))
        return self._shown().flatten_keys(separator, is_leaf=is_leaf)

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Any:
        """Regroup the entries, in an ordinary collection."""
        if inplace:
            raise ValueError(MSG_FLATTEN.format("unflatten_keys"))
        return self._shown().unflatten_keys(separator)

    def masked_select(self, mask: torch.Tensor, *, inplace: bool = False) -> Any:
        """Read the elements where ``mask`` is true, to an ordinary collection."""
        if inplace:
            raise NotImplementedError(MSG_CONTENT)
        return self._shown().masked_select(mask)

    def where(self, condition: torch.Tensor, other: object, **kwargs: object) -> Any:
        """Choose between this and another collection, in an ordinary, unlocked one."""
        return self._shown().where(condition, other, **kwargs)

    def memmap(self, *args: object, **kwargs: object) -> Any:
        """Save what is there as memory-mapped files, and give an ordinary collection."""
        return self._shown().memmap(*args, **kwargs)

    def memmap_like(self, *args: object, **kwargs: object) -> Any:
        """Make files of zeros of the shapes that are here, as an ordinary collection."""
        return self._sampled().memmap_like(*args, **kwargs)

    def _save_plan(self, plan: object, level: int) -> None:
        # The planned entries are those that are saved.
        self._planned = self._shown()
        self._planned._save_plan(plan, level)

    def _saved(self, leaves: SavedTensors, directory: object, inplace: bool) -> Any:
        planned = self.__dict__.pop("_planned")
        return planned._saved(leaves, directory, False)

    def memmap_(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: the entries are in another file."""
        raise RuntimeError(MSG_MEMMAP)

    def make_memmap(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: the entries are in another file."""
        raise RuntimeError(MSG_MAKE.format("make_memmap"))

    def make_memmap_from_storage(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: the entries are in another file."""
        raise RuntimeError(MSG_MAKE.format("make_memmap_from_storage"))

    def make_memmap_from_tensor(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: the entries are in another file."""
        raise RuntimeError(MSG_MAKE.format("make_memmap_from_tensor"))

    def share_memory_(self) -> NoReturn:
        """Refused: the entries are in a file."""
        raise NotImplementedError(MSG_SHARE)

    def pin_memory(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: the entries are in a file."""
        raise RuntimeError(MSG_PIN)

    def detach_(self) -> Self:
        """No effect: what is in a file has no history."""
        return self

    def is_contiguous(self, *args: object, **kwargs: object) -> bool:
        """False: the entries are not in memory."""
        return False

    def permute(self, *args: object, **kwargs: object) -> Self:
        """Refused: read what is there first."""
        raise RuntimeError(MSG_REFUSED.format("permute", ""))

    def _refuse(self, op: object) -> None:
        if op in REFUSED_BY_VIEWS:
            hint = "`reshape` or " if op in ONLY_VIEWS else ""
            raise RuntimeError(MSG_REFUSED.format(op, hint))
