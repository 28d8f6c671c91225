"""A sequence of modules that ends with a distribution, or contains several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensordict import _rust
from tensordict.nn.dispatching import SINK, dispatch
from tensordict.nn.distributions.composite import CompositeDistribution
from tensordict.nn.probabilistic_module import (
    ProbabilisticTensorDictModule,
    _only_key,
)
from tensordict.nn.sequence import TensorDictSequential
from tensordict.nn.settings import (
    SKIP,
    InteractionType,
    composite_lp_aggregate,
    interaction_type,
    set_interaction_type,
)
from tensordict.primitives.deprecation import warn_deprecated
from tensordict.primitives.module_calls import is_plain_sequence, trace_as

if TYPE_CHECKING:
    from torch import distributions as D  # noqa: N812 - the name that torch's examples use

    from tensordict.containers.collection import TensorCollection
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["ProbabilisticTensorDictSequential"]

NestedKey = Any

MSG_NO_MODULES = (
    "ProbabilisticTensorDictSequential must consist of zero or more TensorDictModules "
    "followed by a ProbabilisticTensorDictModule: got no module."
)

MSG_LAST = (
    "The final module passed to ProbabilisticTensorDictSequential must be an instance of "
    "ProbabilisticTensorDictModule or another ProbabilisticTensorDictSequential (unless "
    "return_composite is set to ``True``). Got {last}."
)


class ProbabilisticTensorDictSequential(TensorDictSequential):
    """A sequence of modules that ends with a distribution, or contains several.

    Args:
        *modules: see :class:`TensorDictSequential`.
        partial_tolerant: whether to skip a module if an input of it is missing.
        return_composite: whether :meth:`get_dist` returns the distributions of all
            probabilistic modules as one. Default: true if several of ``modules`` are a
            :class:`ProbabilisticTensorDictModule`, or the last module has no
            distribution.
        selected_out_keys: the outputs to keep in the result.
        inplace: where the outputs are written, see :class:`TensorDictSequential`.

    Raises:
        ValueError: ``modules`` is empty.
        TypeError: ``return_composite`` is false, and the last module has no
            distribution.

    Examples:
        >>> from tensordict.nn import NormalParamExtractor, TensorDictModule
        >>> module = ProbabilisticTensorDictSequential(
        ...     TensorDictModule(NormalParamExtractor(), ["x"], ["loc", "scale"]),
        ...     ProbabilisticTensorDictModule(
        ...         in_keys=["loc", "scale"],
        ...         out_keys=["y"],
        ...         distribution_class=torch.distributions.Normal,
        ...     ),
        ... )
        >>> td = module(TensorDict(x=torch.zeros(2, 4), batch_size=[2]))
        >>> td["y"].shape, module.log_prob(td).shape
        (torch.Size([2, 2]), torch.Size([2, 2]))
    """

    # Whether the last module writes the value, because no earlier module does.
    _requires_sample = True

    def __init__(
        self,
        *modules: Any,
        partial_tolerant: bool = False,
        return_composite: bool | None = None,
        selected_out_keys: list[NestedKey] | None = None,
        inplace: bool | str | None = None,
    ) -> None:
        if not modules:
            raise ValueError(MSG_NO_MODULES)
        # A subclass with a second base may lack the newer options.
        options: dict[str, Any] = {}
        if selected_out_keys is not None:
            options["selected_out_keys"] = selected_out_keys
        if inplace is not None:
            options["inplace"] = inplace
        super().__init__(*modules, partial_tolerant=partial_tolerant, **options)
        ends_in_distribution = isinstance(self._last_module, _PROBABILISTIC_CLASSES)
        if return_composite is None:
            is_probabilistic = [
                isinstance(module, ProbabilisticTensorDictModule)
                for module in self._module_iter()
            ]
            return_composite = not ends_in_distribution or sum(is_probabilistic) > 1
        elif not return_composite and not ends_in_distribution:
            raise TypeError(MSG_LAST.format(last=type(self._last_module).__name__))
        self.return_composite = return_composite
        self._requires_sample = self._last_writes_value()

    def _last_writes_value(self) -> bool:
        """Return whether only the last module writes the value of the last module."""
        last = self._last_module
        if self.return_composite or not isinstance(last, _PROBABILISTIC_CLASSES):
            return True
        earlier_keys = [
            key for module in [*self._module_iter()][:-1] for key in module.out_keys
        ]
        return not all(key in earlier_keys for key in last.dist_sample_keys)

    def _hold(self, modules: dict[str, Any]) -> None:
        super()._hold(modules)
        self._requires_sample = self._last_writes_value()

    def _options(self, last: object) -> dict[str, Any]:
        composes = self.return_composite or not isinstance(last, _PROBABILISTIC_CLASSES)
        return {**super()._options(last), "return_composite": composes}

    def __getitem__(self, index: int | slice | str) -> Any:
        """Return a module, or for a slice a sequence (plain if not probabilistic)."""
        result = super().__getitem__(index)
        if isinstance(index, slice) and not result._probabilistic():
            return TensorDictSequential(*result, **super()._options(None))
        return result

    @property
    def _last_module(self) -> Any:
        return next(reversed(self.module._modules.values()), None)

    def _probabilistic(self) -> list[Any]:
        """Return the modules that have a distribution."""
        return [
            module
            for module in self._module_iter()
            if isinstance(module, _PROBABILISTIC_CLASSES)
        ]

    def _last_probabilistic(self) -> Any:
        modules = self._probabilistic()
        if not modules:
            msg = f"No distribution module found in {self}."
            raise RuntimeError(msg)
        return modules[-1]

    @property
    def det_part(self) -> TensorDictSequential:
        """The modules before the last; deprecated."""
        warn_deprecated(
            "ProbabilisticTensorDictSequential.det_part",
            "ProbabilisticTensorDictSequential.get_dist_params",
        )
        held = self.module._modules
        modules = dict(list(held.items())[:-1])
        if isinstance(self.module, nn.ModuleDict):
            return TensorDictSequential(modules)
        return TensorDictSequential(*modules.values())

    # Keys ----------------------------------------------------------------------------

    @property
    def log_prob_keys(self) -> list[NestedKey]:
        """The keys of the log-probabilities, the last module's first."""
        return [
            key
            for module in reversed(self._probabilistic())
            for key in module.log_prob_keys
        ]

    @property
    def log_prob_key(self) -> NestedKey:
        """The key of the log-probability.

        Raises:
            RuntimeError: there are several keys, and they are not aggregated.
        """
        return _only_key(self, self.log_prob_keys)

    @property
    def dist_params_keys(self) -> list[NestedKey]:
        """The keys of the parameters of the distributions, the last module's first."""
        return [
            key
            for module in reversed(self._probabilistic())
            for key in module.dist_params_keys
        ]

    @property
    def dist_sample_keys(self) -> list[NestedKey]:
        """The keys of the values of the distributions, the last module's first."""
        return [
            key
            for module in reversed(self._probabilistic())
            for key in module.dist_sample_keys
        ]

    @property
    def default_interaction_type(self) -> InteractionType | None:
        """The default interaction type of the last probabilistic module."""
        for module in reversed(self._probabilistic()):
            kind = module.default_interaction_type
            if kind is not None:
                return kind
        return None

    @property
    def num_samples(self) -> torch.Size:
        """The batch dims that sampling adds, the last module's first."""
        size = torch.Size([])
        for module in self._probabilistic():
            size = torch.Size(module.num_samples or ()) + size
        return size

    # Distributions ---------------------------------------------------------------------

    def _dist_sample(
        self,
        dist: object,
        interaction_type: InteractionType | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Return the value of ``dist`` that the last probabilistic module takes."""
        return self._last_probabilistic()._dist_sample(
            dist, interaction_type, generator=generator
        )

    def get_dist_params(
        self, tensordict: object, tensordict_out: object = None, **kwargs: object
    ) -> Any:
        """Call all modules but the last: the result holds the parameters.

        Args:
            tensordict: the input tensordict.
            tensordict_out: the tensordict to write the outputs to.
            **kwargs: further keyword arguments of the modules.

        Returns:
            The tensordict that holds the parameters of the last module.
        """
        modules = list(self._module_iter())[:-1]
        kind = self.default_interaction_type
        if interaction_type() is not None or kind is None:
            kind = interaction_type()
        with set_interaction_type(kind):
            if tensordict_out is not None or kwargs or SKIP.get():
                sequence = TensorDictSequential(*modules)
                return sequence(tensordict, tensordict_out, **kwargs)
            for module in modules:
                tensordict = module(tensordict)
            return tensordict

    def build_dist_from_params(self, tensordict: CollectionProtocol) -> D.Distribution:
        """Build the distribution of the last probabilistic module.

        Args:
            tensordict: the tensordict that holds its parameters already.

        Raises:
            RuntimeError: the sequence has no probabilistic module.
        """
        return self._last_probabilistic().build_dist_from_params(tensordict)

    def get_dist(
        self, tensordict: TensorCollection, tensordict_out: Any = None, **kwargs: object
    ) -> D.Distribution:
        """Call the modules and return the distribution of the value.

        Args:
            tensordict: the input tensordict. The parameters are written to it, unless
                the sequence has several distributions: their values are sampled on the
                way, so it is not changed.
            tensordict_out: the tensordict to write the outputs to.
            **kwargs: further keyword arguments of the modules.

        Returns:
            The distribution; with ``return_composite``, a
            :class:`CompositeDistribution` of all.

        Raises:
            RuntimeError: the sequence has no probabilistic module.
        """
        last = self._last_probabilistic()
        if not self.return_composite:
            tensordict = self.get_dist_params(tensordict, tensordict_out, **kwargs)
            return last.get_dist(tensordict)
        _, dists = self._dists(tensordict.copy(), tensordict_out, resamples=True)
        return self._composed(tensordict, dists)

    def _composed(
        self, td: CollectionProtocol, dists: dict[NestedKey, Any]
    ) -> CompositeDistribution:
        return CompositeDistribution.from_distributions(
            td,
            dists,
            log_prob_key=self.log_prob_keys[0] if composite_lp_aggregate() else None,
        )

    def _dists(
        self,
        td: CollectionProtocol,
        out: Any,
        *,
        resamples: bool,
        has_successor: bool = False,
    ) -> tuple[Any, dict[NestedKey, Any]]:
        """Call the modules, and collect their distributions.

        Args:
            td: the input tensordict. It is changed.
            out: a tensordict that gets the outputs of the modules, or None.
            resamples: whether existing values are sampled again.
            has_successor: whether modules follow this sequence: the last module then
                samples a value for them.

        Returns:
            The resulting tensordict, and the distributions by key.
        """
        result: dict[NestedKey, Any] = {}
        last = self._last_module
        for module in self._module_iter():
            ends = module is last and not has_successor
            td, dists = self._call_once(module, td, resamples=resamples, ends=ends)
            result.update(dists)
            if out is not None and not (ends and dists):
                out_keys = [key for key in module.out_keys if key != SINK]
                out.update(td.select(*out_keys, strict=False))
        return td, result

    def _call_once(
        self, module: nn.Module, td: CollectionProtocol, *, resamples: bool, ends: bool
    ) -> tuple[Any, dict[NestedKey, Any]]:
        """Call a module once; return the new tensordict and the distributions."""
        if isinstance(module, ProbabilisticTensorDictSequential):
            return module._nested(td, resamples=resamples, ends=ends)
        if not isinstance(module, ProbabilisticTensorDictModule):
            return self._run_module(module, td), {}
        dist = module.get_dist(td)
        has_value = [_rust.contains(td, key) for key in module.dist_sample_keys]
        if not ends and (resamples or not all(has_value)):
            td = self._run_module(module, td)
        if isinstance(dist, CompositeDistribution):
            return td, dist.dists
        return td, {module.dist_sample_keys[0]: dist}

    def _nested(
        self, td: Any, *, resamples: bool, ends: bool
    ) -> tuple[Any, dict[NestedKey, Any]]:
        """Run this sequence inside of another sequence: see :meth:`_call_once`."""
        is_plain = self.inplace is None and not self._select_before_return
        result = td if is_plain else td.copy()
        if self.return_composite:
            result, dists = self._dists(
                result, None, resamples=resamples, has_successor=not ends
            )
        else:
            result = self.get_dist_params(result)
            with set_interaction_type(
                interaction_type() or self.default_interaction_type
            ):
                result, dists = self._call_once(
                    self._last_module, result, resamples=resamples, ends=ends
                )
        if not (is_plain or ends):
            result = self._write_result(td, result, None)
        return result, dists

    def log_prob(
        self,
        tensordict: Any,
        tensordict_out: object = None,
        *,
        dist: D.Distribution | None = None,
        **kwargs: object,
    ) -> Any:
        """Return the log-probability of the values in a tensordict.

        Args:
            tensordict: the tensordict that holds the inputs and the values. The
                parameters of a single distribution are written to it.
            tensordict_out: the tensordict to write the outputs of the modules to.
            dist: the distribution. Default: the result of :meth:`get_dist`.
            **kwargs: further keyword arguments of the modules.

        Returns:
            A tensor. For several distributions whose log-probabilities are not
            aggregated, a tensordict.
        """
        if self.return_composite:
            if dist is None:
                _, found = self._dists(tensordict.copy(), None, resamples=False)
                dist = self._composed(tensordict, found)
            return dist.log_prob(tensordict)
        last = self._last_module
        if dist is not None:
            return last.log_prob(tensordict, dist=dist)
        if not isinstance(last, ProbabilisticTensorDictSequential):
            dist = self.get_dist(tensordict, tensordict_out, **kwargs)
            return last.log_prob(tensordict, dist=dist)
        # The nested sequence keeps existing values.
        params = self.get_dist_params(tensordict, tensordict_out, **kwargs)
        if tensordict_out is not None:
            params = tensordict.copy().update(params)
        return last.log_prob(params, tensordict_out)

    @dispatch(auto_batch_size=False)
    def forward(
        self,
        tensordict: object = None,
        tensordict_out: object = None,
        _requires_sample: bool | None = None,
        **kwargs: object,
    ) -> Any:
        """Call the modules in order.

        Args:
            tensordict: the input tensordict. Tensors by position or by name work too.
            tensordict_out: the tensordict to write the outputs to.
            **kwargs: inputs by name.

        Returns:
            The tensordict that holds the outputs.
        """
        if self.return_composite or interaction_type() is not None:
            return self._run(tensordict, tensordict_out, _requires_sample, **kwargs)
        # An earlier module may read the interaction type.
        with set_interaction_type(self.default_interaction_type):
            return self._run(tensordict, tensordict_out, _requires_sample, **kwargs)

    def _run(
        self, td: Any, out: object, requires_sample: bool | None, **kwargs: Any
    ) -> Any:
        """Call the modules; ``requires_sample=False``: the last writes no value."""
        last = self._last_module
        writes_value = self._requires_sample and requires_sample is not False
        if writes_value or not isinstance(last, _PROBABILISTIC_CLASSES):
            return super().forward(td, out, **kwargs)
        is_plain = (
            out is None and self.inplace is None and not self._select_before_return
        )
        result = TensorDictSequential(*list(self._module_iter())[:-1])(
            td if is_plain else td.copy(), **kwargs
        )
        result = last(result, _requires_sample=False)
        return result if is_plain else self._write_result(td, result, out)


def _traced(sequence: Any, *args: object, **kwargs: object) -> Any:
    """Run the ``forward`` of this sequence in the form that the compiler traces."""
    if not sequence._requires_sample or not is_plain_sequence(
        sequence, args, kwargs, SKIP
    ):
        return _full_forward(sequence, *args, **kwargs)
    td = args[0]
    for module in tuple(sequence._modules["module"]._modules.values()):
        td = module(td)
    return td


_full_forward = trace_as(ProbabilisticTensorDictSequential.forward, _traced)

# Classes of modules that have a distribution.
_PROBABILISTIC_CLASSES = (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
)
ProbabilisticTensorDictSequential.__module__ = "tensordict.nn.probabilistic"
