"""Special entries: what a collection asks an entry that is no plain tensor.

What stands at a key is a plain tensor, a collection, or a special entry: a tensor of a class
that has an :class:`EntryKind`, which says what an index, a join or a write make of it. The
functions here do for a plain tensor what torch does, and ask the kind of a special entry.
Code that meets entries calls them; it does not ask which class an entry is of.

A kind is a class in a file of ``entries/`` and a line in the table there. Users register
one of their own with :func:`register_entry_kind`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import has_torch_function_unary as takes_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = [
    "EntryKind",
    "at",
    "check_fits",
    "check_write",
    "fits",
    "has_index",
    "is_shared",
    "is_shared_class",
    "is_special_class",
    "joined",
    "kind_marked",
    "kind_of",
    "leading_shape",
    "mapped",
    "register_entry_kind",
    "resized",
    "results_as_sources",
    "split",
    "write_at",
]

MSG_EXPANDED = (
    "The expanded size of the tensor ({}) must match the existing size ({}) at "
    "non-singleton dimension {}.  Target sizes: {}.  Tensor sizes: {}"
)


class EntryKind:
    """A kind of special entry: how one answers for itself.

    Each method does what is right for a tensor whose first dims are the batch dims; a kind
    overrides those in which its entries differ. No method changes the entry, but for
    :meth:`write_at`.
    """

    name: str
    """The name of the kind, with which formats of files mark an entry."""

    cls: type[torch.Tensor] | None = None
    """The class whose instances are of the kind; None for one that overrides `holds`."""

    is_shared: bool = False
    """True if all elements of a collection share an entry, which has no batch dims."""

    has_file: bool = False
    """True if directories, archives and consolidated files keep an entry as what it is."""

    def holds(self, entry: object) -> bool:
        """Return whether an entry is of the kind."""
        return self.cls is not None and isinstance(entry, self.cls)

    def leading_shape(self, entry: Any) -> torch.Size | None:
        """Give the dims of which the first may be batch dims; None where any fit."""
        return entry.shape

    def fits(self, entry: Any, size: torch.Size) -> bool:
        """Return whether an entry may be one of a collection of batch size ``size``."""
        return entry.shape[: len(size)] == size

    def resized(self, entry: Any, size: torch.Size) -> Any:
        """Give the entry of a collection of batch size ``size``, whose elements it keeps.

        None where the elements of an entry are those of its collection, so that it
        changes when they do.
        """
        return None

    def at(self, entry: Any, index: Any, size: torch.Size) -> Any:
        """Take the elements at an index of the batch dims, of which ``size`` is left."""
        return entry[index]

    def check_write(
        self,
        entry: Any,
        value: Any,
        index: Any,
        size: torch.Size,
        k: int,
    ) -> None:
        """Raise where ``value`` cannot be written at an index.

        Args:
            entry: the entry, of a collection of ``k`` batch dims.
            value: a tensor.
            index: the index, of batch dims.
            size: what the index leaves of them.
            k: the number of batch dims.

        Raises:
            RuntimeError: it does not broadcast to the elements at the index.
        """
        check_fits(value, entry, size, k)

    def write_at(self, entry: Any, index: Any, value: Any) -> None:
        """Write a value that was checked into the elements at an index."""
        entry[index] = value

    def mapped(
        self,
        entry: Any,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        size: torch.Size | None,
    ) -> Any:
        """Call a function or a method with an entry, as :func:`tensordict._rust.map_leaves`.

        ``size`` is the batch size that the result gets; None where it is the old one.
        """
        return _called(entry, op, args)

    def split(
        self,
        entry: Any,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        sizes: Sequence[torch.Size],
    ) -> Sequence[Any]:
        """Call what gives a sequence: an entry for each of the batch sizes."""
        parts: Sequence[Any] = _called(entry, op, args)
        return parts

    def joined(
        self,
        group: Sequence[Any],
        dim: int,
        size: torch.Size | None,
        join: Callable[..., Any],
    ) -> Any:
        """Join entries of several collections, of which one at least is of the kind.

        Args:
            group: the entries; others of them may be of another kind, or plain.
            dim: the dim along which the collections are joined.
            size: the batch size of the result; None where the entries are stacked and
                it is theirs, with a dim more.
            join: :func:`torch.stack` or :func:`torch.cat`, or what does the same.
        """
        return join(list(group), dim)

    def like(self, entry: Any, result: Any) -> Any:
        """Give a plain ``result`` of a function of several leaves the kind of its source."""
        return result

    def plain(self, entry: Any) -> torch.Tensor:
        """Give the plain tensor that a format of files keeps, which shares the memory."""
        return entry.as_subclass(torch.Tensor)

    def of_plain(self, data: torch.Tensor, size: torch.Size) -> Any:
        """Make the entry of a collection of batch size ``size`` of its plain tensor."""
        cls: Any = self.cls
        return data.as_subclass(cls)


def _called(entry: Any, op: str | Callable[..., Any], args: tuple[Any, ...]) -> Any:
    if isinstance(op, str):
        return getattr(entry, op)(*args)
    return op(entry, *args)


KINDS: list[EntryKind] = []
"""The kinds that are registered, in that order."""

CLASSES: list[type] = []
"""The classes of kinds, for the native walks, which leave others to the functions here."""

KINDS_OF_CLASSES: list[EntryKind] = []
"""The kind of each of :data:`CLASSES`."""


def register_entry_kind(kind: EntryKind) -> None:
    """Let collections ask ``kind`` for what its class of entries makes of an operation.

    Raises:
        ValueError: a kind of that name, or for that class, is registered.
    """
    for known in KINDS:
        if known.name == kind.name or (kind.cls and known.cls is kind.cls):
            msg = (
                f"the entry kind {kind.name!r} of {kind.cls} cannot be registered: "
                f"{known.name!r} of {known.cls} is. Give it a class and a name of its own."
            )
            raise ValueError(msg)
    KINDS.append(kind)
    if kind.cls is not None:
        KINDS_OF_CLASSES.append(kind)
        CLASSES.append(kind.cls)


def kind_of(entry: object) -> EntryKind | None:
    """Return the kind of a special entry; None for a plain tensor or anything else."""
    # The compiler cannot always ask the class of a tensor that it made, but this.
    if not takes_part(entry) and not getattr(entry, "is_nested", False):
        return None
    for kind in KINDS:
        if kind.holds(entry):
            return kind
    return None


def kind_marked(marks: Any, form: str = "{}") -> EntryKind | None:
    """Return the kind whose name is among the marks of an entry in a file.

    ``form`` has a place for the name.
    """
    for kind in KINDS:
        if form.format(kind.name) in marks:
            return kind
    return None


def is_shared(entry: object) -> bool:
    """Return whether all elements of a collection share an entry: it has no batch dims."""
    kind = kind_of(entry)
    return kind is not None and kind.is_shared


def is_special_class(cls: type) -> bool:
    """Return whether the instances of a class are of a kind that has a class."""
    return any(issubclass(cls, known) for known in CLASSES)


def is_shared_class(cls: type) -> bool:
    """Return :func:`is_shared` of the instances of a class."""
    return any(
        kind.is_shared and issubclass(cls, known)
        for kind, known in zip(KINDS_OF_CLASSES, CLASSES, strict=False)
    )


def leading_shape(entry: Any) -> torch.Size | None:
    """Give the dims of which the first may be batch dims; None where any fit."""
    kind = kind_of(entry)
    return entry.shape if kind is None else kind.leading_shape(entry)


def fits(entry: Any, size: torch.Size) -> bool:
    """Return whether a tensor may be an entry of a collection of batch size ``size``."""
    kind = kind_of(entry)
    if kind is None:
        return entry.shape[: len(size)] == size
    return kind.fits(entry, size)


def resized(entry: Any, size: torch.Size) -> Any:
    """Give an entry that keeps its elements to a batch size; None where it has not."""
    kind = kind_of(entry)
    return None if kind is None else kind.resized(entry, size)


def at(entry: Any, index: Any, size: torch.Size) -> Any:
    """Take the elements of a tensor at an index, of which the batch size ``size`` is left."""
    kind = kind_of(entry)
    return entry[index] if kind is None else kind.at(entry, index, size)


def has_index(entry: object) -> bool:
    """Return whether an entry is a tensor of which an index means the first dims."""
    return isinstance(entry, torch.Tensor) and kind_of(entry) is None


def check_write(entry: Any, value: Any, index: Any, size: torch.Size, k: int) -> None:
    """Raise where a value cannot be written into a tensor: :meth:`EntryKind.check_write`."""
    kind = kind_of(entry)
    if kind is None:
        check_fits(value, entry, size, k)
    else:
        kind.check_write(entry, value, index, size, k)


def check_fits(item: Any, leaf: torch.Tensor, size: torch.Size, k: int) -> None:
    """Raise where ``item`` does not broadcast to what is written of ``leaf``."""
    if not isinstance(item, torch.Tensor):
        return
    target = [*size, *leaf.shape[k:]]
    shape = list(item.shape)
    if shape == target:
        return
    while len(shape) > len(target) and shape[0] == 1:
        del shape[0]
    offset = len(target) - len(shape)
    if offset < 0:
        msg = (
            f"expand(source of shape {list(item.shape)}, size={target}): the number of "
            "sizes provided must be greater or equal to the number of dimensions in "
            "the tensor."
        )
        raise RuntimeError(msg)
    for dim, length in enumerate(shape):
        if length not in (1, target[dim + offset]):
            raise RuntimeError(
                MSG_EXPANDED.format(
                    target[dim + offset], length, dim + offset, target, shape
                )
            )


def write_at(entry: Any, index: Any, value: Any) -> None:
    """Write a value into the elements of a tensor at an index."""
    kind = kind_of(entry)
    if kind is None:
        entry[index] = value
    else:
        kind.write_at(entry, index, value)


def mapped(
    entry: Any,
    op: str | Callable[..., Any],
    args: tuple[Any, ...],
    size: torch.Size | None,
) -> Any:
    """Call a function or a method with a tensor: :meth:`EntryKind.mapped`."""
    kind = kind_of(entry)
    if kind is None:
        return _called(entry, op, args)
    return kind.mapped(entry, op, args, size)


def split(
    entry: Any,
    op: str | Callable[..., Any],
    args: tuple[Any, ...],
    sizes: Sequence[torch.Size],
) -> Sequence[Any]:
    """Call what gives a sequence with a tensor: :meth:`EntryKind.split`."""
    kind = kind_of(entry)
    if kind is None:
        parts: Sequence[Any] = _called(entry, op, args)
        return parts
    return kind.split(entry, op, args, sizes)


def joined(
    group: Sequence[Any], dim: int, size: torch.Size | None, join: Callable[..., Any]
) -> Any:
    """Join tensors, by the kind of the first special one: :meth:`EntryKind.joined`."""
    for entry in group:
        kind = kind_of(entry)
        if kind is not None:
            return kind.joined(group, dim, size, join)
    return join(list(group), dim)


def results_as_sources(results: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
    """Give each plain result of a list of tensors the kind of its source."""
    made = []
    for result, source in zip(results, sources, strict=True):
        kind = kind_of(source) if type(result) is torch.Tensor else None
        made.append(result if kind is None else kind.like(source, result))
    return made
