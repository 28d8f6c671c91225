"""What a loader reads: a collection, or several of them mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tensordict.containers.dense import TensorDict
from tensordict.data.rows import gather
from tensordict.tensorclass import TensorClass, is_non_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.data.loader.order import Order, RandomAccess

__all__ = ["Dense", "OneSource", "Source", "checked_rows", "inner_of"]


class Source(Protocol):
    """Rows that have numbers, and the order of an epoch of them."""

    @property
    def num_rows(self) -> int:
        """How many rows have a number."""
        ...  # pragma: no cover

    def of_epoch(self, order: Order, epoch: int) -> RandomAccess:
        """The rows of one epoch."""
        ...  # pragma: no cover

    def take(self, rows: torch.Tensor) -> Any:
        """The batch of some rows."""
        ...  # pragma: no cover

    def dense(self) -> Dense | None:
        """What the native code may be able to copy, as it is now."""
        ...  # pragma: no cover

    def collections(self) -> list[Any]:
        """What processes share."""
        ...  # pragma: no cover


class Dense(Protocol):
    """Parts with nothing but tensors, and how batches are made of their rows."""

    @property
    def parts(self) -> Sequence[TensorDict]:
        """All of them."""
        ...  # pragma: no cover

    def split(self, rows: torch.Tensor) -> Sequence[tuple[TensorDict, torch.Tensor]]:
        """The parts that some rows are in, and their numbers there."""
        ...  # pragma: no cover

    def completed(self, batch: Any, rows: torch.Tensor) -> Any:
        """A batch of the parts as one of the source."""
        ...  # pragma: no cover


def inner_of(td: Any) -> TensorDict | None:
    """The dense collection that has the entries; None where there is none."""
    if isinstance(td, TensorClass):
        td = td._tensordict
    return td if isinstance(td, TensorDict) else None


def checked_rows(td: Any) -> int:
    """How many rows a collection has.

    Raises:
        TypeError: it is no collection.
        ValueError: it has no batch dims.
    """
    batch_size = getattr(td, "batch_size", None)
    if not isinstance(batch_size, torch.Size):
        msg = (
            f"A loader reads a collection, got {type(td).__name__}. Other data become one "
            "with TensorDict(...) or tensordict.data.DatasetWriter."
        )
        raise TypeError(msg)
    if not batch_size:
        msg = (
            "A collection without batch dims has no rows: give it one with "
            "td.auto_batch_size_(1)."
        )
        raise ValueError(msg)
    return batch_size[0]


@dataclass
class OneSource:
    """A collection whose first batch dim has the rows.

    Args:
        td: the collection.
        ragged: what becomes of rows that differ in shape, as of :func:`gather`.
        padding_value: what fills them up.
    """

    td: Any
    ragged: Any = None
    padding_value: float = 0.0

    @property
    def num_rows(self) -> int:
        """As of :class:`Source`; all methods are."""
        size: int = self.td.batch_size[0]
        return size

    def of_epoch(self, order: Order, epoch: int) -> RandomAccess:
        """One order over all rows."""
        return order.of_epoch(self.num_rows, epoch)

    def take(self, rows: torch.Tensor) -> Any:
        """Copies of the rows."""
        if self.ragged is not None:
            return gather(
                self.td, rows, ragged=self.ragged, padding_value=self.padding_value
            )
        return gather(self.td, rows)

    def dense(self) -> Dense | None:
        """The collection, if it is dense."""
        inner = inner_of(self.td)
        if inner is None or self.ragged is not None:
            return None
        return _DenseOne(self.td, inner)

    def collections(self) -> list[Any]:
        """The collection."""
        return [self.td]


class _DenseOne:
    """One dense collection: the entries with tensors, and those without."""

    def __init__(self, td: Any, inner: TensorDict) -> None:
        others = [key for key, value in inner.items() if is_non_tensor(value)]
        self.parts: list[TensorDict] = [inner.exclude(*others) if others else inner]
        self._others = inner.select(*others) if others else None
        self._order = list(inner.keys())
        self._class: Any = type(td) if isinstance(td, TensorClass) else None

    def split(self, rows: torch.Tensor) -> Sequence[tuple[TensorDict, torch.Tensor]]:
        """All rows are in the one part."""
        return [(self.parts[0], rows)]

    def completed(self, batch: Any, rows: torch.Tensor) -> Any:
        """The batch with the entries without tensors, in the order of the source."""
        if self._others is not None:
            batch.update(self._others[rows])
            batch = batch.select(*self._order)
        return batch if self._class is None else self._class._from_tensordict(batch)
