"""Several distributions as one, whose samples are tensordicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.distributions import Distribution

from tensordict import _rust
from tensordict._established import established_names
from tensordict.containers.dense import TensorDict
from tensordict.nn.distributions.deterministic import deterministic_sample
from tensordict.nn.settings import composite_lp_aggregate
from tensordict.primitives.deprecation import warn_deprecated
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CompositeDistribution"]

NestedKey = Any
DEFAULT_LOG_PROB = "sample_log_prob"
DEFAULT_ENTROPY = "entropy"

MSG_NO_PARAM = (
    "no param {key} found in params with keys {keys}. {name} builds the {make} of {key!r} "
    "from the nested tensordict at this key: set its parameters there, or pass a "
    "distribution_map with the keys of the parameters."
)
MSG_NO_SAMPLE = (
    "Expected a tensordict sample, but got a {found} instead. {name} reads {keys} from a "
    "tensordict: pass TensorDict(sample)."
)


def _name_of(make: object) -> str:
    return getattr(make, "__name__", type(make).__name__)


def _add_suffix(key: NestedKey, suffix: str) -> NestedKey:
    """Return a key whose last part ends with ``suffix``."""
    key = _rust.unravel_key(key)
    if isinstance(key, str):
        return key + suffix
    return (*key[:-1], key[-1] + suffix)


class CompositeDistribution(Distribution, Mapping[Any, Distribution]):
    """Independent distributions under keys, whose samples are tensordicts.

    Log-probabilities and entropies are tensordicts, too; their keys have the suffixes
    ``_log_prob`` and ``_entropy``. Under ``set_composite_lp_aggregate(True)`` they are
    one tensor: the sum. The composite is also a mapping from keys to distributions.

    Args:
        params: a tensordict that holds the parameters of each distribution, nested
            under its key in ``distribution_map``. Its batch size is the batch shape
            ``[*B]``.
        distribution_map: from nested keys to classes of distributions, or functions of
            the parameters.
        name_map: from keys of ``distribution_map`` to other keys for the samples.
        extra_kwargs: from keys of ``distribution_map`` to further keyword arguments of
            the class.
        log_prob_key: the key of the sum of log-probabilities. Default:
            ``"sample_log_prob"``.
        entropy_key: the key of the sum of entropies. Default: ``"entropy"``.

    Raises:
        KeyError: ``params`` lacks a key of ``distribution_map``.

    Examples:
        >>> params = TensorDict(
        ...     x={"loc": torch.zeros(3), "scale": torch.ones(3)},
        ...     y={"logits": torch.zeros(3, 5)},
        ...     batch_size=[3],
        ... )
        >>> dist = CompositeDistribution(
        ...     params,
        ...     {"x": torch.distributions.Normal, "y": torch.distributions.Categorical},
        ... )
        >>> sample = dist.sample((2,))
        >>> sample.batch_size, sample["y"].shape
        (torch.Size([2, 3]), torch.Size([2, 3]))
        >>> sorted(dist.log_prob(sample).keys())
        ['x_log_prob', 'y_log_prob']
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        params: Any,
        distribution_map: dict[NestedKey, Any],
        *,
        name_map: dict[NestedKey, NestedKey] | None = None,
        extra_kwargs: dict[NestedKey, dict[str, Any]] | None = None,
        log_prob_key: NestedKey | None = None,
        entropy_key: NestedKey | None = None,
    ) -> None:
        names = _by_key(name_map)
        extra = _by_key(extra_kwargs)
        dists = {}
        for key, make in distribution_map.items():
            key = _rust.unravel_key(key)
            kwargs = params.get(key)
            if kwargs is None:
                raise KeyMessageError(
                    MSG_NO_PARAM.format(
                        key=key,
                        name=type(self).__name__,
                        keys=params.keys(True, True),
                        make=_name_of(make),
                    )
                )
            dist_params = {name: kwargs[name] for name in kwargs.keys()}  # noqa: SIM118
            try:
                dist = make(**dist_params, **extra.get(key, {}))
            except (TypeError, ValueError) as error:
                error.add_note(
                    f"{type(self).__name__} builds the {_name_of(make)} of {key!r} from "
                    f"the entries {list(dist_params)}: name each entry as its parameter."
                )
                raise
            dists[_rust.unravel_key(names.get(key, key))] = dist
        self._set_up(params.shape, dists, log_prob_key, entropy_key)

    def _set_up(
        self,
        batch_shape: torch.Size,
        dists: dict[NestedKey, Any],
        log_prob: object,
        entropy: object,
    ) -> None:
        self._batch_shape = torch.Size(batch_shape)
        self._event_shape = torch.Size([])
        self.dists = dists
        self.log_prob_key = log_prob
        self.entropy_key = entropy

    @classmethod
    def from_distributions(
        cls,
        params: Any,
        distributions: dict[NestedKey, Distribution],
        *,
        name_map: dict[NestedKey, NestedKey] | None = None,
        log_prob_key: NestedKey | None = None,
        entropy_key: NestedKey | None = None,
    ) -> CompositeDistribution:
        """Make a composite of existing distributions.

        Args:
            params: a tensordict whose batch size is the batch shape.
            distributions: from keys to distributions.
            name_map: from keys of ``distributions`` to other keys for the samples.
            log_prob_key: the key of the sum of log-probabilities.
            entropy_key: the key of the sum of entropies.

        Examples:
            >>> normal = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
            >>> dist = CompositeDistribution.from_distributions(
            ...     TensorDict(batch_size=[3]), {"x": normal}
            ... )
            >>> dist.mean["x"]
            tensor([0., 0., 0.])
        """
        names = _by_key(name_map)
        self = cls.__new__(cls)
        dists = {}
        for key, dist in distributions.items():
            key = _rust.unravel_key(key)
            dists[_rust.unravel_key(names.get(key, key))] = dist
        self._set_up(params.shape, dists, log_prob_key, entropy_key)
        return self

    # Mapping -------------------------------------------------------------------------

    def __getitem__(self, key: NestedKey) -> Distribution:
        """Return the distribution under ``key``."""
        try:
            return self.dists[_rust.unravel_key(key)]
        except KeyError:
            msg = (
                f"{type(self).__name__} has no distribution {key!r}: its distributions "
                f"are {list(self.dists)}."
            )
            raise KeyMessageError(msg) from None

    def __iter__(self) -> Iterator[NestedKey]:
        """Iterate over the keys."""
        return iter(self.dists)

    def __len__(self) -> int:
        """Return the number of distributions."""
        return len(self.dists)

    __hash__ = Distribution.__hash__
    __eq__: Any = object.__eq__

    # Keys of the sums ----------------------------------------------------------------

    @property
    def log_prob_key(self) -> NestedKey:
        """The key of the sum of log-probabilities."""
        return self._log_prob_key

    @log_prob_key.setter
    def log_prob_key(self, key: NestedKey | None) -> None:
        self._log_prob_key = DEFAULT_LOG_PROB if key is None else _rust.unravel_key(key)

    @property
    def entropy_key(self) -> NestedKey:
        """The key of the sum of entropies."""
        return self._entropy_key

    @entropy_key.setter
    def entropy_key(self, key: NestedKey | None) -> None:
        self._entropy_key = DEFAULT_ENTROPY if key is None else _rust.unravel_key(key)

    # Samples -------------------------------------------------------------------------

    def _collected(
        self, values: dict[NestedKey, Any], shape: Sequence[int] = ()
    ) -> TensorDict:
        return TensorDict(values, torch.Size(shape or ()) + self.batch_shape)

    def sample(self, shape: Any = None) -> Any:
        """Sample all distributions: a tensordict of batch size ``[*shape, *B]``."""
        size = torch.Size(shape or ())
        values = {key: dist.sample(size) for key, dist in self.dists.items()}
        return self._collected(values, size)

    def rsample(self, shape: Any = None) -> Any:
        """Sample all distributions, differentiably: batch size ``[*shape, *B]``."""
        size = torch.Size(shape or ())
        values = {key: dist.rsample(size) for key, dist in self.dists.items()}
        return self._collected(values, size)

    def sample_and_log_prob(self, shape: Any = None) -> tuple[Any, Any]:
        """Return samples and their log-probabilities."""
        sample = self.sample(shape)
        return sample, self.log_prob(sample)

    def rsample_and_log_prob(self, shape: Any = None) -> tuple[Any, Any]:
        """Return differentiable samples and their log-probabilities."""
        sample = self.rsample(shape)
        return sample, self.log_prob(sample)

    @property
    def mode(self) -> Any:
        """The modes of all distributions, as a tensordict."""
        return self._collected({key: dist.mode for key, dist in self.dists.items()})

    @property
    def mean(self) -> Any:
        """The means of all distributions, as a tensordict."""
        return self._collected({key: dist.mean for key, dist in self.dists.items()})

    @property
    def deterministic_sample(self) -> TensorDict:
        """The deterministic samples of all distributions, as a tensordict."""
        return self._collected(
            {key: deterministic_sample(dist) for key, dist in self.dists.items()}
        )

    # Probabilities -------------------------------------------------------------------

    def _value(self, sample: CollectionProtocol, key: NestedKey) -> Any:
        value = sample.get(key)
        if value is None:
            msg = (
                "The value argument to log_prob must be a Tensor: the sample has no "
                f"entry {key!r}, only {list(sample.keys(True, True))}. "
                f"{type(self).__name__} needs a value for each of {list(self.dists)}: "
                "set it, or pass a name_map."
            )
            raise ValueError(msg)
        return value

    def _check_sample(self, sample: object) -> None:
        """Raise an error if a sample is no tensordict."""
        if isinstance(sample, CollectionProtocol):
            return
        kind = RuntimeError if isinstance(sample, torch.Tensor) else AttributeError
        raise kind(
            MSG_NO_SAMPLE.format(
                found=type(sample).__name__,
                name=type(self).__name__,
                keys=list(self.dists),
            )
        )

    def _log_probs(self, sample: CollectionProtocol) -> dict[NestedKey, torch.Tensor]:
        return {
            key: dist.log_prob(self._value(sample, key))
            for key, dist in self.dists.items()
        }

    def log_prob(self, sample: Any) -> Any:
        """Return the log-probabilities of a sample.

        Returns:
            A tensordict; if log-probabilities are aggregated, a tensor ``[*B]``: their
            sum.

        Raises:
            ValueError: the sample lacks an entry.
            AttributeError: the sample is no tensordict. A tensor raises a RuntimeError.
        """
        self._check_sample(sample)
        if not composite_lp_aggregate():
            return self.log_prob_composite(sample, include_sum=False)
        return _summed(self._log_probs(sample).values(), sample.ndim)

    def log_prob_composite(
        self, sample: Any, *, include_sum: bool | None = None
    ) -> Any:
        """Return the log-probability of each entry of a sample, as a tensordict.

        If log-probabilities are aggregated, they are written to the sample, which is
        returned.

        Args:
            sample: a tensordict of values.
            include_sum: whether to add the sum of the log-probabilities. Default: if
                they are aggregated.
        """
        self._check_sample(sample)
        aggregated = composite_lp_aggregate()
        if include_sum is None:
            include_sum = aggregated
        values = self._log_probs(sample)
        if aggregated:
            result = sample
        else:
            result = sample.select(*values).empty(recurse=True)
        for key, value in values.items():
            result.set(_add_suffix(key, "_log_prob"), value)
        if include_sum:
            result.set(self.log_prob_key, _summed(values.values(), sample.ndim))
        return result

    def _entropies(self, samples_mc: int) -> dict[NestedKey, torch.Tensor]:
        values = {}
        for key, dist in self.dists.items():
            try:
                values[key] = dist.entropy()
            except NotImplementedError:
                draw = dist.rsample if dist.has_rsample else dist.sample
                values[key] = -dist.log_prob(draw((samples_mc,))).mean(0)
        return values

    def entropy(
        self,
        samples_mc: int = 1,
        *,
        aggregate_probabilities: bool | None = None,
        include_sum: bool | None = None,
    ) -> Any:
        """Return the entropies, or their sum if log-probabilities are aggregated.

        Args:
            samples_mc: the number of samples for an estimate, if a distribution has no
                ``entropy``.
            aggregate_probabilities: deprecated; it has no effect.
            include_sum: see :meth:`entropy_composite`.
        """
        if aggregate_probabilities is not None:
            warn_deprecated(
                "CompositeDistribution.entropy(aggregate_probabilities=...), which has "
                "no effect,",
                "set_composite_lp_aggregate",
            )
        if not composite_lp_aggregate():
            return self.entropy_composite(samples_mc, include_sum=include_sum)
        return _summed(self._entropies(samples_mc).values(), len(self.batch_shape))

    def entropy_composite(
        self, samples_mc: int = 1, *, include_sum: bool | None = None
    ) -> TensorDict:
        """Return the entropy of each distribution, as a tensordict.

        Args:
            samples_mc: see :meth:`entropy`.
            include_sum: whether to add the sum of the entropies. Default: if
                log-probabilities are aggregated.
        """
        if include_sum is None:
            include_sum = composite_lp_aggregate()
        values = self._entropies(samples_mc)
        entries = {_add_suffix(key, "_entropy"): item for key, item in values.items()}
        if include_sum:
            entries[self.entropy_key] = _summed(values.values(), len(self.batch_shape))
        return self._collected(entries)

    def cdf(self, sample: Any) -> Any:
        """Write the cumulative probabilities under keys with the suffix ``_cdf``.

        Returns:
            The sample itself.
        """
        probabilities = {
            _add_suffix(key, "_cdf"): dist.cdf(self._value(sample, key))
            for key, dist in self.dists.items()
        }
        return sample.update(probabilities)

    def icdf(self, sample: Any) -> Any:
        """Write the quantiles of probabilities under keys with the suffix ``_icdf``.

        The probabilities are the entries that :meth:`cdf` writes. If the sample lacks
        them, they are computed from the sample.

        Returns:
            The sample itself.
        """
        quantiles = {}
        for key, dist in self.dists.items():
            probability = sample.get(_add_suffix(key, "_cdf"), None)
            if probability is None:
                probability = dist.cdf(self._value(sample, key))
            quantiles[_add_suffix(key, "_icdf")] = dist.icdf(probability)
        return sample.update(quantiles)

    def __repr__(self) -> str:
        """Return the text of the distributions."""
        return f"{type(self).__name__}({self.dists})"


def _by_key(mapping: dict[NestedKey, Any] | None) -> dict[NestedKey, Any]:
    return {_rust.unravel_key(key): value for key, value in (mapping or {}).items()}


def _summed(values: Any, num_dims: int) -> torch.Tensor:
    """Return the sum of tensors, each summed over the dims after ``num_dims``."""
    total: Any = 0.0
    for value in values:
        if value.ndim > num_dims:
            value = value.flatten(num_dims, -1).sum(-1)
        total = total + value
    return total


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
