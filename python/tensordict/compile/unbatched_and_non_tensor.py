"""Dynamo replacements for functions of unbatched tensors and non-tensor data.

Dynamo cannot view a tensor subclass as another class. It can view an alias of the data,
which is the same for autograd and shares the memory. A traced program cannot see the
modes that Dynamo itself uses for tracing.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from tensordict import _rust
from tensordict.containers.nontensor import base, positions
from tensordict.containers.nontensor.positions import _has_modes
from tensordict.entries.unbatched import _BARE, UnbatchedTensor, _bare, _wrap
from tensordict.primitives.index import index_plan, known_plan

MSG_UNKNOWN = (
    "Compiled code cannot index non-tensor data with tensors, because their elements are "
    "unknown at compile time: index it with numbers, slices or lists, or exclude the entry."
)


def _wrap_alias(data: torch.Tensor, size: torch.Size) -> UnbatchedTensor:
    with _BARE():
        alias = data.view_as(data).as_subclass(UnbatchedTensor)
    alias._batch_size = size
    return alias


def _bare_alias(data: torch.Tensor) -> torch.Tensor:
    with _BARE():
        return data.view_as(data)


def _has_no_modes() -> bool:
    return False


def _known_plan_of(
    values: Any, index: Any
) -> tuple[Any, torch.Size, tuple[int, ...]] | None:
    try:
        return known_plan(values._batch_size, index, True)
    except TypeError:
        return _rust.index_plan(values._batch_size, index, values)


# With constant arguments, Dynamo calls the native functions instead of these.


def places_listed(*_: object) -> NoReturn:
    """Break the graph: the elements of a tensor are unknown at compile time."""
    torch._dynamo.graph_break(msg=MSG_UNKNOWN)
    raise RuntimeError(MSG_UNKNOWN)


def places_at(*_: object) -> NoReturn:
    """Break the graph: the elements of a tensor are unknown at compile time."""
    torch._dynamo.graph_break(msg=MSG_UNKNOWN)
    raise RuntimeError(MSG_UNKNOWN)


def places_moved(*_: object) -> NoReturn:
    """Break the graph: the elements of a tensor are unknown at compile time."""
    torch._dynamo.graph_break(msg=MSG_UNKNOWN)
    raise RuntimeError(MSG_UNKNOWN)


def places_split(*_: object) -> NoReturn:
    """Break the graph: the elements of a tensor are unknown at compile time."""
    torch._dynamo.graph_break(msg=MSG_UNKNOWN)
    raise RuntimeError(MSG_UNKNOWN)


TRACED = (
    (_wrap, _wrap_alias),
    (_bare, _bare_alias),
    (_has_modes, _has_no_modes),
    (base._plan_of, _known_plan_of),
    (known_plan, index_plan),
    (positions.places_listed, places_listed),
    (positions.places_at, places_at),
    (positions.places_moved, places_moved),
    (positions.places_split, places_split),
)
"""Functions with their replacements under Dynamo, for
:mod:`tensordict.compile.registration`."""
