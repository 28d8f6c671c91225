"""Helpers for tensordicts: keys, shapes, duplicates, settings, timing.

Most names are defined elsewhere and are offered here at their established import path.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, List, NamedTuple, Self, Tuple, Union  # noqa: UP035

import torch
from torch.nn.parameter import Buffer

from tensordict import _rust
from tensordict._deprecated_utils import UTILS
from tensordict._established import established_names
from tensordict._nestedkey import KEY_SEPARATOR, NestedKey
from tensordict._rust import unravel_key, unravel_key_list, unravel_key_to_tuple
from tensordict._utils_key_json import (
    _decode_key_from_filesystem,
    _encode_key_for_filesystem,
)
from tensordict.containers.nontensor.write_through import LinkedList
from tensordict.ops.display import get_printoptions, set_printoptions
from tensordict.primitives import special
from tensordict.primitives.checks import (
    _is_non_tensor,
    _is_tensorclass,
    is_bool,
    is_floating,
    is_inexact,
    is_integer,
    is_non_tensor,
    is_tensorclass,
)
from tensordict.primitives.dim_numbers import from_front
from tensordict.primitives.errors import MSG_BAD_KEY, MSG_LOCKED, KeyMessageError
from tensordict.primitives.options import (
    capture_non_tensor_stack,
    lazy_legacy,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_lazy_legacy,
    set_list_to_stack,
)
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.future import TensorDictFuture
from tensordict.storage.listing import print_directory_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tensordict.containers.collection import TensorCollection
    from tensordict.primitives.protocol import BatchIndex

__all__ = [
    "KEY_SEPARATOR",
    "Buffer",
    "DeviceType",
    "IndexType",
    "LinkedList",
    "NestedKey",
    "TensorDictFuture",
    "capture_non_tensor_stack",
    "expand_as_right",
    "expand_right",
    "get_printoptions",
    "is_bool",
    "is_floating",
    "is_inexact",
    "is_integer",
    "is_non_tensor",
    "is_tensorclass",
    "isin",
    "lazy_legacy",
    "list_to_stack",
    "logger",
    "parse_tensor_dict_string",
    "print_directory_tree",
    "remove_duplicates",
    "set_capture_non_tensor_stack",
    "set_lazy_legacy",
    "set_list_to_stack",
    "set_printoptions",
    "timeit",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]

# Unions of the typing module: clients compare them and read their arguments.
DeviceType = Union[torch.device, str, int]  # noqa: UP007
"""The type of a device argument: ``torch.device("cuda")``, ``"cuda:0"`` or ``0``."""
IndexType = Union[  # noqa: UP007
    None, int, slice, str, torch.Tensor, List[Any], Tuple[Any, ...]  # noqa: UP006
]
"""The type of an index of a tensordict: a key, or an index of its batch dimensions."""

_unravel_key_to_tuple = unravel_key_to_tuple
_LOCK_ERROR = MSG_LOCKED
_GENERIC_NESTED_ERR = MSG_BAD_KEY

LOGGING_LEVEL = os.environ.get("TD_LOGGING_LEVEL", "INFO")
logger: logging.Logger = logging.getLogger("tensordict")
"""The logger of the package; ``TD_LOGGING_LEVEL`` sets its level."""
logger.setLevel(LOGGING_LEVEL.upper())
logger.propagate = False
if not logger.handlers:
    _handler = logging.StreamHandler(stream=sys.stderr)
    _handler.setFormatter(
        logging.Formatter("%(asctime)s [%(name)s][%(levelname)s] %(message)s")
    )
    logger.addHandler(_handler)

MSG_EXPAND_DIMS = (
    "expand_as_right requires the destination tensor to have at least as many "
    "dimensions as the input tensor, got tensor.ndimension()={} and "
    "dest.ndimension()={}"
)
MSG_EXPAND_SHAPE = (
    "tensor shape is incompatible with dest shape, got: tensor.shape={}, dest={}"
)
MSG_BAD_DIM = "The specified dimension '{}' is invalid for {} with batch size '{}'."
MSG_NDIM = (
    "The number of dimensions in the batch size of the input and reference must be the "
    "same."
)

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__, UTILS)


# Shapes ------------------------------------------------------------------------------


def expand_as_right(tensor: Any, dest: Any) -> Any:
    """Expand a tensor by new dims on the right to the shape of another tensor.

    Args:
        tensor: a tensor or tensordict of shape ``[*S]``; a dim may be 1.
        dest: a tensor or tensordict of shape ``[*S, *F]``.

    Returns:
        A view of shape ``[*S, *F]``.

    Raises:
        RuntimeError: the shape of ``dest`` does not begin with the shape of ``tensor``.

    Examples:
        >>> expand_as_right(torch.arange(2), torch.zeros(2, 3))
        tensor([[0, 0, 0],
                [1, 1, 1]])
    """
    if dest.ndimension() < tensor.ndimension():
        raise RuntimeError(
            MSG_EXPAND_DIMS.format(tensor.ndimension(), dest.ndimension())
        )
    if any(n not in (1, m) for n, m in zip(tensor.shape, dest.shape, strict=False)):
        raise RuntimeError(MSG_EXPAND_SHAPE.format(tensor.shape, dest.shape))
    return expand_right(tensor, dest.shape)


def expand_right(tensor: Any, shape: Sequence[int]) -> Any:
    """Expand a tensor by new dims on the right to a shape.

    Args:
        tensor: a tensor or tensordict of shape ``[*S]``; a dim may be 1.
        shape: the shape ``[*S, *F]``.

    Returns:
        A view of shape ``[*S, *F]``.

    Examples:
        >>> expand_right(torch.arange(2), [2, 3]).shape
        torch.Size([2, 3])
    """
    missing = len(shape) - tensor.ndimension()
    for _ in range(missing):
        tensor = tensor.unsqueeze(-1)
    return tensor.expand(torch.Size(shape))


def _shape(
    tensor: torch.Tensor, nested_shape: bool = False
) -> torch.Size | torch.Tensor:
    """Return the shape of a tensor; the ragged dims of a nested tensor are -1."""
    if special.rows(tensor) is None:
        return tensor.shape
    if nested_shape:
        return tensor._nested_tensor_size()
    if tensor.layout is torch.jagged:
        return tensor.shape
    lengths = []
    for dim in range(tensor.ndim):
        try:
            lengths.append(tensor.size(dim))
        except RuntimeError:
            lengths.append(-1)
    return torch.Size(lengths)


def _maybe_correct_neg_dim(
    dim: int, shape: torch.Size | None, ndim: int | None = None
) -> int:
    """Return a dim counted from the front, after a range check."""
    ndim_given = ndim
    if ndim is None:
        ndim = len(shape)  # type: ignore[arg-type]
    out = from_front(dim, ndim)
    if not 0 <= out < ndim:
        where = f"batch dims {ndim}" if ndim_given is not None else f"shape {shape}"
        msg = f"Incompatible dim {out} for tensordict with {where}."
        raise IndexError(msg)
    return out


def _getitem_batch_size(batch_size: Any, index: BatchIndex) -> Any:
    """Return the batch size that indexing with ``index`` gives."""
    size = _rust.index_shape(torch.Size(batch_size), index)
    return size if isinstance(batch_size, torch.Size) else type(batch_size)(size)


def _zip_strict(*iterables: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Return :func:`zip` with ``strict=True``."""
    return zip(*iterables, strict=True)


# Rows --------------------------------------------------------------------------------


def isin(
    input: TensorCollection,
    reference: TensorCollection,
    key: NestedKey,
    dim: int = 0,
) -> torch.Tensor:
    """Return which slices of an entry occur in the same entry of another tensordict.

    Args:
        input: a tensordict with an entry ``key`` of shape ``[*B, *F]``.
        reference: a tensordict with as many batch dims.
        key: the key of the entry to compare.
        dim: the batch dim of the slices.

    Returns:
        A boolean tensor of shape ``[N]``, where ``N`` is the size of ``dim``.

    Raises:
        KeyError: an entry is missing or is no tensor.
        ValueError: ``dim`` is no batch dim, or the numbers of batch dims differ.

    Examples:
        >>> td = TensorDict(a=torch.tensor([1, 2, 3]), batch_size=[3])
        >>> seen = TensorDict(a=torch.tensor([3, 1]), batch_size=[2])
        >>> isin(td, seen, "a")
        tensor([ True, False,  True])
    """
    tensors = []
    for name, td in (("input", input), ("reference", reference)):
        tensor = td.get(key)
        if not isinstance(tensor, torch.Tensor):
            msg = f"Key '{key}' not found in {name} or not a tensor."
            raise KeyMessageError(msg)
        tensors.append(tensor)
    ndim = len(input.batch_size)
    if len(reference.batch_size) != ndim:
        raise ValueError(MSG_NDIM)
    if not -ndim <= dim < ndim:
        raise ValueError(
            MSG_BAD_DIM.format(dim, "an input TensorDict", input.batch_size)
        )
    dim = dim % ndim
    first, second = tensors
    joined = torch.cat([second, first], dim)
    _, inverse = torch.unique(joined, dim=dim, return_inverse=True)
    count = second.shape[dim]
    return torch.isin(inverse[count:], inverse[:count])


def remove_duplicates(
    input: TensorCollection,
    key: NestedKey,
    dim: int = 0,
    *,
    return_indices: bool = False,
) -> tuple[TensorCollection, Any] | TensorCollection:
    """Keep the first of all slices with equal values of an entry, sorted by the entry.

    Args:
        input: a tensordict with an entry ``key``.
        key: the key of the entry to compare.
        dim: the batch dim of the slices.
        return_indices: whether to return the position of each slice in the result, too.

    Returns:
        A tensordict of the first slice for each value, sorted by the entry; with
        ``return_indices`` also an int64 tensor of shape ``[N]``.

    Raises:
        KeyError: the entry is missing or is no tensor.
        ValueError: ``dim`` is no batch dim.

    Examples:
        >>> td = TensorDict(a=torch.tensor([3, 1, 3]), batch_size=[3])
        >>> remove_duplicates(td, "a")["a"]
        tensor([1, 3])
    """
    tensor = input.get(key)
    if tensor is None:
        msg = f"The key '{key}' does not exist in the TensorDict."
        raise KeyMessageError(msg)
    if not isinstance(tensor, torch.Tensor):
        msg = f"The key '{key}' does not point to a tensor in the TensorDict."
        raise KeyMessageError(msg)
    ndim = len(input.batch_size)
    if not -ndim <= dim < ndim:
        raise ValueError(MSG_BAD_DIM.format(dim, "a TensorDict", input.batch_size))
    dim = dim % ndim
    values, positions = torch.unique(tensor, dim=dim, return_inverse=True)
    count = values.shape[dim]
    # The smallest index of each value.
    indices = torch.arange(tensor.shape[dim], device=tensor.device)
    first = indices.new_full((count,), tensor.shape[dim])
    first = first.scatter_reduce(0, positions, indices, "amin")
    result = input[(slice(None),) * dim + (first,)]
    return (result, positions) if return_indices else result


# Text --------------------------------------------------------------------------------


def parse_tensor_dict_string(s: str) -> Any:
    """Make a tensordict of zeros from the ``repr`` of a tensordict.

    Both forms of ``repr`` are accepted.

    Raises:
        ValueError: the text is not the ``repr`` of a tensordict.

    Examples:
        >>> td = TensorDict(a=torch.ones(2, 3), n={"b": torch.ones(2)}, batch_size=[2])
        >>> bool((parse_tensor_dict_string(repr(td)) == td * 0).all())
        True
    """
    from tensordict.ops.parsing import parse

    return parse(s)


# Time --------------------------------------------------------------------------------


class timeit:  # noqa: N801 - a public name
    """A context manager and decorator that measures time, summed by name.

    Examples:
        >>> with timeit("block"):
        ...     pass
        >>> timeit._REG["block"][2]
        1
        >>> timeit.erase()
    """

    _REG: ClassVar[dict[str, list[Any]]] = {}
    """From names to mean seconds a call, total seconds and number of calls."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Measure every call of a function."""

        @wraps(fn)
        def measured(*args: object, **kwargs: object) -> Any:
            with type(self)(self.name):
                return fn(*args, **kwargs)

        return measured

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        elapsed_s = time.perf_counter() - self._began
        _, total, calls = self._REG.setdefault(self.name, [0.0, 0.0, 0])
        self._REG[self.name][:] = [
            (total + elapsed_s) / (calls + 1),
            total + elapsed_s,
            calls + 1,
        ]

    @staticmethod
    def print(prefix: str | None = None) -> None:
        """Log the times of all names, sorted by their total, the longest last."""
        order = sorted(timeit._REG, key=lambda name: timeit._REG[name][1])
        for name in order:
            mean, total, _ = timeit._REG[name]
            head = f"{prefix} -- " if prefix else ""
            logger.info(
                "%s%s took %s msec (total = %s sec)",
                head,
                name,
                f"{mean * 1000: 4.4}",
                total,
            )

    @staticmethod
    def erase() -> None:
        """Set all times to zero."""
        for name in timeit._REG:
            timeit._REG[name] = [0.0, 0.0, 0]


# Names used by pickles -----------------------------------------------------------------


class _LockedSchema(NamedTuple):
    """The keys of a tensordict whose set of entries is fixed."""

    keys: tuple[str, ...]


_StringOnlyDict = dict
