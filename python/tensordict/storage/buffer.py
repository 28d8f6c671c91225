"""The places of the leaves of a consolidated collection in its buffer."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import torch

from tensordict.primitives.special import kind_named, kind_of
from tensordict.storage.leaves import FILE_DTYPES, has_file_dtype, prepare

__all__ = [
    "Places",
    "Row",
    "Rows",
    "jagged",
    "joined",
    "lay_out",
    "parts_of",
    "problem_of_row",
    "split_name",
    "views",
]

ALIGNMENT = 8
VALUES, LENGTHS, OFFSETS = "<NJT_VALUES>", "<NJT_LENGTHS>", "<NJT_OFFSETS>"
STATE = "<ENTRY {} {}>"
"""The prefix of a part of a special entry, with the names of the kind and of the part."""

_STATE_NAME = re.compile(r"<ENTRY (\S+) (\w+)>(.*)", re.DOTALL)

MSG_NESTED = (
    "NST is not supported, please use layout=torch.jagged when building the nested "
    "tensor."
)

Row = tuple[Any, ...]
"""``(dtype, shape, start, stop, padding)``. The row of a jagged tensor's offsets also holds the
ragged dimension."""


def problem_of_row(row: object, num_bytes: int) -> str:
    """Return the reason why a row is invalid for ``num_bytes`` of data, empty if it is valid."""
    problem = f"{row!r} does not describe a leaf"
    if not isinstance(row, (list, tuple)) or len(row) < 5:
        return problem
    dtype, shape, *places = row[:5]
    if not isinstance(dtype, str) or not isinstance(shape, (list, tuple)):
        return problem
    if not all(type(number) is int for number in (*shape, *places)):
        return problem
    name = dtype.removeprefix("torch.")
    if name not in FILE_DTYPES:
        return f"{dtype} is not a dtype that can be loaded"
    start, stop, pad = places
    size = getattr(torch, name).itemsize * math.prod(shape)
    is_sound = 0 <= start <= stop - pad <= stop and stop - pad - start == size
    if not is_sound or any(length < 0 for length in shape):
        return problem
    if stop - pad > num_bytes:
        return f"its bytes end at {stop - pad}, but the data at {num_bytes}: it was cut off"
    return ""


class Rows(NamedTuple):
    """The leaves of a collection, in its order, with their places in the buffer."""

    rows: list[list[tuple[str, Row]]]
    """For each leaf its parts, mostly one: the prefix of the key, and the row."""
    parts: list[torch.Tensor]
    """The tensors to copy, one for each row."""
    num_bytes: int


def lay_out(leaves: list[torch.Tensor]) -> Rows:
    """Assign each leaf a place in the buffer.

    Raises:
        NotImplementedError: a leaf is quantized, is nested in another layout than jagged, or
            has a dtype that files cannot hold.
        RuntimeError: a leaf is sparse.
    """
    rows: list[list[tuple[str, Row]]] = []
    parts: list[torch.Tensor] = []
    start = 0
    # A view as complex128 needs a start that is a multiple of 16 bytes.
    last: tuple[int, int] | None = None
    for leaf in leaves:
        leaf_rows = []
        for prefix, part, *more in parts_of(leaf):
            item_size = part.element_size()
            if start % item_size and last is not None:
                shift = item_size - start % item_size
                group, place = last
                before, (dtype, shape, begin, stop, pad, *rest) = rows[group][place]
                rows[group][place] = (
                    before,
                    (dtype, shape, begin, stop + shift, pad + shift, *rest),
                )
                start += shift
            num_bytes = part.numel() * item_size
            pad = -num_bytes % ALIGNMENT
            stop = start + num_bytes + pad
            shape = list(part.shape)
            row = str(part.dtype), shape, start, stop, pad, *more
            leaf_rows.append((prefix, row))
            parts.append(part)
            if not rows or rows[-1] is not leaf_rows:
                rows.append(leaf_rows)
            last = len(rows) - 1, len(leaf_rows) - 1
            start = stop
    return Rows(rows, parts, start)


def parts_of(tensor: torch.Tensor) -> list[tuple[Any, ...]]:
    """Return the parts of a leaf to copy, each with its prefix."""
    kind = kind_of(tensor)
    if kind is not None and kind.in_files == "state":
        state = kind.state(tensor).items()
        return [
            (STATE.format(kind.name, name), *_plain_part(part)[1:])
            for name, part in state
        ]
    leaf: Any = tensor.detach()
    if not leaf.is_nested:
        return [_plain_part(leaf)]
    if leaf.layout != torch.jagged:
        raise NotImplementedError(MSG_NESTED)
    found: list[tuple[Any, ...]] = [(VALUES, leaf.values())]
    lengths = leaf.lengths()
    if lengths is not None:
        found.append((LENGTHS, lengths))
    found.append((OFFSETS, leaf.offsets(), leaf._ragged_idx))
    return found


def _plain_part(tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    leaf = tensor.detach()
    is_plain = leaf.layout == torch.strided and not leaf.is_quantized
    if not (is_plain and has_file_dtype(leaf)):
        prepare(leaf)  # raises the reason why the leaf cannot be saved
    return "", leaf


def split_name(name: str) -> tuple[str, str, str]:
    """Split the name of a leaf: the kind of a special entry, the name of the part, the rest.

    Kind and part are empty for other leaves.
    """
    found = _STATE_NAME.fullmatch(name)
    return ("", "", name) if found is None else (found[1], found[2], found[3])


def views(storage: torch.Tensor, rows: Rows) -> list[torch.Tensor]:
    """Return a tensor over the place of each row."""
    places = Places(storage)
    return [places.view_of(row) for group in rows.rows for _, row in group]


class Places:
    """Returns tensors over places of a buffer. They are views of the buffer."""

    def __init__(self, storage: torch.Tensor) -> None:
        self._storage = storage
        self._whole: dict[str, tuple[torch.Tensor, int] | None] = {}

    def view_of(self, row: Row) -> torch.Tensor:
        """Return the tensor over the place of a row."""
        dtype, shape, start, stop, pad = row[:5]
        as_dtype = self._whole[dtype] if dtype in self._whole else self._as(dtype)
        if as_dtype is None or start % as_dtype[1]:
            flat = self._storage[start : stop - pad].view(_dtype_of(dtype))
            return flat.view(shape)
        # One call of torch instead of three: the calls are most of the time for small leaves.
        tensor, item_size = as_dtype
        strides = []
        stride = 1
        for length in reversed(shape):
            strides.append(stride)
            stride *= max(length, 1)
        offset = tensor.storage_offset() + start // item_size
        return tensor.as_strided(shape, strides[::-1], offset)

    def _as(self, dtype: str) -> tuple[torch.Tensor, int] | None:
        """Return the buffer as a tensor of a dtype with its item size, None if not aligned."""
        storage = self._storage
        item_size = _dtype_of(dtype).itemsize
        as_dtype = None
        if storage.storage_offset() % item_size == 0:
            usable = len(storage) // item_size * item_size
            as_dtype = storage[:usable].view(_dtype_of(dtype)), item_size
        self._whole[dtype] = as_dtype
        return as_dtype


def _dtype_of(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))


def joined(rows: Rows, views: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the leaves over the buffer. Jagged and special leaves are joined from parts."""
    parts = iter(views)
    leaves = []
    for group in rows.rows:
        first = next(parts)
        kind, name, _ = split_name(group[0][0])
        if kind:
            state = {name: first}
            for prefix, _ in group[1:]:
                state[split_name(prefix)[1]] = next(parts)
            first = kind_named(kind, "a leaf").of_state(state, torch.Size([]))
        elif group[0][0]:
            rest = {prefix: next(parts) for prefix, _ in group[1:]}
            first = jagged(first, rest[OFFSETS], rest.get(LENGTHS), group[-1][1][5])
        leaves.append(first)
    return leaves


def jagged(
    values: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    ragged_dim: int,
) -> torch.Tensor:
    """Return a jagged tensor that shares the memory of its parts."""
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, lengths, jagged_dim=ragged_dim
    )
