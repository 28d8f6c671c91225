"""Closing things at the end of a block."""

from __future__ import annotations

from typing import Self

__all__ = ["Closing"]


class Closing:
    """An object that is closed at the end of a block."""

    def close(self) -> None:
        """Close this."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return this, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close this, also after an exception."""
        self.close()
