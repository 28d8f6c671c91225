"""The fields that type checkers see in every collection with declared keys.

Type checkers take a subclass for a dataclass with three further keyword-only fields:
the batch size, the device and the names. Setting one of them accepts more types than
reading returns, so each is a descriptor. Programs do not use this module at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["BatchSizeField", "DeviceField", "NamesField"]


class BatchSizeField:
    """The batch size."""

    if TYPE_CHECKING:

        def __get__(self, td: object, owner: object = None) -> torch.Size: ...
        def __set__(self, td: object, size: Sequence[int] | int | None) -> None: ...


class DeviceField:
    """The device."""

    if TYPE_CHECKING:

        def __get__(self, td: object, owner: object = None) -> torch.device | None: ...
        def __set__(
            self, td: object, device: torch.device | str | int | None
        ) -> None: ...


class NamesField:
    """The names of the batch dims."""

    if TYPE_CHECKING:

        def __get__(self, td: object, owner: object = None) -> list[str | None]: ...
        def __set__(self, td: object, names: Sequence[str | None] | None) -> None: ...
