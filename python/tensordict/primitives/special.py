"""Special entries: what a collection asks an entry that is no plain tensor.

What stands at a key is a plain tensor, a collection, or a special entry: a tensor of a class
that has an :class:`EntryKind`, which says what an index, a join or a write make of it. The
functions here do for a plain tensor what torch does, and ask the kind of a special entry.
Code that meets entries calls them; it does not ask which class an entry is of.

A kind is a class in a file of ``entries/`` and a line in the table there. Users register
one of their own with :func:`register_entry_kind`.
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

    late_class: tuple[str, str] | None = None
    """The module and the name of the class, where something else imports that later."""

    is_shared: bool = False
    """True if all elements of a collection share an entry, which has no batch dims."""

    msg_stack: str | None = None
    """The message where torch cannot stack entries, with a place for the key."""

    in_files: Literal["tensor", "state", "refused"] = "state"
    """The form of an entry in directories, archives and consolidated files.

    It is a tensor there, or the tensors of its :meth:`state`, or refused.
    """

    def holds(self, entry: object) -> bool:
        """Return whether an entry is of the kind."""
        return self.cls is not None and isinstance(entry, self.cls)

    def leading_shape(self, entry: torch.Tensor) -> torch.Size | None:
        """Give the dims of which the first may be batch dims; None where any fit."""
        return entry.shape

    def fits(self, entry: torch.Tensor, size: torch.Size) -> bool:
        """Return whether an entry may be one of a collection of batch size ``size``."""
        return entry.shape[: len(size)] == size

    def shown_shape(self, entry: torch.Tensor) -> list[Any]:
        """Give the shape as it is shown, with -1 for a dim of several lengths."""
        return list(entry.shape)

    def num_bytes(self, entry: torch.Tensor) -> int:
        """Give the number of bytes of all elements."""
        count: int = entry.numel() * entry.element_size()
        return count

    def rows(self, entry: torch.Tensor) -> list[Any] | None:
        """Give the rows, views of the entry; None where they have one shape."""
        return None

    def is_like(self, entry: torch.Tensor, value: Any) -> bool:
        """Return whether a tensor can be copied into all of the entry as it is."""
        return bool(value.shape == entry.shape)

    def resized(self, entry: torch.Tensor, size: torch.Size) -> Any:
        """Give the entry of a collection of batch size ``size``, whose elements it keeps.

        None where the elements of an entry are those of its collection, so that it
        changes when they do.
        """
        return None

    def at(self, entry: torch.Tensor, index: Any, size: torch.Size) -> Any:
        """Take the elements at an index of the batch dims, of which ``size`` is left."""
        return entry[index]

    def check_write(
        self,
        entry: torch.Tensor,
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

    def write_at(self, entry: torch.Tensor, index: Any, value: Any) -> None:
        """Write a value that was checked into the elements at an index."""
        entry[index] = value

    def mapped(
        self,
        entry: torch.Tensor,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        size: torch.Size | None,
    ) -> Any:
        """Call a function or a method with an entry, as :func:`tensordict._rust.map_leaves`.

        ``size`` is the batch size that the result gets; None where it is the old one.
        Where it gets another, an entry that is :meth:`resized` stays as it is: the
        native walks ask that alone.
        """
        whole = None if size is None else self.resized(entry, size)
        return _called(entry, op, args) if whole is None else whole

    def instead(
        self, entry: torch.Tensor, op: str | Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """Do what torch refused: ``op(entry, *args)``. None where the kind cannot either."""
        return None

    def foreach(
        self, op: str | Callable[..., Any], lists: list[Any]
    ) -> list[Any] | None:
        """Call a ``torch._foreach_*`` function with lists of which the first has an entry.

        None where torch does it.
        """
        return None

    def in_line(self, entry: torch.Tensor, operand: Any) -> Any:
        """Give the operand of a function of torch that has ``entry`` as the first one."""
        return operand

    def where(self, entry: torch.Tensor, condition: torch.Tensor, other: Any) -> Any:
        """Call :func:`torch.where` with the entry as the values where the condition holds."""
        return torch.where(condition, entry, other)

    def fill_where(self, entry: torch.Tensor, mask: torch.Tensor, value: Any) -> None:
        """Write a number where a mask holds."""
        entry.masked_fill_(mask, value)

    def padded(self, entry: torch.Tensor, padding: float) -> torch.Tensor:
        """Give a tensor whose rows have one shape, filled up with ``padding``."""
        whole: torch.Tensor = entry
        return whole

    def split(
        self,
        entry: torch.Tensor,
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
            dim: the dim along which the tensordicts are joined.
            size: the batch size of the result; None where the entries are stacked and
                it is theirs, with a dim more.
            join: :func:`torch.stack` or :func:`torch.cat`, or what does the same.
        """
        return join(list(group), dim)

    def like(self, entry: torch.Tensor, result: Any) -> Any:
        """Give a plain ``result`` of a function of several leaves the kind of its source."""
        return result

    def plain(self, entry: torch.Tensor) -> torch.Tensor:
        """Give the plain tensor that a format of files keeps, which shares the memory."""
        return entry.as_subclass(torch.Tensor)

    def of_plain(self, data: torch.Tensor, size: torch.Size) -> Any:
        """Make the entry of a collection of batch size ``size`` of its plain tensor."""
        cls: Any = self.cls
        return data.as_subclass(cls)

    def state(self, entry: torch.Tensor) -> dict[str, torch.Tensor]:
        """Give the plain tensors that files keep of an entry, by names of the kind's own.

        A name has letters, digits and underscores.
        """
        return {"data": self.plain(entry)}

    def of_state(self, state: dict[str, torch.Tensor], size: torch.Size) -> Any:
        """Make the entry of a collection of batch size ``size`` of :meth:`state`.

        The tensors may be mapped: an entry that shares them reads a file when it is used.
        """
        return self.of_plain(state["data"], size)


def _called(
    entry: torch.Tensor, op: str | Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    if isinstance(op, str):
        return getattr(entry, op)(*args)
    return op(entry, *args)


PLAIN = EntryKind()
"""A kind that does what torch does, for tensors that have none."""

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
        _add_class(kind, kind.cls)
    if kind.late_class is not None:
        module, name = kind.late_class
        after_import(
            module, lambda: _add_class(kind, getattr(sys.modules[module], name))
        )


def _add_class(kind: EntryKind, cls: type) -> None:
    if cls not in CLASSES:
        # A native walk that runs meanwhile finds a class after its kind.
        KINDS_OF_CLASSES.append(kind)
        CLASSES.append(cls)


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


def kind_named(name: object, place: object) -> EntryKind:
    """Return the kind of a name in a file.

    Raises:
        RuntimeError: no kind of that name is registered.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    msg = (
        f"{place} is an entry of the kind {name!r}, which is not registered here: the "
        f"kinds are {sorted(kind.name for kind in KINDS)}. Import what registers it "
        "before you load."
    )
    raise RuntimeError(msg)


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


def leading_shape(entry: torch.Tensor) -> torch.Size | None:
    """Give the dims of which the first may be batch dims; None where any fit."""
    kind = kind_of(entry)
    return entry.shape if kind is None else kind.leading_shape(entry)


def fits(entry: torch.Tensor, size: torch.Size) -> bool:
    """Return whether a tensor may be an entry of a collection of batch size ``size``."""
    kind = kind_of(entry)
    if kind is None:
        return entry.shape[: len(size)] == size
    return kind.fits(entry, size)


def shown_shape(entry: torch.Tensor) -> list[Any]:
    """Give the shape of a tensor as it is shown, with -1 for a dim of several lengths."""
    kind = kind_of(entry)
    return list(entry.shape) if kind is None else kind.shown_shape(entry)


def num_bytes(entry: torch.Tensor) -> int:
    """Give the number of bytes of all elements of a tensor, and of what tells rows apart."""
    return (kind_of(entry) or PLAIN).num_bytes(entry)


def is_strided(entry: torch.Tensor) -> bool:
    """Return whether a tensor is strides over memory: not ragged, sparse or quantized."""
    return (
        entry.layout is torch.strided and not entry.is_quantized and rows(entry) is None
    )


def rows(entry: Any) -> list[Any] | None:
    """Give the rows of a tensor whose rows differ in shape; None for any other."""
    kind = kind_of(entry)
    return None if kind is None else kind.rows(entry)


def is_like(entry: torch.Tensor, value: Any) -> bool:
    """Return whether a tensor can be copied into all of another one as it is."""
    kind = kind_of(entry)
    if kind is None:
        return bool(value.shape == entry.shape)
    return kind.is_like(entry, value)


def resized(entry: torch.Tensor, size: torch.Size) -> Any:
    """Give an entry that keeps its elements to a batch size; None where it has not."""
    kind = kind_of(entry)
    return None if kind is None else kind.resized(entry, size)


def at(entry: torch.Tensor, index: Any, size: torch.Size) -> Any:
    """Take the elements of a tensor at an index, of which the batch size ``size`` is left."""
    kind = kind_of(entry)
    return entry[index] if kind is None else kind.at(entry, index, size)


def has_index(entry: object) -> bool:
    """Return whether an entry is a tensor of which an index means the first dims."""
    return isinstance(entry, torch.Tensor) and kind_of(entry) is None


def check_write(
    entry: torch.Tensor, value: Any, index: Any, size: torch.Size, k: int
) -> None:
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
    """Call a function or a method with a tensor: :meth:`EntryKind.mapped`."""
    kind = kind_of(entry)
    if kind is None:
        return _called(entry, op, args)
    return kind.mapped(entry, op, args, size)


def instead(
    entry: torch.Tensor, op: str | Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    """Do what torch refused with a tensor; None where nothing else does it."""
    kind = kind_of(entry)
    return None if kind is None else kind.instead(entry, op, args)


def foreach(op: str | Callable[..., Any], lists: list[Any]) -> list[Any] | None:
    """Call a ``torch._foreach_*`` function as the kinds of leaves do it.

    None where all of them leave it to torch.
    """
    for kind in dict.fromkeys(map(kind_of, lists[0])):
        made = None if kind is None else kind.foreach(op, lists)
        if made is not None:
            return made
    return None


def in_line(entry: torch.Tensor, operand: Any) -> Any:
    """Give the operand of a function of torch that has ``entry`` as the first one."""
    kind = kind_of(entry)
    return operand if kind is None else kind.in_line(entry, operand)


def where(condition: torch.Tensor, entry: torch.Tensor, other: Any) -> Any:
    """Call :func:`torch.where`, as the kind of ``entry`` does it."""
    return (kind_of(entry) or PLAIN).where(entry, condition, other)


def fill_where(entry: torch.Tensor, mask: torch.Tensor, value: Any) -> None:
    """Write a number into a tensor where a mask holds."""
    (kind_of(entry) or PLAIN).fill_where(entry, mask, value)


def padded(entry: torch.Tensor, padding: float) -> torch.Tensor:
    """Give a tensor whose rows have one shape, filled up with ``padding``."""
    return (kind_of(entry) or PLAIN).padded(entry, padding)


def split(
    entry: torch.Tensor,
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
