"""Modules that take their parameters as an argument of each call."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

from tensordict.containers.dense import TensorDict
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

__all__ = [
    "extract_weights_and_buffers",
    "get_functional",
    "is_functional",
    "make_functional",
    "repopulate_module",
]

MSG_NO_PARAMS = (
    "{module} is functional and holds no parameters: pass them as the last argument of "
    "the call or as `params=`, or put them back with repopulate_module."
)

_MARK = "_functional_methods"


def make_functional(
    module: nn.Module,
    funs_to_decorate: Sequence[str] | None = None,
    keep_params: bool = False,
    return_params: bool = True,
) -> TensorDict | None:
    """Make a module functional, in place: its calls take the parameters as an argument.

    Args:
        module: the module. It is changed in place.
        funs_to_decorate: the names of the methods that take parameters. Default:
            ``forward``.
        keep_params: whether the module keeps its parameters, for calls without
            parameters.
        return_params: whether to return the parameters. If false, the result is None.

    Returns:
        The parameters and buffers, nested as the submodules are.

    Examples:
        >>> model = torch.nn.Linear(3, 2)
        >>> params = make_functional(model)
        >>> list(model.parameters())
        []
        >>> model(torch.zeros(3), params=params).shape
        torch.Size([2])
        >>> stacked = torch.stack([params, params])
        >>> torch.vmap(model, (None, 0))(torch.zeros(3), stacked).shape
        torch.Size([2, 2])
    """
    params = None
    if return_params:
        params = TensorDict.from_module(module)
    if not keep_params:
        extract_weights_and_buffers(module)
    if _MARK not in module.__dict__:
        names = list(funs_to_decorate or ("forward",))
        module.__dict__[_MARK] = names
        for name in names:
            module.__dict__[name] = _with_params(module, getattr(module, name))
    return params


def get_functional(
    module: nn.Module, funs_to_decorate: Sequence[str] | None = None
) -> nn.Module:
    """Return a functional copy of a module, which is not changed.

    Args:
        module: the module to copy. The copy uses its own parameters in calls without
            parameters.
        funs_to_decorate: the names of the methods that take parameters. Default:
            ``forward``.

    Examples:
        >>> model = torch.nn.Linear(3, 2)
        >>> functional = get_functional(model)
        >>> is_functional(model), is_functional(functional)
        (False, True)
    """
    copied = copy.deepcopy(module)
    make_functional(copied, funs_to_decorate, keep_params=True, return_params=False)
    return copied


def is_functional(module: nn.Module) -> bool:
    """Return whether :func:`make_functional` was called on a module.

    Examples:
        >>> is_functional(torch.nn.Linear(3, 2))
        False
    """
    return _MARK in module.__dict__


def repopulate_module(module: nn.Module, params: Any) -> nn.Module:
    """Put parameters into a functional module, which becomes an ordinary module again.

    Args:
        module: the module. It is changed in place.
        params: the parameters that :func:`make_functional` returned, or others with the
            same keys and shapes.

    Returns:
        The module itself.

    Examples:
        >>> model = torch.nn.Linear(3, 2)
        >>> params = make_functional(model)
        >>> repopulate_module(model, params).weight is params["weight"]
        True
    """
    for name in module.__dict__.pop(_MARK, ()):
        del module.__dict__[name]
    params.to_module(module, return_swap=False)
    return module


def extract_weights_and_buffers(module: nn.Module) -> TensorDict:
    """Remove the parameters and buffers from a module, and return them.

    Examples:
        >>> model = torch.nn.Linear(3, 2)
        >>> sorted(extract_weights_and_buffers(model).keys())
        ['bias', 'weight']
        >>> model.weight is None
        True
    """
    params = TensorDict.from_module(module)
    for child in module.modules():
        if isinstance(child, CollectionProtocol):
            continue
        for slots in (child._parameters, child._buffers):
            for name in slots:
                slots[name] = None
    return params


def _with_params(module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that takes parameters as last argument or as ``params``."""

    @functools.wraps(method)
    def functional(*args: object, params: Any = None, **kwargs: object) -> Any:
        if params is None and args and isinstance(args[-1], CollectionProtocol):
            # The first argument of a module with keys is its input.
            takes_collection = hasattr(module, "in_keys")
            if not takes_collection or len(args) > 1:
                params, args = args[-1], args[:-1]
        if params is not None:
            with params.to_module(module):
                return method(*args, **kwargs)
        if not any(True for _ in module.parameters()):
            raise RuntimeError(MSG_NO_PARAMS.format(module=type(module).__name__))
        return method(*args, **kwargs)

    return functional
