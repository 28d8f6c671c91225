"""Conversion of collections to the levels of a safetensors file, and back.

A :class:`Writer` collects tensors under their names. A :class:`Reader` holds the tensors of a file.
Each class of collection defines two methods:

``_to_level(writer, path)``
    returns its level, with the names that ``writer`` gives to its tensors.
``_from_level(level, reader, path)``, a class method
    returns the collection of a level. ``reader`` holds the tensors.

:mod:`tensordict.storage.layouts.safetensors` describes the fields of a level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch

from tensordict import _rust
from tensordict.primitives import registry
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import fits, is_strided, kind_marked, kind_of, rows
from tensordict.storage import extra_metadata

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Reader",
    "Stacked",
    "Writer",
    "count_bytes",
    "dense_from_level",
    "dense_to_level",
    "stack_to_level",
]

MSG_VALUE = (
    "Cannot save the non-tensor value at {path} as safetensors: {type} is not a JSON "
    "value (str, int, float, bool, None, list or dict)."
)
MSG_DENSE = (
    "Cannot save the tensor at {path} as safetensors: only dense tensors are supported, "
    "got layout {layout}. Make it dense first: td.to_padded_tensor() pads nested tensors, "
    "tensor.to_dense() converts sparse ones."
)
MSG_COLLISION = "Two keys of the tensordict have the safetensors name {!r}."
MAX_LEVELS = 180
"""The depth to which collections may be nested. Each adds three levels of JSON to the description,
and four calls to the stack of the reader."""

MSG_LEVELS = (
    f"The tensordict is nested more than {MAX_LEVELS} times, which cannot be saved as "
    "safetensors. Save it to a directory instead."
)
MSG_ALONE = (
    "Cannot save a non-tensor value as safetensors: put it in a tensordict first."
)


class Stacked:
    """The tensors of a lazy stack's members. They are stacked while they are written.

    Args:
        parts: the tensors, all of one shape.
        dim: the stack dimension.
        like: a leaf with the dtype and the shape of the stacked tensor.
    """

    def __init__(self, parts: list[torch.Tensor], dim: int, like: Leaf) -> None:
        self.parts: list[torch.Tensor] = [
            part.to(like.dtype).resolve_conj().resolve_neg().contiguous()
            for part in parts
        ]
        self.dim = dim
        self.shape: torch.Size = like.shape
        self.dtype: torch.dtype = like.dtype
        self._item_bytes: int = like.element_size()

    @property
    def num_chunks(self) -> int:
        """The number of contiguous pieces of each tensor in the stack."""
        return self.shape[: self.dim].numel()

    def numel(self) -> int:
        """Return the number of items of the stack."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Return the bytes of an item."""
        return self._item_bytes


Leaf: TypeAlias = "torch.Tensor | Stacked"


def count_bytes(leaf: Leaf) -> int:
    """Return the bytes of a leaf in a file."""
    return leaf.numel() * leaf.element_size()


class Writer:
    """Collects the tensors of a save under their names.

    Args:
        streams: whether to stack even small lazy stacks while they are written.
    """

    takes_columns: ClassVar[bool] = False
    """Whether the format can hold one value for each element of a batch."""

    def __init__(self, *, streams: bool = False) -> None:
        self.tensors: dict[str, Leaf] = {}
        self.streams = streams

    def tensor(self, value: torch.Tensor, path: tuple[str, ...]) -> dict[str, Any]:
        """Collect a tensor under its name; return its entry in the level.

        Raises:
            TypeError: the tensor is not dense.
            ValueError: another tensor has the same name.
        """
        if not is_strided(value):
            layout = str(value.layout)
            if rows(value) is not None:
                layout += " (nested)"
            if value.is_quantized:
                layout += f" (quantized, {value.dtype})"
            raise TypeError(MSG_DENSE.format(path=path, layout=layout))
        name = ".".join(path)
        kind = kind_of(value)
        if kind is not None:
            self.take(name, kind.plain(value).detach())
            return {"tensor": name, kind.name: True}
        self.take(name, value.detach())
        return {"tensor": name}

    def take(self, name: str, leaf: Leaf) -> None:
        """Collect a leaf under a name of the format.

        Raises:
            ValueError: another leaf has this name, or the format reserves it.
        """
        if name in self.tensors:
            raise ValueError(MSG_COLLISION.format(name))
        if name == "__metadata__":
            raise ValueError(
                "A tensor cannot have the safetensors name '__metadata__', which the format "
                "reserves: rename the entry."
            )
        self.tensors[name] = leaf

    def value(self, value: object, path: tuple[str, ...], kind: str) -> dict[str, Any]:
        """Return the entry of a non-tensor value of the class ``kind``."""
        try:
            plain, is_same = extra_metadata.as_plain(value)
        except TypeError:
            shown = type(value).__name__
            raise TypeError(MSG_VALUE.format(path=path, type=shown)) from None
        entry: dict[str, Any] = {"non_tensor": plain}
        if not is_same:
            entry["value"] = extra_metadata.tagged(value)
        if kind != "NonTensorData":
            entry["kind"] = kind
        return entry

    def entries(self, values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Return the entries of a level.

        Raises:
            RuntimeError: collections are nested too deep.
        """
        if len(path) > MAX_LEVELS:
            raise RuntimeError(MSG_LEVELS)
        found = {}
        for key, value in values.items():
            inner = (*path, key)
            if not isinstance(value, CollectionProtocol):
                found[key] = self.tensor(value, inner)
                continue
            level: Any = value
            found[key] = level._to_entry(self, inner)
        return found


def dense_to_level(
    td: CollectionProtocol, writer: Writer, path: tuple[str, ...]
) -> dict[str, Any]:
    """Return the level of a dense collection."""
    level: dict[str, Any] = {
        "batch_size": list(td.batch_size),
        "names": list(td.names) if td._has_names() else None,
    }
    cls = type(td)
    if cls is not registry.dense_root() and registry.is_dense_class(cls):
        level["subclass"] = [registry.class_text(cls), registry.type_text(cls)]
    level["keys"] = writer.entries(td._entries(), path)
    return level


MSG_RAGGED = (
    "A safetensors file cannot hold ragged entries: save to a directory or to an archive "
    "(`.tdz`), or pad them."
)
STREAMED_FROM = 16 << 20
"""Lazy stacks of fewer bytes are stacked in memory, which is faster."""


def stack_to_level(stack: Any, writer: Writer, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the level of a lazy stack: the level of the dense tensordict of its entries.

    The entries of large stacks are stacked while they are written.
    """
    parts_of_name = _parts_of_members(stack, writer, path)
    if parts_of_name is None:
        return _as_dense(stack)._to_level(writer, path)
    # Stacking on the meta device gives the names and shapes, and raises if entries cannot
    # be stacked.
    empty = Writer()
    level = _as_dense(stack.to("meta"))._to_level(empty, path)
    for name, like in empty.tensors.items():
        parts = parts_of_name[name]
        if like.numel() == 0:
            writer.take(name, torch.empty(like.shape, dtype=like.dtype))
        elif len(parts) == 1:
            writer.take(name, parts[0].reshape(like.shape))
        else:
            writer.take(name, Stacked(parts, stack.stack_dim, like))
    return level


def _as_dense(stack: Any) -> Any:
    """Return a lazy stack with its entries stacked.

    Raises:
        RuntimeError: an entry is ragged, which the format cannot hold.
    """
    try:
        return stack._as_dense()
    except RuntimeError as error:
        error.args = (f"{error} {MSG_RAGGED}",)
        raise


def _parts_of_members(
    stack: Any, writer: Writer, path: tuple[str, ...]
) -> dict[str, list[torch.Tensor]] | None:
    """Return the tensors of the members by name; None if the stack is stacked in memory.

    It is stacked in memory if it is small, if a leaf is special or sparse, and if it contains
    another lazy stack, unless both stack dimensions are 0.
    """
    leaves = list(_rust.leaves(stack))
    num_bytes = 0
    for leaf in leaves:
        if kind_of(leaf) or leaf.is_sparse:
            return None
        num_bytes += count_bytes(leaf)
    if num_bytes < STREAMED_FROM and not writer.streams:
        return None
    found: dict[str, list[torch.Tensor]] = {}
    for member in stack.tensordicts:
        inner = Writer(streams=True)
        member._to_level(inner, path)
        for name, leaf in inner.tensors.items():
            if not isinstance(leaf, Stacked):
                found.setdefault(name, []).append(leaf)
            elif leaf.dim == stack.stack_dim == 0:
                found.setdefault(name, []).extend(leaf.parts)
            else:
                return None
    return found


class Reader:
    """Passes the tensors of a file to the collections of its levels.

    Args:
        tensors: the tensors by name.
        path: the file, for messages.
        requested: the class whose method the caller called.
    """

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        path: str | Path,
        requested: type | None = None,
    ) -> None:
        self.tensors = tensors
        self.path = path
        self.requested = requested
        self.taken: set[str] = set()

    def collection(
        self, level: Any, path: tuple[str, ...], is_part: bool = False
    ) -> Any:
        """Return the collection of a level. ``is_part`` says that it is part of a lazy stack."""
        try:
            return self._class(level, is_part)._from_level(level, self, path, is_part)
        except (AttributeError, TypeError, KeyError, IndexError) as error:
            raise self.damaged(path, f"its level is invalid ({error!r})") from error

    def _class(self, level: dict[str, Any], is_part: bool) -> Any:
        if "class" not in level and "stack_dim" in level and not is_part:
            text = "tensordict:LazyStackedTensorDict"
            return registry.find_class(None, text, None, self.path)
        if "subclass" in level:
            class_text, type_text = level["subclass"]
            return registry.find_class(self.requested, class_text, type_text, self.path)
        if "class" not in level:
            return registry.dense_root()
        text = level["class"]
        try:
            return registry.find_class(self.requested, None, text, self.path)
        except RuntimeError:
            raise RuntimeError(
                f"Could not find the tensorclass {text} saved in {self.path}. Import the "
                "module that defines it before you load the file."
            ) from None

    def entries(
        self, level: dict[str, Any], path: tuple[str, ...], is_part: bool = False
    ) -> dict[str, Any]:
        """Return the entries of a level."""
        size = torch.Size(level["batch_size"])
        found: dict[str, Any] = {}
        for key, entry in level["keys"].items():
            inner = (*path, key)
            if "td" in entry:
                value = self.collection(entry["td"], inner, is_part)
            elif "tensor" in entry:
                value = self._tensor(entry["tensor"], inner)
                kind = kind_marked({mark for mark, is_set in entry.items() if is_set})
                if kind is not None:
                    value = kind.of_plain(value, size)
            else:
                value = self._value(entry, size)
            if not fits(value, size):
                raise self.damaged(
                    inner, f"its shape {value.shape} does not begin with {size}"
                )
            found[key] = value
        return found

    def _tensor(self, name: str, path: tuple[str, ...]) -> torch.Tensor:
        if name not in self.tensors:
            raise self.damaged(path, f"the file has no tensor {name!r}")
        self.taken.add(name)
        return self.tensors[name]

    def _value(self, entry: dict[str, Any], size: torch.Size) -> Any:
        data = entry["non_tensor"]
        if "value" in entry:
            data = extra_metadata.untagged(entry["value"])
        text = f"tensordict:{entry.get('kind', 'NonTensorData')}"
        cls: Any = registry.find_class(None, text, None, self.path)
        return cls._of([data], 0, size)

    def damaged(self, path: tuple[str, ...], reason: str) -> RuntimeError:
        """Return an error that names the file and the entry."""
        shown = repr(path[0] if len(path) == 1 else path)
        of = f"the entry {shown}: " if path else ""
        return RuntimeError(f"'{self.path}' is damaged: {of}{reason}.")


def dense_from_level(
    cls: type,
    level: dict[str, Any],
    reader: Reader,
    path: tuple[str, ...],
    is_part: bool,
) -> CollectionProtocol:
    """Return the dense collection of a level."""
    names = level.get("names")
    entries = reader.entries(level, path, is_part)
    size = torch.Size(level["batch_size"])
    if names is not None and (len(names) != len(size) or not any(names)):
        names = None
    return _rust.new(cls, entries, size, None, names and list(names))
