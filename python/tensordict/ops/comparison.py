"""Comparisons and the logical operators, elementwise."""

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
    """The type of ``==`` and ``!=`` to checkers, of a collection that declares them."""

    if TYPE_CHECKING:

        @overload
        def __call__(
            self, other: CollectionProtocol | Mapping[Any, Any] | torch.Tensor | complex
        ) -> R_co: ...
        @overload
        def __call__(self, other: object) -> Any: ...


class Order(Protocol[R_co]):
    """The type of ``<`` and its like to checkers."""

    if TYPE_CHECKING:

        def __call__(self, other: object) -> R_co:
            """Compare with ``other``."""


class ComparisonOps(CollectionProtocol):
    """Comparisons, elementwise.

    The operand may be a number, a tensor that broadcasts from the left over the batch
    dims, or a collection or dictionary with the same keys, in any order. The result is
    a plain ``TensorDict`` of truth values, without names and never locked; compared
    with a tensor it keeps class and names. Anything else compares as unequal.

    Raises:
        KeyError: the operand is a collection with other keys.

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
        """Say for every element whether it equals that of ``other``."""

    @comparing(torch.ne, operator.ne, otherwise=True)
    def __ne__(self, other: object) -> Any:
        """Say for every element whether it differs from that of ``other``."""

    @comparing(torch.lt, operator.lt, otherwise=False)
    def __lt__(self, other: object) -> Any:
        """Say for every element whether it is less than that of ``other``."""

    @comparing(torch.le, operator.le, otherwise=False)
    def __le__(self, other: object) -> Any:
        """Say for every element whether it is at most that of ``other``."""

    @comparing(torch.gt, operator.gt, otherwise=False)
    def __gt__(self, other: object) -> Any:
        """Say for every element whether it is greater than that of ``other``."""

    @comparing(torch.ge, operator.ge, otherwise=False)
    def __ge__(self, other: object) -> Any:
        """Say for every element whether it is at least that of ``other``."""

    @comparing(torch.bitwise_or, operator.or_, otherwise=False)
    def __or__(self, other: object) -> Any:
        """Set the bits that are set in the element or in that of ``other``."""

    @comparing(torch.bitwise_or, operator.or_, otherwise=False)
    def __ror__(self, other: object) -> Any:
        """Set the bits that are set in the element or in that of ``other``."""

    @comparing(torch.bitwise_xor, operator.xor, otherwise=True)
    def __xor__(self, other: object) -> Any:
        """Set the bits in which the element and that of ``other`` differ."""

    @comparing(torch.bitwise_xor, operator.xor, otherwise=True)
    def __rxor__(self, other: object) -> Any:
        """Set the bits in which the element and that of ``other`` differ."""

    def __bool__(self) -> NoReturn:
        """Refuse: neither emptiness nor truth of all elements is meant for sure."""
        raise RuntimeError(MSG_BOOL)
