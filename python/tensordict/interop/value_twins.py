"""What Dynamo traces in the place of functions of unbatched tensors and of values.

Dynamo cannot look at a tensor as one of another class once it is of a class of its own: an
alias of the data, which is the same to autograd and to memory, it can. Of the modes of
its own tracing the traced program knows nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict._unbatched import _BARE, UnbatchedTensor, _bare, _wrap
from tensordict.containers.nontensor.positions import _has_modes

if TYPE_CHECKING:
    import torch


def _wrap_alias(data: torch.Tensor, size: torch.Size) -> Any:
    with _BARE():
        made = data.view_as(data).as_subclass(UnbatchedTensor)
    made._batch_size = size
    return made


def _bare_alias(data: torch.Tensor) -> torch.Tensor:
    with _BARE():
        return data.view_as(data)


def _has_no_modes() -> bool:
    return False


TRACED = ((_wrap, _wrap_alias), (_bare, _bare_alias), (_has_modes, _has_no_modes))
"""What :mod:`tensordict.interop.compile` registers, each with its form for Dynamo."""
