"""Copies of a module that are called together."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from tensordict._established import established_names
from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.containers.params import TensorDictParams
from tensordict.nn.base import TensorDictModuleBase, reset_below
from tensordict.nn.common import keys_of
from tensordict.nn.dispatching import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.containers.collection import TensorCollection
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["EnsembleModule"]


class EnsembleModule(TensorDictModuleBase):
    """Copies of a module with independent parameters, called together.

    ``params_td`` holds the parameters of all copies, stacked to ``[N, *F]``. The
    parameters of each copy are initialized anew. A call is one :func:`torch.vmap` over
    the copies; random operations differ between copies.

    Args:
        module: the module to copy. It is not changed.
        num_copies: the number of copies, ``N``.
        expand_input: if true, all copies get the same input, ``[*B]``. If false, copy
            ``i`` gets row ``i`` of the input, ``[N, *B]``.

    Raises:
        RuntimeError: ``num_copies`` is less than 1.
        AttributeError: ``module`` has no ``in_keys`` or no ``out_keys``.

    Examples:
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(torch.nn.Linear(3, 2), in_keys=["x"], out_keys=["y"])
        >>> ensemble = EnsembleModule(net, num_copies=4)
        >>> ensemble(TensorDict(x=torch.zeros(5, 3), batch_size=[5]))["y"].shape
        torch.Size([4, 5, 2])
    """

    def __init__(
        self, module: TensorDictModuleBase, num_copies: int, expand_input: bool = True
    ) -> None:
        super().__init__()
        self.in_keys: list[Any] = keys_of(module, "in_keys", "EnsembleModule")
        self.out_keys: list[Any] = keys_of(module, "out_keys", "EnsembleModule")
        if num_copies < 1:
            msg = (
                "items cannot be empty: an ensemble needs at least one copy, got "
                f"num_copies={num_copies}."
            )
            raise RuntimeError(msg)
        copies = [_copy_with_new_parameters(module) for _ in range(num_copies)]
        params = TensorDict.from_modules(*copies, lock=False)
        self.module = module
        # A buffer, such as a running mean, must not become a parameter.
        self.params_td: TensorDictParams = TensorDictParams(params, no_convert=True)
        self.expand_input = expand_input

    def _func_module_call(
        self, tensordict: CollectionProtocol, params: Any
    ) -> CollectionProtocol:
        with params.to_module(self.module):
            return self.module(tensordict)

    @property
    def vmapped_forward(self) -> Callable[[Any, Any], Any]:
        """The vmapped call of the module: the second argument is the parameters."""
        return torch.vmap(
            self._func_module_call,
            (None if self.expand_input else 0, 0),
            randomness="different",
        )

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorCollection) -> Callable[[Any, Any], Any]:
        """Return the outputs of all copies, ``[N, *B]``; the input is not changed.

        Raises:
            ValueError: ``expand_input`` is false, and the input has not one row for
                each copy.
        """
        tensordict = tensordict.copy()
        if not self.expand_input and not tensordict.batch_dims:
            # `dispatch` made the tensordict: dim 0 of its tensors counts the copies.
            tensordict.auto_batch_size_(1)
        try:
            return self.vmapped_forward(tensordict, self.params_td)
        except ValueError as error:
            num_copies = self.params_td.batch_size[0]
            if not self.expand_input and tensordict.batch_size[:1] != (num_copies,):
                error.add_note(
                    f"{type(self).__name__} has {num_copies} copies and, with "
                    "expand_input=False, needs an input of that many rows: its batch size "
                    f"is {list(tensordict.batch_size)}."
                )
            raise

    def reset_parameters_recursive(self, parameters: Any = None) -> Any:
        """Initialize the parameters of all copies again, in place.

        Args:
            parameters: a tensordict of stacked parameters, ``[N]``, such as
                ``params_td``.

        Returns:
            A lazy stack that shares memory with ``parameters`` and requires grad.

        Raises:
            ValueError: ``parameters`` is None.
        """
        if parameters is None:
            msg = (
                "Ensembles are functional and require passing a TensorDict of parameters "
                "to reset_parameters_recursive: pass params_td for the ensemble's own."
            )
            raise ValueError(msg)
        if not parameters.batch_dims:
            module: Any = self.module
            return module.reset_parameters_recursive(parameters)
        rows = [self.reset_parameters_recursive(row) for row in parameters.unbind(0)]
        return LazyStackedTensorDict.lazy_stack(rows)


def _copy_with_new_parameters(module: TensorDictModuleBase) -> TensorDictModuleBase:
    """Return a copy of a module whose parameters are initialized anew."""
    copied = copy.deepcopy(module)
    reset_below(copied)
    for child in copied.modules():
        if isinstance(child, EnsembleModule):
            child.reset_parameters_recursive(child.params_td)
    return copied


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
