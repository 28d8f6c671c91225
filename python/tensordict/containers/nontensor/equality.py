"""Compare values and copy them, and tell what a value is."""

from __future__ import annotations

import copy
import numbers
import operator
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "ComparingOps",
    "bare",
    "copied",
    "is_interchangeable",
    "is_nothing",
    "same_value",
]

MSG_COMPARED_SIZES = "Could not compare tensordicts with shapes {} and {}"

COMPARABLE = (CollectionProtocol, torch.Tensor, dict, numbers.Number)
"""The types that a value is compared with as if it had no entries."""

_ATOMIC = frozenset({bool, bytes, complex, float, int, str, type, type(None)})
"""Types of values that need no copy."""


def copied(held: Sequence[Any], is_lenient: bool) -> list[Any]:
    """Copy values deeply; one that is there several times has one copy.

    With ``is_lenient`` one that cannot be copied, such as a lock, stands for itself.

    Raises:
        TypeError: one cannot be copied.
    """
    if set(map(type, held)) <= _ATOMIC:
        return list(held)
    memo: dict[int, Any] = {}
    made = []
    for value in held:
        try:
            if isinstance(value, torch.Tensor) and id(value) not in memo:
                memo[id(value)] = value.clone()
            made.append(copy.deepcopy(value, memo))
        except Exception:
            if not is_lenient:
                raise
            made.append(value)
    return made


def same_value(first: Any, second: Any) -> bool:
    """Tell whether two values are equal; arrays and tensors where all their elements are."""
    if type(first) is not type(second) and (
        isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor)
    ):
        return False
    if isinstance(first, torch.Tensor):
        return first.shape == second.shape and bool((first == second).all())
    try:
        found = first == second
    except Exception:  # noqa: BLE001 - what a value's own comparison raises
        return False
    if isinstance(found, bool):
        return found
    try:
        return bool(found)
    except Exception:  # noqa: BLE001
        all_of = getattr(found, "all", None)
        shapes = getattr(first, "shape", None), getattr(second, "shape", None)
        if all_of is None or shapes[0] != shapes[1]:
            return False
        return bool(all_of())


def is_interchangeable(first: Any, second: Any) -> bool:
    """Tell whether nothing is lost where one value stands for both.

    They are equal, and so are their types, in what they hold too: 1, 1.0 and True are
    three values.
    """
    kind = type(first)
    if kind is not type(second) or not same_value(first, second):
        return False
    if kind is float or kind is complex:
        return repr(first) == repr(second)  # The sign of zero.
    if isinstance(first, dict):
        return is_interchangeable([*first.items()], [*second.items()])
    if isinstance(first, (list, tuple)):
        return all(map(is_interchangeable, first, second))
    if isinstance(first, (set, frozenset)):
        kinds = [{(type(item), item) for item in each} for each in (first, second)]
        return kinds[0] == kinds[1]
    return getattr(first, "dtype", None) == getattr(second, "dtype", None)


def is_nothing(value: object) -> bool:
    """Tell whether a value is an empty collection, which writes nothing."""
    return (
        isinstance(value, CollectionProtocol)
        and not value._is_non_tensor
        and value.is_empty()
    )


def bare(value: Any) -> Any:
    """The value that a collection of one holds; what is no such collection as it is."""
    is_value = isinstance(value, CollectionProtocol) and value._is_non_tensor
    return value.data if is_value and value._is_one else value


class ComparingOps(CollectionProtocol):
    """Comparisons of values, and the logical operators.

    With other values the answer is a bool tensor ``[*B]``. A number, a tensor and a
    collection have nothing to compare a value with: the answer has no entries.
    """

    if TYPE_CHECKING:

        def _flat(self) -> list[Any]: ...

    def _nothing(self) -> Any:
        """Return this collection without its values: one without entries."""
        return self._plain_type({}, self._batch_size, device=self._device)

    def __eq__(self, other: object) -> Any:
        """Tell whether the values are equal, for each element: a bool tensor ``[*B]``."""
        return _compared(self, other, True)

    def __ne__(self, other: object) -> Any:
        """Tell whether the values differ, for each element: a bool tensor ``[*B]``."""
        return _compared(self, other, False)

    __hash__: ClassVar[Any] = None

    def __or__(self, other: object) -> Any:
        """The truth of ``value | value`` for each element: a bool tensor ``[*B]``."""
        return self._combined(operator.or_, other)

    def __xor__(self, other: object) -> Any:
        """The truth of ``value ^ value`` for each element: a bool tensor ``[*B]``."""
        return self._combined(operator.xor, other)

    def _combined(self, op: Callable[[Any, Any], Any], other: Any) -> Any:
        if not _is_values(other):
            if not isinstance(other, COMPARABLE):
                self._incomparable(f"__{op.__name__.strip('_')}__", other, False)
            return op(self._nothing(), other)
        pairs = zip(self._flat(), other._flat(), strict=True)
        return _told(self, [bool(op(mine, theirs)) for mine, theirs in pairs])


def _compared(first: Any, second: Any, wanted: bool) -> Any:
    """A bool tensor of where two are (not) equal, or what anything else compares as."""
    if not _is_values(second):
        if not isinstance(second, COMPARABLE) or -1 in first.batch_size:
            return not wanted
        nothing = first._nothing()
        return nothing == second if wanted else nothing != second
    sizes = first.batch_size, second.batch_size
    if any(-1 in size for size in sizes):
        raise RuntimeError(MSG_COMPARED_SIZES.format(*sizes))
    for one, other in ((first, second), (second, first)):
        if one._is_one and not one.batch_size and not other._is_one:
            # One value without dims is compared with each.
            resized = one._fitted(other.batch_size)
            first, second = (resized, other) if one is first else (other, resized)
            break
    if first._is_one and second._is_one:
        answer = same_value(first.data, second.data) is wanted
        return torch.full(
            first.batch_size, answer, dtype=torch.bool, device=first._device
        )
    if first.batch_size != second.batch_size:
        raise RuntimeError(
            MSG_COMPARED_SIZES.format(first.batch_size, second.batch_size)
        )
    pairs = zip(first._flat(), second._flat(), strict=True)
    return _told(first, [same_value(*pair) is wanted for pair in pairs])


def _told(values: Any, answers: list[bool]) -> torch.Tensor:
    """The answer for each of some values as a tensor ``[*B]``."""
    size = values.batch_size
    if -1 in size:
        raise RuntimeError(MSG_COMPARED_SIZES.format(size, size))
    return torch.tensor(answers, dtype=torch.bool, device=values.device).view(size)


def _is_values(other: object) -> bool:
    return isinstance(other, CollectionProtocol) and other._is_non_tensor
