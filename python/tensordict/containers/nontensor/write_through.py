"""The list that reading a stack of values by key gives: its changes write through."""

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
    "{} changes a list that was read from a collection, and not the collection, which has "
    "a value for each of its {} rows: the list is linked to it no longer. Take "
    "list(values) for a list of its own, or set the entry to other values."
)
MSG_LENGTH = (
    "{} would change the number of values, and there is one for each of the {} rows of "
    "the collection that they were read from. Take list(values) for a list of its own, or "
    "set the entry to other values."
)


@classes.provided
class LinkedList(list[Any]):
    """The values of a :class:`NonTensorStack` as a list that writes to the stack.

    There is a value per row: a change of the length is one of the list alone, which
    warns, and is linked to the stack no longer.

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

        What is no list, or a list of one value, is set in all rows of a slice.

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
        """Put the values in the opposite order, here and in the stack."""
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
        """The values, or the rows of a collection, as they are now."""
        td = self._td
        if not td._is_non_tensor:
            rows: list[Any] = td.tolist()
            return rows
        return self._of(td, td.tolist())

    # Changes of the length -------------------------------------------------------------

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeError(MSG_LENGTH.format(what, len(self)))

    def _let_go(self, what: str) -> None:
        """Unlink the list, with a warning, before its length changes."""
        if self._td is not None:
            warn_caller(MSG_ALONE.format(what, len(self)), UserWarning)
            self._td = None

    def __reduce_ex__(self, protocol: object) -> Any:
        # Not by adding the values to a list that is linked already.
        return type(self), (list(self),), {"_td": self._td}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"

    def tolist(self) -> list[Any]:
        """The values in plain lists."""
        return [
            item.tolist() if isinstance(item, LinkedList) else item for item in self
        ]


def _letting_go(name: str, shown: str) -> Callable[..., Any]:
    """Return the method ``name`` of a list, which lets go of the stack before it works."""
    change = getattr(list, name)

    @functools.wraps(change)
    def method(self: LinkedList, *args: Any, **kwargs: Any) -> Any:
        self._let_go(shown)
        return change(self, *args, **kwargs)

    return method


for _name in ("append", "extend", "insert", "pop", "remove", "clear"):
    setattr(LinkedList, _name, _letting_go(_name, _name))
for _name, _shown in (("__delitem__", "del"), ("__iadd__", "+="), ("__imul__", "*=")):
    setattr(LinkedList, _name, _letting_go(_name, _shown))
LinkedList.__module__ = "tensordict.utils"
