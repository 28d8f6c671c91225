"""Several copies of a module, called at once."""

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
    """Several copies of a module with parameters of their own, called at once.

    The parameters are stacked in ``params_td``, ``[N, *F]``, each copy drawn anew; the
    call is one :func:`torch.vmap` over them. Random operations differ between copies.

    Args:
        module: what is copied. It stays as it is.
        num_copies: how many, ``N``.
        expand_input: whether all copies get the same input, ``[*B]``; otherwise copy
            ``i`` gets row ``i`` of it, ``[N, *B]``.

    Raises:
        ValueError: there would be no copy.

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
            msg = f"items cannot be empty: an ensemble needs a copy, got {num_copies}."
            raise RuntimeError(msg)
        copies = [_drawn_anew(module) for _ in range(num_copies)]
        params = TensorDict.from_modules(*copies, lock=False)
        self.module = module
        # Parameters and buffers stay what they are: a running mean is no parameter.
        self.params_td: TensorDictParams = TensorDictParams(params, no_convert=True)
        self.expand_input = expand_input

    def _func_module_call(self, tensordict: CollectionProtocol, params: Any) -> Any:
        with params.to_module(self.module):
            return self.module(tensordict)

    @property
    def vmapped_forward(self) -> Callable[[Any, Any], Any]:
        """The call of the module with stacked parameters, as its second argument."""
        return torch.vmap(
            self._func_module_call,
            (None if self.expand_input else 0, 0),
            randomness="different",
        )

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorCollection) -> Callable[[Any, Any], Any]:
        """The outputs of all copies, ``[N, *B]``; the input stays as it is."""
        tensordict = tensordict.copy()
        if not self.expand_input and not tensordict.batch_dims:
            # Tensors that were dispatched: their first dim is that of the copies.
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
        """Draw the parameters of all copies anew, in place.

        Args:
            parameters: a collection of stacked parameters, ``[N]``.

        Returns:
            A lazy stack of the same tensors, row by row, with gradients.

        Raises:
            ValueError: there are none: those of the ensemble are ``params_td``.
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


def _drawn_anew(module: TensorDictModuleBase) -> Any:
    """A copy of a module with parameters of its own."""
    copied = copy.deepcopy(module)
    reset_below(copied)
    for child in copied.modules():
        if isinstance(child, EnsembleModule):
            child.reset_parameters_recursive(child.params_td)
    return copied


if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
