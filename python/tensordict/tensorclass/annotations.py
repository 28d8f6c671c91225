"""List what checkers take for fields in every collection whose keys are declared.

To them a subclass is a dataclass that has three more fields, which are only given by
name: the batch size, the device and the names. What is given for one is of more types
than what is read, so each is a descriptor. Nothing here is used when programs run.
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
