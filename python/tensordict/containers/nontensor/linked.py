"""The list that reading a stack of values by key gives: its changes write through."""

from __future__ import annotations

from typing import Any, Self

__all__ = ["LinkedList"]


class LinkedList(list[Any]):
    """The values of a :class:`NonTensorStack` as a list that writes to the stack.

    Examples:
        >>> td = TensorDict(people=["ada", "alan"], batch_size=[2])
        >>> td["people"][0] = "grace"
        >>> td["people"]
        LinkedList(['grace', 'alan'])
    """

    def __init__(self, *args: Any, td: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._td = td

    @classmethod
    def _of(cls, td: Any, values: list[Any]) -> Self:
        if len(td.batch_size) > 1:
            parts = td.unbind(0)
            values = [
                cls._of(part, row) for part, row in zip(parts, values, strict=True)
            ]
        return cls(values, td=td)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set values here and in the stack."""
        if self._td is not None:
            self._td[index] = value
        super().__setitem__(index, value)

    def extend(self, object: Any) -> None:
        """Add values here; the stack keeps its size."""
        super().extend(object)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"

    def tolist(self) -> list[Any]:
        """The values in plain lists."""
        return [
            item.tolist() if isinstance(item, LinkedList) else item for item in self
        ]


LinkedList.__module__ = "tensordict.utils"
