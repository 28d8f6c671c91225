"""Comparing values, with one another and with what has none."""

from __future__ import annotations

import numbers
import operator
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.containers.nontensor.equality import same_value
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ComparingOps"]

MSG_COMPARED_SIZES = "Could not compare tensordicts with shapes {} and {}"

COMPARABLE = (CollectionProtocol, torch.Tensor, dict, numbers.Number)
"""The types that a value is compared with as if it had no entries."""


class ComparingOps(NonTensorOps):
    """Comparisons of values, and the logical operators.

    With other values the answer is a bool tensor ``[*B]``. A number, a tensor and a
    collection have nothing to compare a value with: the answer has no entries.
    """

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

    def _combined(self, op: Callable[[Any, Any], Any], other: object) -> Any:
        if not isinstance(other, NonTensorOps):
            if not isinstance(other, COMPARABLE):
                self._incomparable(f"__{op.__name__.strip('_')}__", other, False)
            return op(self._nothing(), other)
        pairs = zip(self._flat(), other._flat(), strict=True)
        answers = [bool(op(mine, theirs)) for mine, theirs in pairs]
        device = self._device
        return torch.tensor(answers, dtype=torch.bool, device=device).view(
            self._batch_size
        )


def _compared(first: Any, second: Any, wanted: bool) -> Any:
    """A bool tensor of where two are (not) equal, or what anything else compares as."""
    if not isinstance(second, NonTensorOps):
        if not isinstance(second, COMPARABLE):
            return not wanted
        nothing = first._nothing()
        return nothing == second if wanted else nothing != second
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
    answers = [same_value(*pair) is wanted for pair in pairs]
    told = torch.tensor(answers, dtype=torch.bool, device=first._device)
    return told.view(first.batch_size)
