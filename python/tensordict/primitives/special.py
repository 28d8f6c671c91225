"""Special entries: how an entry that is no plain tensor takes part in operations.

An entry is a plain tensor, a tensordict, or a special entry. A special entry is a
tensor of a class with an :class:`EntryKind`, which defines the results of indexing,
joining and writing. The functions here do the torch operation for a plain tensor and
call the kind for a special entry. Code that handles entries calls them instead of
testing for classes.

A kind is a class in a file of ``entries/`` and a line in the table there. Users
register their own kinds with :func:`register_entry_kind`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.overrides import has_torch_function_unary as takes_part

from tensordict.primitives.after_import import after_import

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = [
    "EntryKind",
    "at",
    "check_fits",
    "check_plain",
    "check_write",
    "fill_where",
    "fits",
    "foreach",
    "has_index",
    "in_line",
    "instead",
    "is_like",
    "is_shared",
    "is_shared_class",
    "is_special_class",
    "is_strided",
    "joined",
    "kind_marked",
    "kind_named",
    "kind_of",
    "leading_shape",
    "mapped",
    "num_bytes",
    "padded",
    "register_entry_kind",
    "resized",
    "results_as_sources",
    "rows",
    "shown_shape",
    "split",
    "where",
    "write_at",
]

MSG_EXPANDED = (
    "The expanded size of the tensor ({}) must match the existing size ({}) at "
    "non-singleton dimension {}.  Target sizes: {}.  Tensor sizes: {}"
)


MSG_PLAIN = (
    "The entry {key!r} is a {cls}, a special entry of the kind {kind!r}, and {place} would "
    "keep it as a plain tensor. Put its plain tensor in its place, "
    "value.as_subclass(torch.Tensor), and make a {cls} again of what is read."
)


class EntryKind:
    """A kind of special entry: the base class, and the behaviour of a plain tensor.

    Each method does the right thing for a tensor whose first dims are the batch dims. A
    kind overrides the methods in which its entries differ. Only :meth:`write_at` and
    :meth:`fill_where` change the entry.
    """

    name: str
    """The name of the kind, which marks its entries in files."""

    cls: type[torch.Tensor] | None = None
    """The class of the entries; None if the kind overrides `holds`."""

    late_class: tuple[str, str] | None = None
    """The module and name of a class that is imported later, if at all."""

    is_shared: bool = False
    """True if an entry has no batch dims and all rows of a tensordict share it."""

    msg_stack: str | None = None
    """The error message if torch cannot stack entries, with a place for the key."""

    in_files: Literal["tensor", "state", "refused"] = "state"
    """The form of an entry in directories, archives and consolidated files.

    ``"tensor"``: one tensor; ``"state"``: the tensors of :meth:`state`; ``"refused"``:
    saving raises an error.
    """

    def holds(self, entry: object) -> bool:
        """Return whether an entry is of the kind."""
        return self.cls is not None and isinstance(entry, self.cls)

    def leading_shape(self, entry: torch.Tensor) -> torch.Size | None:
        """Return the dims whose first ones can be batch dims; None if any size fits."""
        return entry.shape

    def fits(self, entry: torch.Tensor, size: torch.Size) -> bool:
        """Return whether an entry fits into a tensordict of batch size ``size``."""
        return entry.shape[: len(size)] == size

    def shown_shape(self, entry: torch.Tensor) -> list[Any]:
        """Return the shape to print, with -1 for a ragged dim."""
        return list(entry.shape)

    def num_bytes(self, entry: torch.Tensor) -> int:
        """Return the number of bytes of all elements."""
        count: int = entry.numel() * entry.element_size()
        return count

    def rows(self, entry: torch.Tensor) -> list[Any] | None:
        """Return the rows as views of the entry; None if they all have one shape."""
        return None

    def is_like(self, entry: torch.Tensor, value: Any) -> bool:
        """Return whether ``value`` has the shape to be copied into the whole entry."""
        return bool(value.shape == entry.shape)

    def resized(self, entry: torch.Tensor, size: torch.Size) -> Any:
        """Return the entry for a tensordict of batch size ``size``, sharing elements.

        Return None if the elements of an entry belong to rows of its tensordict, so
        that the entry changes with the batch size.
        """
        return None

    def at(self, entry: torch.Tensor, index: Any, size: torch.Size) -> torch.Tensor:
        """Return the elements at an index of the batch dims, which leaves ``size``."""
        return entry[index]

    def check_write(
        self,
        entry: torch.Tensor,
        value: Any,
        index: Any,
        size: torch.Size,
        k: int,
    ) -> None:
        """Raise an error if ``value`` cannot be written at an index.

        Args:
            entry: an entry of a tensordict with ``k`` batch dims.
            value: a tensor.
            index: an index of the batch dims.
            size: the batch size that the index leaves.
            k: the number of batch dims.

        Raises:
            RuntimeError: ``value`` does not broadcast to the elements at the index.
        """
        check_fits(value, entry, size, k)

    def write_at(self, entry: torch.Tensor, index: Any, value: Any) -> None:
        """Write a checked value into the elements at an index."""
        entry[index] = value

    def mapped(
        self,
        entry: torch.Tensor,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        size: torch.Size | None,
    ) -> Any:
        """Call a function or method on an entry, for :func:`_rust.map_leaves`.

        ``size`` is the batch size of the result; None if it does not change. If it
        changes, an entry for which :meth:`resized` returns an entry is not passed to
        ``op``. The native walks call only :meth:`resized` in this case.
        """
        kept = None if size is None else self.resized(entry, size)
        return _called(entry, op, args) if kept is None else kept

    def instead(
        self, entry: torch.Tensor, op: str | Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """Compute ``op(entry, *args)``, which torch refused, or return None."""
        return None

    def foreach(
        self, op: str | Callable[..., Any], lists: list[Any]
    ) -> list[Any] | None:
        """Call a ``torch._foreach_*`` function on lists whose first contains an entry.

        Return None if torch itself can do it.
        """
        return None

    def in_line(self, entry: torch.Tensor, operand: Any) -> Any:
        """Convert the operand of a torch function whose first operand is ``entry``."""
        return operand

    def where(
        self, entry: torch.Tensor, condition: torch.Tensor, other: Any
    ) -> torch.Tensor:
        """Call :func:`torch.where` with the entry as the values at True."""
        return torch.where(condition, entry, other)

    def fill_where(self, entry: torch.Tensor, mask: torch.Tensor, value: Any) -> None:
        """Write a number where ``mask`` is True."""
        entry.masked_fill_(mask, value)

    def padded(self, entry: torch.Tensor, padding: float) -> torch.Tensor:
        """Return a tensor whose rows have one shape, filled up with ``padding``."""
        tensor: torch.Tensor = entry
        return tensor

    def split(
        self,
        entry: torch.Tensor,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        sizes: Sequence[torch.Size],
    ) -> Sequence[Any]:
        """Call an operation that returns a sequence: one entry for each batch size."""
        parts: Sequence[Any] = _called(entry, op, args)
        return parts

    def joined(
        self,
        group: Sequence[Any],
        dim: int,
        size: torch.Size | None,
        join: Callable[..., Any],
    ) -> Any:
        """Join entries of several tensordicts, at least one of this kind.

        Args:
            group: the entries; some may be of another kind, or plain.
            dim: the dim along which the tensordicts are joined.
            size: the batch size of the result; None if the entries are stacked and the
                result has their batch size plus one dim.
            join: :func:`torch.stack`, :func:`torch.cat` or an equivalent function.
        """
        return join(list(group), dim)

    def like(self, entry: torch.Tensor, result: Any) -> Any:
        """Convert a plain ``result`` of a function of leaves to the kind of ``entry``."""
        return result

    def plain(self, entry: torch.Tensor) -> torch.Tensor:
        """Return the plain tensor for files; it shares the memory of the entry."""
        return entry.as_subclass(torch.Tensor)

    def of_plain(self, data: torch.Tensor, size: torch.Size) -> Any:
        """Make an entry for a tensordict of batch size ``size`` from a plain tensor."""
        cls: Any = self.cls
        return data.as_subclass(cls)

    def state(self, entry: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the plain tensors for files, under names that the kind chooses.

        A name has letters, digits and underscores only.
        """
        return {"data": self.plain(entry)}

    def of_state(self, state: dict[str, torch.Tensor], size: torch.Size) -> Any:
        """Make an entry for a tensordict of batch size ``size`` from :meth:`state`.

        The tensors may be mapped: an entry that shares them reads the file when used.
        """
        return self.of_plain(state["data"], size)


def _called(
    entry: torch.Tensor, op: str | Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    if isinstance(op, str):
        return getattr(entry, op)(*args)
    return op(entry, *args)


PLAIN = EntryKind()
"""The kind of tensors without a special kind: it calls torch."""

KINDS: list[EntryKind] = []
"""The registered kinds, in the order of registration."""

CLASSES: list[type] = []
"""The classes of the kinds. The native walks call the functions here only for them."""

KINDS_OF_CLASSES: list[EntryKind] = []
"""The kind of each class in :data:`CLASSES`."""


def register_entry_kind(kind: EntryKind) -> None:
    """Register a kind: operations on tensordicts then call it for its entries.

    Raises:
        ValueError: a kind of this name or for this class is registered already.
    """
    for registered in KINDS:
        if registered.name == kind.name or (kind.cls and registered.cls is kind.cls):
            msg = (
                f"The entry kind {kind.name!r} of {kind.cls} cannot be registered: "
                f"{registered.name!r} of {registered.cls} is registered already. Use another "
                "name and another class."
            )
            raise ValueError(msg)
    KINDS.append(kind)
    if kind.cls is not None:
        _add_class(kind, kind.cls)
    if kind.late_class is not None:
        module, name = kind.late_class
        after_import(
            module, lambda: _add_class(kind, getattr(sys.modules[module], name))
        )


def _add_class(kind: EntryKind, cls: type) -> None:
    if cls not in CLASSES:
        # The kind comes first, so that a native walk in another thread finds it.
        KINDS_OF_CLASSES.append(kind)
        CLASSES.append(cls)


def kind_of(entry: object) -> EntryKind | None:
    """Return the kind of a special entry; None for a plain tensor or another value."""
    # The compiler does not always know the class of a tensor, but it knows this.
    if not takes_part(entry) and not getattr(entry, "is_nested", False):
        return None
    for kind in KINDS:
        if kind.holds(entry):
            return kind
    return None


def kind_marked(marks: Any, form: str = "{}") -> EntryKind | None:
    """Return the kind whose name is among the marks of an entry in a file.

    Args:
        marks: the marks.
        form: the format of a mark, with a place for the name.
    """
    for kind in KINDS:
        if form.format(kind.name) in marks:
            return kind
    return None


def kind_named(name: object, place: object) -> EntryKind:
    """Return the kind of a name in a file.

    Raises:
        RuntimeError: no kind of this name is registered.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    msg = (
        f"{place} is an entry of the kind {name!r}, which is not registered here: the "
        f"kinds are {sorted(kind.name for kind in KINDS)}. Import the module that "
        "registers it before you load."
    )
    raise RuntimeError(msg)


def is_shared(entry: object) -> bool:
    """Return whether all rows share the entry, which has no batch dims."""
    kind = kind_of(entry)
    return kind is not None and kind.is_shared


def is_special_class(cls: type) -> bool:
    """Return whether instances of a class belong to a kind with a class."""
    return any(issubclass(cls, known) for known in CLASSES)


def is_shared_class(cls: type) -> bool:
    """Return whether instances of a class are shared entries: see :func:`is_shared`."""
    return any(
        kind.is_shared and issubclass(cls, known)
        for kind, known in zip(KINDS_OF_CLASSES, CLASSES, strict=False)
    )


def check_plain(entry: object, key: object, place: str) -> None:
    """Raise where what keeps plain tensors and ragged ones would lose the kind of an entry.

    Args:
        entry: the entry.
        key: its key, for the message.
        place: the name of what keeps it, for the message.

    Raises:
        TypeError: it is a special entry whose rows have one shape.
    """
    kind = kind_of(entry)
    if kind is not None and rows(entry) is None:
        cls = type(entry).__name__
        raise TypeError(MSG_PLAIN.format(key=key, cls=cls, kind=kind.name, place=place))


def leading_shape(entry: torch.Tensor) -> torch.Size | None:
    """Return the dims whose first ones can be batch dims; None if any size fits."""
    kind = kind_of(entry)
    return entry.shape if kind is None else kind.leading_shape(entry)


def fits(entry: torch.Tensor, size: torch.Size) -> bool:
    """Return whether a tensor fits into a tensordict of batch size ``size``."""
    kind = kind_of(entry)
    if kind is None:
        return entry.shape[: len(size)] == size
    return kind.fits(entry, size)


def shown_shape(entry: torch.Tensor) -> list[Any]:
    """Return the shape of a tensor to print, with -1 for a ragged dim."""
    kind = kind_of(entry)
    return list(entry.shape) if kind is None else kind.shown_shape(entry)


def num_bytes(entry: torch.Tensor) -> int:
    """Return the number of bytes of all elements, and of the offsets of ragged rows."""
    return (kind_of(entry) or PLAIN).num_bytes(entry)


def is_strided(entry: torch.Tensor) -> bool:
    """Return whether a tensor is plain strided, not ragged, sparse or quantized."""
    return (
        entry.layout is torch.strided and not entry.is_quantized and rows(entry) is None
    )


def rows(entry: Any) -> list[Any] | None:
    """Return the rows of a ragged tensor; None for any other value."""
    kind = kind_of(entry)
    return None if kind is None else kind.rows(entry)


def is_like(entry: torch.Tensor, value: Any) -> bool:
    """Return whether ``value`` has the shape to be copied into the whole ``entry``."""
    kind = kind_of(entry)
    if kind is None:
        return bool(value.shape == entry.shape)
    return kind.is_like(entry, value)


def resized(entry: torch.Tensor, size: torch.Size) -> Any:
    """Return an entry that keeps its elements with ``size``, else None."""
    kind = kind_of(entry)
    return None if kind is None else kind.resized(entry, size)


def at(entry: torch.Tensor, index: Any, size: torch.Size) -> torch.Tensor:
    """Return the elements of a tensor at an index that leaves ``size``."""
    kind = kind_of(entry)
    return entry[index] if kind is None else kind.at(entry, index, size)


def has_index(entry: object) -> bool:
    """Return whether an entry is a tensor that is indexed along its first dims."""
    return isinstance(entry, torch.Tensor) and kind_of(entry) is None


def check_write(
    entry: torch.Tensor, value: Any, index: Any, size: torch.Size, k: int
) -> None:
    """Check a value before a write: see :meth:`EntryKind.check_write`."""
    kind = kind_of(entry)
    if kind is None:
        check_fits(value, entry, size, k)
    else:
        kind.check_write(entry, value, index, size, k)


def check_fits(item: Any, leaf: torch.Tensor, size: torch.Size, k: int) -> None:
    """Raise an error if ``item`` does not broadcast to the written part of ``leaf``."""
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


def write_at(entry: torch.Tensor, index: Any, value: Any) -> None:
    """Write a value into the elements of a tensor at an index."""
    kind = kind_of(entry)
    if kind is None:
        entry[index] = value
    else:
        kind.write_at(entry, index, value)


def mapped(
    entry: torch.Tensor,
    op: str | Callable[..., Any],
    args: tuple[Any, ...],
    size: torch.Size | None,
) -> Any:
    """Call a function or method on a tensor: see :meth:`EntryKind.mapped`."""
    kind = kind_of(entry)
    if kind is None:
        return _called(entry, op, args)
    return kind.mapped(entry, op, args, size)


def instead(
    entry: torch.Tensor, op: str | Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    """Compute a call that torch refused on a tensor, or return None."""
    kind = kind_of(entry)
    return None if kind is None else kind.instead(entry, op, args)


def foreach(op: str | Callable[..., Any], lists: list[Any]) -> list[Any] | None:
    """Call a ``torch._foreach_*`` function as the kinds of the leaves define it.

    Return None if all kinds leave it to torch.
    """
    for kind in dict.fromkeys(map(kind_of, lists[0])):
        results = None if kind is None else kind.foreach(op, lists)
        if results is not None:
            return results
    return None


def in_line(entry: torch.Tensor, operand: Any) -> Any:
    """Convert the operand of a torch function whose first operand is ``entry``."""
    kind = kind_of(entry)
    return operand if kind is None else kind.in_line(entry, operand)


def where(condition: torch.Tensor, entry: torch.Tensor, other: Any) -> torch.Tensor:
    """Call :func:`torch.where` as the kind of ``entry`` defines it."""
    return (kind_of(entry) or PLAIN).where(entry, condition, other)


def fill_where(entry: torch.Tensor, mask: torch.Tensor, value: Any) -> None:
    """Write a number into a tensor where ``mask`` is True."""
    (kind_of(entry) or PLAIN).fill_where(entry, mask, value)


def padded(entry: torch.Tensor, padding: float) -> torch.Tensor:
    """Return a tensor whose rows have one shape, filled up with ``padding``."""
    return (kind_of(entry) or PLAIN).padded(entry, padding)


def split(
    entry: torch.Tensor,
    op: str | Callable[..., Any],
    args: tuple[Any, ...],
    sizes: Sequence[torch.Size],
) -> Sequence[Any]:
    """Call an operation that returns a sequence: see :meth:`EntryKind.split`."""
    kind = kind_of(entry)
    if kind is None:
        parts: Sequence[Any] = _called(entry, op, args)
        return parts
    return kind.split(entry, op, args, sizes)


def joined(
    group: Sequence[Any], dim: int, size: torch.Size | None, join: Callable[..., Any]
) -> Any:
    """Join tensors by the kind of the first special one: :meth:`EntryKind.joined`."""
    for entry in group:
        kind = kind_of(entry)
        if kind is not None:
            return kind.joined(group, dim, size, join)
    return join(list(group), dim)


def results_as_sources(results: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
    """Give each plain result of a list of tensors the kind of its source."""
    converted = []
    for result, source in zip(results, sources, strict=True):
        kind = kind_of(source) if type(result) is torch.Tensor else None
        converted.append(result if kind is None else kind.like(source, result))
    return converted
