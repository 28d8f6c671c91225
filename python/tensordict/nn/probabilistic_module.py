"""A module that builds a distribution from entries and writes a value of it."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import distributions as D  # noqa: N812 - the name that torch's examples use

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.nn.base import TensorDictModuleBase
from tensordict.nn.dispatching import SINK, dispatch
from tensordict.nn.distributions.composite import (
    DEFAULT_LOG_PROB,
    CompositeDistribution,
    _add_suffix,
)
from tensordict.nn.distributions.continuous import Delta
from tensordict.nn.distributions.deterministic import (
    deterministic_sample,
    estimated_mean,
)
from tensordict.nn.settings import (
    INTERACTION,
    SKIP,
    InteractionType,
    composite_lp_aggregate,
    has_results,
)
from tensordict.primitives.common import value_of
from tensordict.primitives.deprecation import warn_deprecated
from tensordict.primitives.module_calls import plain_outputs, plain_parameters, trace_as
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


__all__ = ["ProbabilisticTensorDictModule"]

NestedKey = Any

MSG_IN_KEYS = (
    "ProbabilisticTensorDictModule takes as in_keys a key, a list of keys, or a dictionary "
    "from the parameters of its distribution to keys. Got {keys!r}."
)
MSG_DIST_KEYS = (
    "distribution keywords and tensordict keys indicated by "
    "ProbabilisticTensorDictModule.dist_keys must match. Got this error message: \n"
    "    {error}\nwith dist_keys={dist_keys}. Pass in_keys as a dictionary from the "
    "parameters of {cls} to keys."
)
MSG_AGGREGATE_CHANGED = (
    "The value returned by composite_lp_aggregate changed between init of {name} and its "
    "execution ({before} -> {after}). Make sure the mode matches."
)
MSG_KEY_NOT_AGGREGATED = (
    "composite_lp_aggregate is set to `False` but a `log_prob_key` was passed. When "
    "composite_lp_aggregate() returns ``False``, log_prob_keys must be used instead."
)
MSG_KEYS_AGGREGATED = (
    "composite_lp_aggregate is set to True but log_prob_keys were passed. When "
    "composite_lp_aggregate() returns ``True``, log_prob_key must be used instead."
)
MSG_ONE_KEY = (
    "composite_lp_aggregate is set to ``False``, hence {name}.log_prob_key cannot be "
    "accessed unless there is one and only one element in log_prob_keys (got "
    "log_prob_keys={keys}). When composite_lp_aggregate() returns ``False``, try to use "
    "{name}.log_prob_keys instead."
)


class ProbabilisticTensorDictModule(TensorDictModuleBase):
    """A module that builds a distribution from entries and writes a value of it.

    :class:`tensordict.nn.set_interaction_type` decides which value is written: a
    sample, the mean, and so on. Outside of it ``default_interaction_type`` decides.

    Args:
        in_keys: the keys of the parameters. The last part of each key is the name of a
            parameter of ``distribution_class``. If the names differ, pass a dictionary
            from parameter names to keys.
        out_keys: the keys of the value. Default: the names of a composite distribution;
            the value of any other distribution is dropped.
        default_interaction_type: the interaction type outside of
            :class:`tensordict.nn.set_interaction_type`.
        distribution_class: the class of the distribution, or a function of its
            parameters.
        distribution_kwargs: further keyword arguments of ``distribution_class``.
        return_log_prob: whether to write the log-probability of the value, too.
        log_prob_keys: the keys of the log-probabilities. Default: the output keys with
            the suffix ``_log_prob``.
        log_prob_key: the key of a single log-probability. Default:
            ``"sample_log_prob"`` if log-probabilities are aggregated, see
            :class:`tensordict.nn.set_composite_lp_aggregate`.
        cache_dist: deprecated; it has no effect.
        n_empirical_estimate: the number of samples that estimate the mean, if the
            distribution has no ``mean``.
        num_samples: the number or the shape of samples. It becomes the leading batch
            dims of the result.
        generator: a random generator, a seed, or the key of an entry that holds either.

    Raises:
        RuntimeError: ``log_prob_keys`` is passed while log-probabilities are
            aggregated, or ``log_prob_key`` for several outputs while they are not.
        ValueError: the numbers of log-probability keys and output keys of a composite
            distribution differ.
        TypeError: ``generator`` has an unknown type.

    Examples:
        >>> module = ProbabilisticTensorDictModule(
        ...     in_keys=["loc", "scale"],
        ...     out_keys=["x"],
        ...     distribution_class=torch.distributions.Normal,
        ...     return_log_prob=True,
        ... )
        >>> td = TensorDict(loc=torch.zeros(2), scale=torch.ones(2), batch_size=[2])
        >>> module(td)["x"]
        tensor([0., 0.])
        >>> module.out_keys
        ['x', 'x_log_prob']
        >>> from tensordict.nn import set_interaction_type
        >>> with set_interaction_type("random"):
        ...     module(td)["x"].shape
        torch.Size([2])
    """

    def __init__(
        self,
        in_keys: NestedKey | list[NestedKey] | dict[str, NestedKey],
        out_keys: NestedKey | list[NestedKey] | None = None,
        *,
        default_interaction_type: InteractionType = InteractionType.DETERMINISTIC,
        distribution_class: Callable[..., Any] = Delta,
        distribution_kwargs: Mapping[str, Any] | CollectionProtocol | None = None,
        return_log_prob: bool = False,
        log_prob_keys: list[NestedKey] | None = None,
        log_prob_key: NestedKey | None = None,
        cache_dist: bool = False,
        n_empirical_estimate: int = 1000,
        num_samples: int | torch.Size | None = None,
        generator: torch.Generator | int | NestedKey | None = None,
    ) -> None:
        super().__init__()
        self.distribution_class = distribution_class
        if distribution_kwargs is None:
            distribution_kwargs = {}
        elif not isinstance(distribution_kwargs, CollectionProtocol):
            distribution_kwargs = dict(distribution_kwargs)
        self.distribution_kwargs = distribution_kwargs
        self._set_keys(in_keys, out_keys)
        self.default_interaction_type: InteractionType = InteractionType(
            default_interaction_type
        )
        self.return_log_prob = return_log_prob
        self.n_empirical_estimate = n_empirical_estimate
        if isinstance(num_samples, int):
            num_samples = torch.Size([num_samples])
        self.num_samples: torch.Size | None = (
            None if num_samples is None else torch.Size(num_samples)
        )
        if cache_dist:
            warn_deprecated("ProbabilisticTensorDictModule(cache_dist=True)")
        self.cache_dist = False
        self._aggregates_at_init = composite_lp_aggregate()
        self._set_log_prob_keys(log_prob_keys, log_prob_key)
        self._generator, self._generator_key = _as_generator(generator)

    def _set_keys(self, in_keys: Any, out_keys: Any) -> None:
        self.dist_keys: list[Any]
        if isinstance(in_keys, dict):
            self.dist_keys = list(in_keys)
            self.in_keys = list(in_keys.values())
        else:
            if isinstance(in_keys, (str, tuple)):
                in_keys = [in_keys]
            try:
                self.in_keys: list[Any] = in_keys
            except (TypeError, RuntimeError) as error:
                error.add_note(MSG_IN_KEYS.format(keys=in_keys))
                raise
            self.dist_keys = [
                key if isinstance(key, str) else key[-1] for key in self.in_keys
            ]
        if out_keys is None:
            out_keys = self._default_out_keys()
        elif isinstance(out_keys, (str, tuple)):
            out_keys = [out_keys]
        self._out_keys = _rust.unravel_key_list(list(out_keys))

    @property
    def _is_composite(self) -> bool:
        return self.distribution_class is CompositeDistribution

    def _default_out_keys(self) -> list[NestedKey]:
        """Return the names of a composite distribution, or else the key ``"_"``."""
        if not self._is_composite:
            return [SINK]
        names = self.distribution_kwargs.get("name_map") or {}
        return [
            names.get(key, key) for key in self.distribution_kwargs["distribution_map"]
        ]

    def _set_log_prob_keys(self, keys: Any, key: object) -> None:
        aggregates = self._aggregates_at_init
        if aggregates and keys is not None:
            raise RuntimeError(MSG_KEYS_AGGREGATED)
        if not aggregates and key is not None and len(self._out_keys) > 1:
            raise RuntimeError(MSG_KEY_NOT_AGGREGATED)
        self._custom_log_prob_keys = keys is not None
        if keys is not None:
            if isinstance(keys, (str, tuple)):
                keys = [keys]
            self._log_prob_keys = _rust.unravel_key_list(list(keys))
        elif key is not None:
            self._log_prob_keys = [_rust.unravel_key(key)]
        elif aggregates:
            self._log_prob_keys = [DEFAULT_LOG_PROB]
        else:
            self._log_prob_keys = [
                _add_suffix(key, "_log_prob") for key in self._out_keys
            ]
        if self._is_composite and len(self._log_prob_keys) != (
            1 if aggregates else len(self._out_keys)
        ):
            msg = (
                f"There are {len(self._log_prob_keys)} log_prob_keys for "
                f"{len(self._out_keys)} out_keys of ProbabilisticTensorDictModule: "
                f"{self._log_prob_keys}, {self._out_keys}. Pass one for each output."
            )
            raise ValueError(msg)

    # Keys ----------------------------------------------------------------------------

    @property
    def out_keys(self) -> list[NestedKey]:  # type: ignore[override]
        """The entries that are written."""
        if self.return_log_prob:
            return [*self._out_keys, *self._log_prob_keys]
        return self._out_keys

    @property
    def out_keys_source(self) -> list[NestedKey]:
        """The entries that are written."""
        return self.out_keys

    @property
    def log_prob_key(self) -> NestedKey:
        """The key of the log-probability.

        Raises:
            RuntimeError: there are several keys, and they are not aggregated.
        """
        return _only_key(self, self._log_prob_keys)

    @property
    def log_prob_keys(self) -> list[NestedKey]:
        """The keys of the log-probabilities."""
        return self._log_prob_keys

    @property
    def dist_params_keys(self) -> list[NestedKey]:
        """The keys of the parameters of the distribution."""
        return self.in_keys

    @property
    def dist_sample_keys(self) -> list[NestedKey]:
        """The keys of the values of the distribution."""
        return self._out_keys

    def _select(self, keys: list[NestedKey]) -> None:
        if keys != self.out_keys:
            msg = (
                "ProbabilisticTensorDictModule does not support select_out_keys. Put it "
                "into a TensorDictSequential, and call select_out_keys on that."
            )
            raise RuntimeError(msg)

    def reset_out_keys(self) -> ProbabilisticTensorDictModule:
        """Return the module; its outputs cannot be selected, so nothing changes."""
        return self

    # The distribution ----------------------------------------------------------------

    def get_dist(self, tensordict: CollectionProtocol) -> D.Distribution:
        """Build the distribution from the parameters in a tensordict.

        Args:
            tensordict: the tensordict that holds the parameters.

        Raises:
            TypeError: the parameter names do not match ``distribution_class``.
        """
        is_plain = tensordict.__class__ is TensorDict
        kwargs: dict[str, Any] = {}
        for name, key in zip(self.dist_keys, self._in_keys, strict=True):
            kwargs[name] = (
                _rust.get(tensordict, key, None)
                if is_plain
                else tensordict.get(key, None)
            )
        try:
            return self.distribution_class(**kwargs, **self.distribution_kwargs)
        except (TypeError, ValueError) as error:
            missing = [
                key
                for name, key in zip(self.dist_keys, self.in_keys, strict=True)
                if kwargs[name] is None
            ]
            if isinstance(error, TypeError) and re.search(
                "unexpected keyword argument|missing .* argument", str(error)
            ):
                msg = MSG_DIST_KEYS.format(
                    error=error,
                    dist_keys=self.dist_keys,
                    cls=getattr(self.distribution_class, "__name__", "the class"),
                )
                raise TypeError(msg) from error
            if missing:
                msg = (
                    f"{error} ProbabilisticTensorDictModule reads {self.in_keys}, and "
                    f"{missing} are not in the tensordict: it has "
                    f"{list(tensordict.keys())}. Set the entries before the call, or "
                    "pass in_keys as a dictionary from the parameters to other keys."
                )
                raise type(error)(msg) from error
            raise

    build_dist_from_params = get_dist

    def log_prob(
        self, tensordict: CollectionProtocol, *, dist: D.Distribution | None = None
    ) -> Any:
        """Return the log-probability of the value in a tensordict.

        Args:
            tensordict: the tensordict that holds the value, and the parameters unless
                ``dist`` is passed.
            dist: the distribution. Default: built from the parameters.

        Returns:
            A tensor. For a composite distribution whose log-probabilities are not
            aggregated, a tensordict.
        """
        if dist is None:
            dist = self.get_dist(tensordict)
        if isinstance(dist, CompositeDistribution):
            found = dist.log_prob(tensordict)
            if isinstance(found, torch.Tensor):
                return found
            return self._update_td_lp(found)
        return dist.log_prob(tensordict.get(self._out_keys[0], None))

    def _update_td_lp(self, lp: Any) -> Any:
        """Rename the log-probabilities to the keys that the user passed."""
        if self._custom_log_prob_keys:
            for key, custom in zip(self._out_keys, self._log_prob_keys, strict=True):
                default = _add_suffix(key, "_log_prob")
                if default != custom:
                    lp.rename_key_(default, custom)
        return lp

    # Values --------------------------------------------------------------------------

    def _resolve_generator(
        self, tensordict: CollectionProtocol
    ) -> tuple[torch.Generator | None, Callable[[torch.Generator], None] | None]:
        """Return the generator for a call, and the function to call after sampling."""
        key = self._generator_key
        if key is None:
            return self._generator, None
        entry = _rust.get(tensordict, key, None)
        value = value_of(entry)
        if value is None or isinstance(value, torch.Generator):
            return value, None
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor and value.numel() != 1:
            msg = (
                f"Generator key {key!r} resolved to a tensor of {value.numel()} "
                "elements; expected a scalar seed."
            )
            raise ValueError(msg)
        if not is_tensor and (not isinstance(value, int) or isinstance(value, bool)):
            msg = (
                f"Generator key {key!r} resolved to a value of type "
                f"{type(value).__name__}; expected torch.Generator, int, or scalar Tensor."
            )
            raise TypeError(msg)
        generator = torch.Generator().manual_seed(int(value))

        def write_back(generator: torch.Generator) -> None:
            # A new seed for the next call, which must not repeat these samples.
            seed: Any = torch.randint(2**62, (), generator=generator)
            if is_tensor:
                seed = seed.to(value.device)
                if tensordict.batch_dims:
                    seed = seed.expand(value.shape).clone()
            else:
                seed = type(entry)(int(seed), batch_size=entry.batch_size)
            tensordict.set(key, seed)

        return generator, write_back

    def _dist_sample(
        self,
        dist: Any,
        interaction_type: InteractionType | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Return the value of a distribution for an interaction type."""
        kind = interaction_type or self.default_interaction_type
        if kind is InteractionType.DETERMINISTIC:
            return self._repeated(deterministic_sample(dist, self.n_empirical_estimate))
        if kind is InteractionType.MODE:
            return self._repeated(dist.mode)
        if kind is InteractionType.MEAN:
            return self._repeated(estimated_mean(dist, self.n_empirical_estimate))
        if kind is InteractionType.MEDIAN:
            try:
                return self._repeated(dist.median)
            except AttributeError as error:
                msg = f"method {type(dist)}.median is not implemented"
                raise NotImplementedError(msg) from error
        if kind is not InteractionType.RANDOM:
            msg = f"unknown interaction_type {kind}"
            raise NotImplementedError(msg)
        with _use_generator(generator):
            draw = dist.rsample if dist.has_rsample else dist.sample
            return draw(self.num_samples) if self.num_samples is not None else draw()

    def _repeated(self, value: Any) -> Any:
        """Expand a value that is not sampled to the shape of ``num_samples``."""
        if not self.num_samples:
            return value
        return value.expand(self.num_samples + value.shape)

    @dispatch(auto_batch_size=False)
    def forward(
        self,
        tensordict: Any = None,
        tensordict_out: object = None,
        _requires_sample: bool = True,
    ) -> Any:
        """Build the distribution, and write a value of it.

        Args:
            tensordict: the tensordict that holds the parameters. Tensors by position or
                by name work too.
            tensordict_out: the tensordict to write the outputs to. Default:
                ``tensordict``.

        Returns:
            The tensordict that holds the outputs; with ``num_samples``, a new one of
            batch size ``[*num_samples, *B]``.

        Raises:
            ValueError: the number of values of the distribution and of output keys
                differ.
            RuntimeError: :func:`tensordict.nn.composite_lp_aggregate` changed since
                this module was made.
        """
        skip = SKIP.get() if SKIP.by_thread else SKIP.value
        if skip and has_results(skip, self.in_keys, self.out_keys, tensordict):
            return tensordict
        out = tensordict if tensordict_out is None else tensordict_out
        if not _requires_sample and not self.return_log_prob:
            return out
        dist = self.get_dist(tensordict)
        if self.return_log_prob:
            self._check_aggregates()
        if not _requires_sample:
            return self._write_log_prob(dist, self._values_in(tensordict), out)
        generator, write_back = self._generator, None
        if self._generator_key is not None:
            generator, write_back = self._resolve_generator(tensordict)
        kind = INTERACTION.get() if INTERACTION.by_thread else INTERACTION.value
        sample = self._dist_sample(dist, kind, generator=generator)
        if write_back is not None and generator is not None:
            write_back(generator)
        return self._write_value(dist, sample, out)

    def _write_value(self, dist: Any, sample: CollectionProtocol, out: Any) -> Any:
        """Write a value, and its log-probability if the user asked for it."""
        if self.num_samples is not None:
            out = out.expand(self.num_samples + out.batch_size)
        if isinstance(dist, CompositeDistribution):
            return self._write_composite(dist, sample, out)
        samples = sample if isinstance(sample, tuple) else (sample,)
        if len(samples) != len(self._out_keys):
            msg = (
                f"ProbabilisticTensorDictModule got {len(samples)} values from its "
                f"distribution for out_keys={self._out_keys}: pass a key for each."
            )
            raise ValueError(msg)
        for key, value in zip(self._out_keys, samples, strict=True):
            _rust.set_entry(out, key, value)
        if self.return_log_prob:
            _rust.set_entry(out, self.log_prob_key, dist.log_prob(*samples))
        return out

    def _values_in(self, tensordict: CollectionProtocol) -> Any:
        """Return the values under the output keys, to compute their log-probability.

        Raises:
            ValueError: a value is missing.
        """
        missing = [key for key in self._out_keys if key not in tensordict.keys(True)]
        if missing:
            msg = (
                "The value argument to log_prob must be a Tensor: "
                f"ProbabilisticTensorDictModule found no value under {missing}. Sample "
                "one with _requires_sample=True, or set it first."
            )
            raise ValueError(msg)
        return tensordict.select(*self._out_keys)

    def _check_aggregates(self) -> None:
        after = composite_lp_aggregate()
        before = self._aggregates_at_init
        if before is not after:
            msg = MSG_AGGREGATE_CHANGED.format(
                name=type(self).__name__, before=before, after=after
            )
            raise RuntimeError(msg)

    def _write_composite(
        self, dist: CompositeDistribution, sample: object, out: CollectionProtocol
    ) -> Any:
        out.update(sample)
        return self._write_log_prob(dist, sample, out) if self.return_log_prob else out

    def _write_log_prob(self, dist: Any, values: Any, out: Any) -> Any:
        """Write the log-probability of the values in a tensordict."""
        if not isinstance(dist, CompositeDistribution):
            found = dist.log_prob(*[values.get(key) for key in self._out_keys])
            _rust.set_entry(out, self.log_prob_key, found)
            return out
        if self._aggregates_at_init:
            dist.log_prob_key = self.log_prob_key
            return out.update(dist.log_prob_composite(values, include_sum=True))
        return out.update(self._update_td_lp(dist.log_prob(values)))

    def __repr__(self) -> str:
        """Return the text of the keys, the class and the options."""
        fields = [
            f"in_keys={self.in_keys}",
            f"out_keys={self.out_keys}",
            f"distribution_class={self.distribution_class}",
            f"distribution_kwargs={self.distribution_kwargs}",
            f"default_interaction_type={self.default_interaction_type}",
            f"num_samples={self.num_samples}",
        ]
        body = ",\n    ".join(fields)
        return f"{type(self).__name__}(\n    {body})"


def _traced(module: Any, *args: Any, **kwargs: object) -> Any:
    """Run the ``forward`` of a probabilistic module in the form the compiler traces."""
    parameters = plain_parameters(module, args, kwargs, SKIP)
    if parameters is None:
        return _full_forward(module, *args, **kwargs)
    dist = module.distribution_class(**parameters, **module.distribution_kwargs)
    kind = INTERACTION.get() if INTERACTION.by_thread else INTERACTION.value
    sample = module._dist_sample(dist, kind)
    if plain_outputs(module, args[0], sample):
        return args[0]
    return module._write_value(dist, sample, args[0])


_full_forward = trace_as(ProbabilisticTensorDictModule.forward, _traced)


def _only_key(module: object, keys: list[NestedKey]) -> NestedKey:
    """Return the only key of log-probabilities."""
    if len(keys) == 1 or composite_lp_aggregate():
        return keys[0]
    raise RuntimeError(MSG_ONE_KEY.format(name=type(module).__name__, keys=keys))


# Random numbers -----------------------------------------------------------------------


def _as_generator(generator: object) -> tuple[torch.Generator | None, NestedKey | None]:
    """Return a generator for ``generator``, or the key of an entry that holds one."""
    if generator is None or isinstance(generator, torch.Generator):
        return generator, None
    if isinstance(generator, int) and not isinstance(generator, bool):
        return torch.Generator().manual_seed(generator), None
    if isinstance(generator, (str, tuple)):
        return None, _rust.unravel_key(generator)
    msg = (
        "generator must be a torch.Generator, int, NestedKey, or None; got "
        f"{type(generator).__name__}."
    )
    raise TypeError(msg)


@contextlib.contextmanager
def _use_generator(generator: torch.Generator | None) -> Iterator[None]:
    """Sample from ``generator``: torch's distributions use the global one only."""
    if generator is None:
        yield
        return
    device = generator.device
    if device.type == "cpu":
        before = torch.get_rng_state()
        torch.set_rng_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)
        return
    module = torch.get_device_module(device)
    before = module.get_rng_state(device)
    module.set_rng_state(generator.get_state(), device)
    try:
        yield
    finally:
        generator.set_state(module.get_rng_state(device))
        module.set_rng_state(before, device)


ProbabilisticTensorDictModule.__module__ = "tensordict.nn.probabilistic"
