"""The list that reading a stack of values returns. Its changes write to the stack."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn, Self

from tensordict.primitives import classes
from tensordict.primitives.deprecation import warn_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["LinkedList"]

MSG_ALONE = (
    "{} changes a list that was read from a collection, but not the collection, which "
    "holds a value for each of its {} rows. The list is no longer linked to it. Call "
    "list(values) for a separate list, or set the entry to other values."
)
MSG_LENGTH = (
    "{} would change the number of values, but the collection that they were read from "
    "has {} rows. Call list(values) for a separate list, or set the entry to other "
    "values."
)


@classes.provided
class LinkedList(list[Any]):
    """The values of a :class:`NonTensorStack` as a list that writes to the stack.

    The stack has one value for each row, so its length cannot change. Changing the
    length of the list emits a warning, and unlinks the list from the stack.

    Examples:
        >>> td = TensorDict(people=["grace", "alan"], batch_size=[2])
        >>> td["people"][0] = "ada"
        >>> td["people"].reverse()
        >>> td["people"]
        LinkedList(['alan', 'ada'])
    """

    _td: Any = None

    def __init__(self, *args: Any, td: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._td = td

    @classmethod
    def _of(cls, td: CollectionProtocol, values: list[Any]) -> Self:
        if len(td.batch_size) > 1:
            parts = td.unbind(0)
            values = [
                cls._of(part, row) for part, row in zip(parts, values, strict=True)
            ]
        return cls(values, td=td)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set values here and in the stack.

        A slice takes a list of as many values. A list of one value, or any other
        object, is set in all rows of the slice.

        Raises:
            RuntimeError: a list has more or fewer values than the slice has rows.
        """
        td = self._td
        if td is None or not isinstance(index, slice):
            if td is not None:
                td[index] = value
                if len(td.batch_size) > 1:
                    value = self._read_again()[index]
            super().__setitem__(index, value)
            return
        num_rows = len(range(*index.indices(len(self))))
        if isinstance(value, list) and len(value) not in (1, num_rows):
            self._refuse("This assignment to a slice")
        td[index] = value
        super().__setitem__(slice(None), self._read_again())

    def reverse(self) -> None:
        """Reverse the values, here and in the stack."""
        self._put_in_order(range(len(self) - 1, -1, -1))

    def sort(
        self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False
    ) -> None:
        """Sort the values here and in the stack, as :meth:`list.sort` does."""
        keys = self if key is None else [key(value) for value in self]
        order = sorted(range(len(self)), key=keys.__getitem__, reverse=reverse)
        self._put_in_order(order)

    def _put_in_order(self, order: Sequence[int]) -> None:
        td, positions = self._td, list(order)
        values = [self[position] for position in positions]
        if td is not None and values:
            td[:] = td[positions]
            values = self._read_again()
        super().__setitem__(slice(None), values)

    def _read_again(self) -> list[Any]:
        """Return the present values, or the rows of a collection."""
        td = self._td
        if not td._is_non_tensor:
            rows: list[Any] = td.tolist()
            return rows
        return self._of(td, td.tolist())

    # Changes of the length ------------------------------------------------------------

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeError(MSG_LENGTH.format(what, len(self)))

    def _unlink(self, what: str) -> None:
        """Unlink the list, with a warning, before its length changes."""
        if self._td is not None:
            warn_caller(MSG_ALONE.format(what, len(self)), UserWarning)
            self._td = None

    def __reduce_ex__(
        self, protocol: object
    ) -> tuple[type[Self], tuple[list[Any]], dict[str, Any]]:
        # Pickle's default would append the values to a list that is already linked.
        return type(self), (list(self),), {"_td": self._td}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"

    def tolist(self) -> list[Any]:
        """Return the values in plain lists."""
        return [
            item.tolist() if isinstance(item, LinkedList) else item for item in self
        ]


def _unlinking(name: str, shown: str) -> Callable[..., Any]:
    """Return a method of ``list`` that first unlinks the list from the stack."""
    change = getattr(list, name)

    @functools.wraps(change)
    def method(self: LinkedList, *args: Any, **kwargs: Any) -> Any:
        self._unlink(shown)
        return change(self, *args, **kwargs)

    return method


for _name in ("append", "extend", "insert", "pop", "remove", "clear"):
    setattr(LinkedList, _name, _unlinking(_name, _name))
for _name, _shown in (("__delitem__", "del"), ("__iadd__", "+="), ("__imul__", "*=")):
    setattr(LinkedList, _name, _unlinking(_name, _shown))
LinkedList.__module__ = "tensordict.utils"
