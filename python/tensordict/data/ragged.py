"""The forms of batches whose rows differ in shape."""

from __future__ import annotations

import functools
import numbers
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import torch

from tensordict import _rust
from tensordict.containers.lazy.column_stack import ColumnStack
from tensordict.containers.lazy.ragged_column import jagged_alike
from tensordict.containers.lazy.ragged_forms import (
    in_form,
    is_stack_of_rows,
    ragged_entries,
    row_shapes,
)
from tensordict.primitives.checks import inside, is_branch, is_tensorclass

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tensordict.containers.collection import TensorCollection
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Ragged", "RaggedForm"]

Ragged = Literal["stack", "padded", "jagged"]

MSG_FORM = "ragged must be 'stack', 'padded' or 'jagged', got {!r}."
MSG_PADDING = "padding_value must be a number, got {!r}."
MSG_UNPADDED = "mask_key= is for masks of padded entries, and ragged is {!r}: pass ragged='padded'."
MSG_NO_RAGGED = (
    "mask_key={!r} is for the entry whose rows differ in shape, and there is none. Name "
    "the entry of the mask: mask_key={{entry: {!r}}}."
)
MSG_TAKEN = "There is an entry {!r} already: choose another mask_key."
MSG_TWICE = "Two masks would get the key {!r}: give each entry another one."
MSG_FIELD = (
    "A mask would become the entry {!r}, and {} has no field {!r}. Declare the field, as "
    "'{}: torch.Tensor | None = None', or pass the key of another field as mask_key=."
)
MSG_NO_ENTRIES = (
    "A mask would become the entry {!r}, but the field {!r} of {} holds no tensordict, so it "
    "has no entries. Pass a field for each mask, as mask_key={!r}, and declare the fields, as "
    "'{}: torch.Tensor | None = None'."
)
MSG_INDEX_DIMS = (
    "Jagged rows have one batch dim, but the index has the shape {}: flatten it, or pass "
    "ragged='padded'."
)
MSG_NO_DIMS = (
    "The rows of {!r} are scalars, which are never padded, so they have no mask."
)

Path = tuple[str, ...]


class _Mask(NamedTuple):
    """The mask of a padded entry: its key, and its number of dimensions in a row."""

    entry: Path
    key: Path
    num_dims: int


class RaggedForm:
    """A form of rows that differ in shape: a lazy stack, or padded or jagged tensors.

    Args:
        sources: the collections with the rows of batches.
        ragged: the form, as in :func:`~tensordict.data.gather`.
        padding_value: the value of padding, for ``"padded"``.
        mask_key: the key for masks of padded entries.

    Raises:
        ValueError: there is no such form, a collection is a lazy stack along another
            dim than the first, or the key of a mask cannot be set.
        TypeError: the padding value is not a number.
        KeyError: there is no entry for a mask.
    """

    def __init__(
        self,
        sources: Sequence[CollectionProtocol],
        ragged: str | None,
        padding_value: float = 0.0,
        mask_key: object = None,
    ) -> None:
        if mask_key is not None and ragged != "padded":
            raise ValueError(MSG_UNPADDED.format(ragged))
        if ragged not in ("stack", "padded", "jagged"):
            raise ValueError(MSG_FORM.format(ragged))
        if not isinstance(padding_value, (numbers.Number, np.generic, torch.Tensor)):
            raise TypeError(MSG_PADDING.format(padding_value))
        sources = [_described(source) for source in sources]
        for source in sources:
            is_stack_of_rows(inside(source))
        self.ragged: str = ragged
        self.padding_value: Any = padding_value
        self._sources = sources
        self._masks: list[_Mask] = []
        if mask_key is not None:
            self._masks = _planned_masks(sources, self._entries, mask_key)

    @functools.cached_property
    def _entries(self) -> dict[Path, int]:
        """The ragged entries, each with the last differing dimension of a row."""
        found: dict[Path, int] = {}
        for source in self._sources:
            for entry, num_dims in ragged_entries(source).items():
                found[entry] = max(num_dims, found.get(entry, 0))
        return found

    def taken(self, source: CollectionProtocol, indices: object) -> Any:
        """Copy rows to a batch in this form.

        Raises:
            ValueError: the index has several dimensions, and the form is ``"jagged"``.
        """
        if isinstance(indices, (torch.Tensor, np.ndarray)) and indices.ndim > 1:
            return self._taken_in_dims(source, torch.as_tensor(indices))
        batch = self._taken(source, indices)
        if self._masks:
            source = _described(source)
            index: Any = indices
            places = torch.arange(source.batch_size[0])[index]
        for mask in self._masks:
            shapes = row_shapes(source, mask.entry, places)
            batch.set(mask.key, _mask(shapes, mask.num_dims))
        return batch

    def _taken_in_dims(self, source: CollectionProtocol, indices: torch.Tensor) -> Any:
        """Copy the rows of an index with several dimensions."""
        if self.ragged == "jagged":
            raise ValueError(MSG_INDEX_DIMS.format(tuple(indices.shape)))
        if self.ragged == "stack":
            return source[indices].clone()
        return self.taken(source, indices.reshape(-1)).reshape(*indices.shape)

    def _taken(self, source: CollectionProtocol, indices: object) -> Any:
        inner = inside(source)
        if is_remote(source):
            # The rows are downloaded together, and then formed in memory.
            index: Any = indices
            places = torch.arange(source.batch_size[0])[index]
            inner = cast("Any", inner)._picked(places.numpy())
            cls: Any = type(source)
            is_plain = inside(source) is source
            source = inner if is_plain else cls._from_tensordict(inner)
            indices = slice(None)
        if isinstance(inner, ColumnStack):
            if isinstance(indices, slice):
                indices = range(source.batch_size[0])[indices]
            padding = self.padding_value
            rows = inner.gather_rows(indices, self.ragged, padding_value=padding)
            cls = type(source)
            return rows if inner is source else cls._from_tensordict(rows)
        rows = in_form(source[indices].clone(), self.ragged, self.padding_value)
        return self._all_jagged(rows) if self.ragged == "jagged" else rows

    def _all_jagged(self, batch: TensorCollection) -> TensorCollection:
        """Make all ragged entries jagged, also if the rows of this batch have one shape."""
        is_alike = any(
            isinstance(leaf, torch.Tensor) and not leaf.is_nested and leaf.ndim > 1
            for leaf in batch.values(True, True)
        )
        for entry, dim in self._entries.items() if is_alike else ():
            leaf = batch.get(entry)
            if not leaf.is_nested:
                batch.set(entry, jagged_alike(leaf, dim))
        return batch


def _template_of(source: Any) -> CollectionProtocol:
    """Return the template of a remote collection; any other collection itself."""
    # The module is imported when the first remote collection is made.
    remote = sys.modules.get("tensordict.containers.remote.collection")
    is_remote = remote is not None and isinstance(source, remote.RemoteTensorDict)
    return source._template if is_remote else source


def is_remote(source: CollectionProtocol) -> bool:
    """Return whether the rows of a collection are in an object store."""
    inner = inside(source)
    return _template_of(inner) is not inner


def _described(source: CollectionProtocol) -> Any:
    """Return the template of the rows, of the class of ``source``."""
    inner = inside(source)
    template = _template_of(inner)
    if template is inner:
        return source
    cls: Any = type(source)
    return template if inner is source else cls._from_tensordict(template)


# Masks --------------------------------------------------------------------------------


def _mask(shapes: torch.Tensor, num_dims: int) -> torch.Tensor:
    """Return the mask of padded rows: True where a row has an element."""
    count = len(shapes)
    if not count:
        return torch.zeros(0, *[0] * num_dims, dtype=torch.bool)
    most = shapes.amax(0).tolist()
    mask = torch.ones(count, *most[:num_dims], dtype=torch.bool)
    for dim in range(num_dims):
        steps = torch.arange(most[dim])
        is_there = steps < shapes[:, dim, None]
        sizes = [1] * num_dims
        sizes[dim] = most[dim]
        mask &= is_there.view(count, *sizes)
    return mask


def _planned_masks(
    sources: Sequence[CollectionProtocol], found: dict[Path, int], mask_key: object
) -> list[_Mask]:
    """Return the masks: their entries, their keys and their numbers of dimensions."""
    if isinstance(mask_key, Mapping):
        wanted = {_path(entry): _path(key) for entry, key in mask_key.items()}
    elif len(found) == 1:
        wanted = dict.fromkeys(found, _path(mask_key))
    else:
        wanted = {entry: (*_path(mask_key), *entry) for entry in found}
        if not wanted:
            raise ValueError(MSG_NO_RAGGED.format(mask_key, mask_key))
    masks = []
    for entry, key in wanted.items():
        num_dims = found.get(entry) or min(1, row_shapes(sources[0], entry).shape[1])
        if not num_dims:
            raise ValueError(MSG_NO_DIMS.format(_shown(entry)))
        if list(wanted.values()).count(key) > 1:
            raise ValueError(MSG_TWICE.format(_shown(key)))
        for source in sources:
            _check_place(source, key, wanted)
        masks.append(_Mask(entry, key, num_dims))
    return masks


def _check_place(td: CollectionProtocol, key: Path, entries: Collection[Path]) -> None:
    """Refuse a key that exists, or for which a tensorclass has no field.

    Args:
        td: the rows.
        key: the key of a mask.
        entries: the entries that get masks.

    Raises:
        ValueError: the key cannot be set.
    """
    for at, part in enumerate(key):
        cls: Any = type(td)
        if is_tensorclass(td) and part not in cls.__expected_keys__:
            name = cls.__name__
            raise ValueError(MSG_FIELD.format(_shown(key), name, part, part))
        inner = inside(td)
        if part not in inner.keys():  # noqa: SIM118 # it iterates over rows
            if is_tensorclass(td) and at < len(key) - 1:
                fields = {_shown(entry): f"{entry[-1]}_mask" for entry in entries}
                name, example = cls.__name__, f"{next(iter(entries))[-1]}_mask"
                shown = _shown(key)
                message = MSG_NO_ENTRIES.format(shown, part, name, fields, example)
                raise ValueError(message)
            return
        td = inner._sample_entry(part)
        if not is_branch(td) or at == len(key) - 1:
            raise ValueError(MSG_TAKEN.format(_shown(key[: at + 1])))


def _path(key: object) -> Path:
    path = _rust.unravel_key_to_tuple(key)
    if not path:
        msg = f"A key must be a string or a tuple of strings, got {key!r}."
        raise ValueError(msg)
    return tuple(path)


def _shown(path: Path) -> Any:
    return path[0] if len(path) == 1 else path
