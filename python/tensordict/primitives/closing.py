"""Closing of objects at the end of a ``with`` statement."""

from __future__ import annotations

from typing import Self

__all__ = ["Closing"]


class Closing:
    """An object that a ``with`` statement closes at its end."""

    def close(self) -> None:
        """Close this object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return this object, which is closed at the end of the ``with`` statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close this object, also after an exception."""
        self.close()
