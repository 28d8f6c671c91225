"""Locks, and writing back at the end of a with block."""

from __future__ import annotations

import weakref
from typing import Any, Self

from tensordict import _rust
from tensordict.protocol import CollectionProtocol

__all__ = ["LockingOps"]


class LockingOps(CollectionProtocol):
    """Locks, and writing back at the end of a with block.

    A locked container takes no new entries and loses none; its tensors can still be
    written in place. All that it holds is locked with it, and can be unlocked only
    through it while it lives.
    """

    _last_op_queue: list[Any] | None = None

    # Locks -----------------------------------------------------------------------

    @property
    def is_locked(self) -> bool:
        """Whether entries can neither be added nor removed nor replaced."""
        return self._is_locked

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        if value:
            self.lock_()
        else:
            self.unlock_()

    def lock_(self) -> Self:
        """Lock this container and all that it holds.

        In a ``with`` statement it is unlocked again at the end.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).lock_()
            >>> td["b"] = torch.ones(3)
            Traceback (most recent call last):
                ...
            RuntimeError: Cannot modify locked TensorDict. For in-place ...
            >>> td["a"].add_(1)
            tensor([1., 1., 1.])
        """
        if self.is_locked:
            return self
        _rust.lock_tree(self)
        return self._remember(self, "lock_", (), {})

    def unlock_(self) -> Self:
        """Unlock this container and all that it holds.

        In a ``with`` statement it is locked again at the end.

        Raises:
            RuntimeError: it, or something in it, is held by another locked container.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).lock_()
            >>> with td.unlock_():
            ...     td["b"] = torch.ones(3)
            >>> td.is_locked
            True
        """
        if not self.is_locked:
            return self
        _rust.unlock_tree(self)
        return self._remember(self, "unlock_", (), {})

    # Writing back ----------------------------------------------------------------

    def _remember(
        self, result: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Note on ``result`` that it is ``self.name(*args, **kwargs)``; return it."""
        result._last_op = (name, args, kwargs, weakref.ref(self))
        return result
