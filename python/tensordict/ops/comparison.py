"""Elementwise comparisons and logical operators."""

# The bodies are filled by decorators; see families.py.
# mypy: disable-error-code="empty-body,override"
# pyright: reportReturnType=false

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeVar, overload

import torch

from tensordict.ops.families import comparing
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ComparisonOps", "Equality", "Order"]

R_co = TypeVar("R_co", covariant=True)

MSG_BOOL = (
    "Converting a tensordict to boolean value is not permitted. Use len(td.keys()) to "
    "test for keys, td.is_empty() to test for leaves, or (a == b).all() / .any() to "
    "reduce a comparison."
)


class Equality(Protocol[R_co]):
    """The type of ``==`` and ``!=`` for type checkers."""

    if TYPE_CHECKING:

        @overload
        def __call__(
            self, other: CollectionProtocol | Mapping[Any, Any] | torch.Tensor | complex
        ) -> R_co: ...
        @overload
        def __call__(self, other: object) -> Any: ...


class Order(Protocol[R_co]):
    """The type of ``<``, ``<=``, ``>`` and ``>=`` for type checkers."""

    if TYPE_CHECKING:

        def __call__(self, other: object) -> R_co:
            """Compare with ``other``."""


class ComparisonOps(CollectionProtocol):
    """Elementwise comparisons.

    The operand may be a number, a tensor that broadcasts from the left over the batch
    dimensions, or a tensordict or dictionary with the same keys in any order. The
    result is a plain ``TensorDict`` of booleans, unlocked and without names; if the
    operand is a tensor, the result keeps class and names. Any other operand is unequal.

    Raises:
        KeyError: the operand is a tensordict with other keys.

    Examples:
        >>> td = TensorDict(a=torch.tensor([1, 2]), batch_size=[2])
        >>> (td == 1)["a"]
        tensor([ True, False])
        >>> bool((td == td.clone()).all())
        True
        >>> td == "a string"
        False
    """

    __hash__: ClassVar[Any] = None

    @comparing(torch.eq, operator.eq, otherwise=False)
    def __eq__(self, other: object) -> Any:
        """Return for every element whether it equals the element of ``other``."""

    @comparing(torch.ne, operator.ne, otherwise=True)
    def __ne__(self, other: object) -> Any:
        """Return for every element whether it differs from the element of ``other``."""

    @comparing(torch.lt, operator.lt, otherwise=False)
    def __lt__(self, other: object) -> Any:
        """Return for every element whether it is less than ``other``."""

    @comparing(torch.le, operator.le, otherwise=False)
    def __le__(self, other: object) -> Any:
        """Return for every element whether it is less than or equal to ``other``."""

    @comparing(torch.gt, operator.gt, otherwise=False)
    def __gt__(self, other: object) -> Any:
        """Return for every element whether it is greater than ``other``."""

    @comparing(torch.ge, operator.ge, otherwise=False)
    def __ge__(self, other: object) -> Any:
        """Return for every element whether it is greater than or equal to ``other``."""

    @comparing(torch.bitwise_or, operator.or_, otherwise=False)
    def __or__(self, other: object) -> Any:
        """Return the bits that are set in the element or in ``other``."""

    @comparing(torch.bitwise_or, operator.or_, otherwise=False)
    def __ror__(self, other: object) -> Any:
        """Return the bits that are set in the element or in ``other``."""

    @comparing(torch.bitwise_xor, operator.xor, otherwise=True)
    def __xor__(self, other: object) -> Any:
        """Return the bits in which the element and ``other`` differ."""

    @comparing(torch.bitwise_xor, operator.xor, otherwise=True)
    def __rxor__(self, other: object) -> Any:
        """Return the bits in which the element and ``other`` differ."""

    def __bool__(self) -> NoReturn:
        """Raise an error: the truth of a tensordict has no clear meaning."""
        raise RuntimeError(MSG_BOOL)
