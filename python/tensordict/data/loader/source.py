"""Read rows of a tensordict for a loader."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.data.rows import gather
from tensordict.tensorclass import TensorClass, is_non_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.data.loader.order import Order, RandomAccess
    from tensordict.data.ragged import RaggedForm
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "Dense",
    "FormedBatch",
    "OneSource",
    "Source",
    "Template",
    "Tensors",
    "checked_rows",
]


class Source(Protocol):
    """Numbered rows, and the order of an epoch over them."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        ...  # pragma: no cover

    def of_epoch(
        self, order: Order, epoch: int, state: dict[str, Any] | None = None
    ) -> RandomAccess:
        """Return the rows of one epoch; with ``state``, of an epoch that began earlier."""
        ...  # pragma: no cover

    def take(self, rows: torch.Tensor) -> Any:
        """Copy rows to a batch."""
        ...  # pragma: no cover

    def dense(self) -> Dense | None:
        """Return the present tensors for native code; None if there are other entries."""
        ...  # pragma: no cover

    def collections(self) -> list[Any]:
        """Return the collections, to share them with processes."""
        ...  # pragma: no cover


class Dense(Protocol):
    """The tensors of a source, from which native code makes batches."""

    @property
    def parts(self) -> Sequence[TensorDict]:
        """The tensors of each collection."""
        ...  # pragma: no cover

    def split(self, rows: torch.Tensor) -> Sequence[tuple[TensorDict, torch.Tensor]]:
        """Return the parts that contain the rows, each with the indices inside it."""
        ...  # pragma: no cover

    def completed(self, batch: CollectionProtocol, rows: torch.Tensor) -> Any:
        """Add the entries that are not tensors to a batch of tensors."""
        ...  # pragma: no cover


class Tensors:
    """The tensors of a collection as nested tensordicts, which share them.

    Tensorclasses become tensordicts, and non-tensor data is left out.

    Args:
        td: the collection.

    Attributes:
        td: the nested tensordicts; None if an entry is a collection of another class.
        has_classes: whether there are tensorclasses.
        has_non_tensors: whether there is non-tensor data.
    """

    def __init__(self, td: CollectionProtocol) -> None:
        self.has_classes: bool = False
        self.has_non_tensors: bool = False
        self.td: TensorDict | None = self._walk(td)

    def _walk(self, td: CollectionProtocol) -> TensorDict | None:
        inner = td._tensordict if isinstance(td, TensorClass) else td
        self.has_classes |= inner is not td
        if not isinstance(inner, TensorDict):
            return None
        entries: dict[str, Any] = {}
        for key, value in inner._entries().items():
            if isinstance(value, torch.Tensor):
                entries[key] = value
            elif is_non_tensor(value):
                self.has_non_tensors = True
            else:
                below = self._walk(value)
                if below is None:
                    return None
                entries[key] = below
        return _rust.new(
            type(inner), entries, inner._batch_size, inner._device, inner._td_dim_names
        )


class Template:
    """The structure of a collection, for batches of its rows.

    Args:
        td: the collection.
        tensors: its tensors.
    """

    def __init__(self, td: CollectionProtocol, tensors: Tensors) -> None:
        self._td = td.clone(False)
        self._is_plain = not (tensors.has_classes or tensors.has_non_tensors)

    def completed(self, batch: CollectionProtocol, rows: torch.Tensor | None) -> Any:
        """Return a batch with the structure of the collection.

        Args:
            batch: the tensors, as :class:`Tensors` arranges them.
            rows: the rows whose non-tensor data is added; None if there is none.
        """
        return batch if self._is_plain else _completed(self._td, batch, rows)


def _completed(
    source: Any, batch: CollectionProtocol, rows: torch.Tensor | None
) -> Any:
    inner = source._tensordict if isinstance(source, TensorClass) else source
    tensors = batch._entries()
    entries: dict[str, Any] = {}
    for key, value in inner._entries().items():
        if isinstance(value, torch.Tensor):
            entries[key] = tensors[key]
        elif is_non_tensor(value):
            entries[key] = value[rows]
        else:
            entries[key] = _completed(value, tensors[key], rows)
    completed = _rust.new(
        type(batch), entries, batch._batch_size, batch._device, batch._td_dim_names
    )
    return (
        type(source)._from_tensordict(completed) if inner is not source else completed
    )


def checked_rows(td: CollectionProtocol) -> int:
    """Return the number of rows of a collection.

    Raises:
        TypeError: ``td`` is not a collection.
        ValueError: it has no batch dimensions.
    """
    batch_size = getattr(td, "batch_size", None)
    if not isinstance(batch_size, torch.Size):
        if isinstance(td, (str, os.PathLike)):
            msg = (
                f"A loader needs a collection, got the path {os.fspath(td)!r}: open it "
                f"with TensorDict.load_memmap({os.fspath(td)!r})."
            )
            raise TypeError(msg)
        from tensordict.data.writer.reader import DatasetReader

        remedy = (
            "Pass reader.data, the rows that are there now."
            if isinstance(td, DatasetReader)
            else "Convert other data with TensorDict(...) or tensordict.data.DatasetWriter."
        )
        msg = f"A loader needs a collection, got {type(td).__name__}. {remedy}"
        raise TypeError(msg)
    if not batch_size:
        msg = (
            "A collection without batch dims has no rows: add a batch dim with "
            "td.auto_batch_size_(1)."
        )
        raise ValueError(msg)
    return batch_size[0]


@dataclass
class OneSource:
    """A collection as a source; its first batch dimension counts the rows.

    Args:
        td: the collection.
        form: the form of rows that differ in shape. Default: the result of an index.
    """

    td: Any
    form: RaggedForm | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        size: int = self.td.batch_size[0]
        return size

    def of_epoch(
        self, order: Order, epoch: int, state: dict[str, Any] | None = None
    ) -> RandomAccess:
        """Return one order over all rows."""
        return order.of_epoch(self.num_rows, epoch)

    def take(self, rows: torch.Tensor) -> Any:
        """Copy the rows."""
        if self.form is not None:
            return self.form.taken(self.td, rows)
        return gather(self.td, rows)

    def dense(self) -> Dense | None:
        """Return the tensors, if all are in nested tensordicts and tensorclasses."""
        if self.form is not None:
            return None
        tensors = Tensors(self.td)
        if tensors.td is None:
            return None
        return _DenseOne(tensors.td, Template(self.td, tensors))

    def collections(self) -> list[Any]:
        """Return the collection."""
        return [self.td]


class FormedBatch:
    """A function that forms batches of ragged rows, then calls the user's transform.

    Args:
        form: the form of ragged rows.
        transform: the user's function, or None.
    """

    def __init__(
        self, form: RaggedForm, transform: Callable[[Any], Any] | None
    ) -> None:
        self.form: RaggedForm = form
        self.transform = transform

    def __call__(self, batch: CollectionProtocol) -> Any:
        """Form a batch from a lazy stack of rows."""
        batch = self.form.taken(batch, slice(None))
        return batch if self.transform is None else self.transform(batch)


class _DenseOne:
    """The tensors of one collection."""

    def __init__(self, tensors: TensorDict, template: Template) -> None:
        self.parts: list[TensorDict] = [tensors]
        self._template = template

    def split(self, rows: torch.Tensor) -> Sequence[tuple[TensorDict, torch.Tensor]]:
        """Return the one part, with all rows."""
        return [(self.parts[0], rows)]

    def completed(self, batch: CollectionProtocol, rows: torch.Tensor) -> Any:
        """Add the tensorclasses and the non-tensor data."""
        return self._template.completed(batch, rows)
