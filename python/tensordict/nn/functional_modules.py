"""Established import path: keeping collections out of the pytree registry."""

from __future__ import annotations

from tensordict._pytree import PYTREE_REGISTERED_LAZY_TDS, PYTREE_REGISTERED_TDS
from tensordict.interop import pytree

__all__ = ["PYTREE_REGISTERED_LAZY_TDS", "PYTREE_REGISTERED_TDS"]


class _exclude_td_from_pytree:  # noqa: N801 - a name that clients use
    """Collections are leaves of a pytree in a ``with`` block, or from :meth:`set` on."""

    def __enter__(self) -> None:
        self.set()

    def __exit__(self, *exception: object) -> None:
        self.unset()

    def set(self) -> None:
        """Take collections out of the registry."""
        pytree.exclude_from_pytree(True)

    def unset(self) -> None:
        """Put them back."""
        pytree.exclude_from_pytree(False)
