"""Comparing, copying and inspecting the values of non-tensor data."""

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
"""The types that compare with non-tensor data as with an empty collection."""

_ATOMIC = frozenset({bool, bytes, complex, float, int, str, type, type(None)})
"""The types of values that need no copy."""


def copied(values: Sequence[Any], is_lenient: bool) -> list[Any]:
    """Copy values deeply; a value that occurs several times is copied once.

    If ``is_lenient`` is true, a value that cannot be copied, such as a lock, is kept.

    Raises:
        TypeError: a value cannot be copied.
    """
    if set(map(type, values)) <= _ATOMIC:
        return list(values)
    memo: dict[int, Any] = {}
    copies = []
    for value in values:
        try:
            if isinstance(value, torch.Tensor) and id(value) not in memo:
                memo[id(value)] = value.clone()
            copies.append(copy.deepcopy(value, memo))
        except Exception:
            if not is_lenient:
                raise
            copies.append(value)
    return copies


def same_value(first: Any, second: Any) -> bool:
    """Return whether two values are equal; arrays and tensors if all elements are."""
    if type(first) is not type(second) and (
        isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor)
    ):
        return False
    if isinstance(first, torch.Tensor):
        return first.shape == second.shape and bool((first == second).all())
    try:
        answer = first == second
    except Exception:  # noqa: BLE001 - a value's comparison can raise anything
        return False
    if isinstance(answer, bool):
        return answer
    try:
        return bool(answer)
    except Exception:  # noqa: BLE001
        all_of = getattr(answer, "all", None)
        shapes = getattr(first, "shape", None), getattr(second, "shape", None)
        if all_of is None or shapes[0] != shapes[1]:
            return False
        return bool(all_of())


def is_interchangeable(first: Any, second: Any) -> bool:
    """Return whether one value can stand for both.

    The values must be equal and of equal types, in their contents too: 1, 1.0 and True
    are three different values.
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
        kinds = [{(type(item), item) for item in values} for values in (first, second)]
        return kinds[0] == kinds[1]
    return getattr(first, "dtype", None) == getattr(second, "dtype", None)


def is_nothing(value: object) -> bool:
    """Return whether a value is an empty collection: writing it does nothing."""
    return isinstance(value, CollectionProtocol) and value.is_empty()


def bare(value: Any) -> Any:
    """Return the value of non-tensor data with one value; anything else as it is."""
    return value.data if getattr(value, "_is_one", False) else value


class ComparingOps(CollectionProtocol):
    """Comparisons and logical operators of non-tensor data.

    Comparing with other non-tensor data returns a boolean tensor ``[*B]``. Comparing
    with a number, a tensor or another collection returns a collection without entries.
    """

    if TYPE_CHECKING:

        def _flat(self) -> list[Any]: ...

    def _nothing(self) -> Any:
        """Return a collection without entries, of the same batch size and device."""
        return self._plain_type({}, self._batch_size, device=self._device)

    def __eq__(self, other: object) -> Any:
        """Compare the values of each element: a boolean tensor ``[*B]``."""
        return _compared(self, other, True)

    def __ne__(self, other: object) -> Any:
        """Compare the values of each element: a boolean tensor ``[*B]``."""
        return _compared(self, other, False)

    __hash__: ClassVar[Any] = None

    def __or__(self, other: object) -> Any:
        """Return ``bool(value | value)`` of each element: a boolean tensor ``[*B]``."""
        return self._combined(operator.or_, other)

    def __xor__(self, other: object) -> Any:
        """Return ``bool(value ^ value)`` of each element: a boolean tensor ``[*B]``."""
        return self._combined(operator.xor, other)

    def _combined(self, op: Callable[[Any, Any], Any], other: Any) -> Any:
        if not _is_values(other):
            if not isinstance(other, COMPARABLE):
                self._incomparable(f"__{op.__name__.strip('_')}__", other, False)
            return op(self._nothing(), other)
        pairs = zip(self._flat(), other._flat(), strict=True)
        return _answers_tensor(self, [bool(op(mine, theirs)) for mine, theirs in pairs])


def _compared(first: Any, second: Any, wanted: bool) -> Any:
    """Compare with non-tensor data elementwise, or like an empty collection."""
    if not _is_values(second):
        if not isinstance(second, COMPARABLE) or -1 in first.batch_size:
            return not wanted
        nothing = first._nothing()
        return nothing == second if wanted else nothing != second
    sizes = first.batch_size, second.batch_size
    if any(-1 in size for size in sizes):
        raise RuntimeError(MSG_COMPARED_SIZES.format(*sizes))
    for single, other in ((first, second), (second, first)):
        if single._is_one and not single.batch_size and not other._is_one:
            # One value without batch dims is compared with each element.
            resized = single._fitted(other.batch_size)
            first, second = (resized, other) if single is first else (other, resized)
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
    return _answers_tensor(first, [same_value(*pair) is wanted for pair in pairs])


def _answers_tensor(values: Any, answers: list[bool]) -> torch.Tensor:
    """Return an answer for each element as a tensor ``[*B]``."""
    size = values.batch_size
    if -1 in size:
        raise RuntimeError(MSG_COMPARED_SIZES.format(size, size))
    return torch.tensor(answers, dtype=torch.bool, device=values.device).view(size)


def _is_values(other: object) -> bool:
    return isinstance(other, CollectionProtocol) and other._is_non_tensor
