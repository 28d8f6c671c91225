"""Iterate over a torch sampler, or another iterable, and resume after a restart."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sized

__all__ = [
    "SamplerRows",
    "Shares",
    "checked_sampler",
    "follows_epochs",
    "rows_of",
    "set_epoch",
    "shares_of",
    "state_of",
    "told_epoch",
]

_DRAW_AT_ONCE = (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    list,
    range,
    torch.Tensor,
    tuple,
)
"""Samplers whose iterators use torch's generator only before the first number."""

_COUNTS = ("num_replicas", "world_size", "num_processes", "num_shards")
_RANKS = ("rank", "process_index", "shard_index", "shard_id")


class Shares(NamedTuple):
    """The part of the rows that a sampler yields.

    Args:
        num_replicas: the number of parts.
        rank: the index of the part.
    """

    num_replicas: int
    rank: int


def checked_sampler(sampler: object) -> Any:
    """Check the ``sampler`` argument.

    Raises:
        TypeError: it cannot be iterated over.
    """
    methods = ("__iter__", "__getitem__", "draw")
    if sampler is not None and not any(hasattr(sampler, name) for name in methods):
        msg = (
            "sampler must be a torch sampler, a WeightedSampler or another iterable "
            f"over row indices, got {type(sampler).__name__}."
        )
        raise TypeError(msg)
    return sampler


def _parts(sampler: object) -> list[Any]:
    """Return a sampler and the samplers that it wraps, from the outermost inwards."""
    samplers = [sampler]
    for part in samplers:
        for name, value in getattr(part, "__dict__", {}).items():
            values = value if isinstance(value, (list, tuple)) else [value]
            for inner in values:
                is_new = not any(inner is sampler_found for sampler_found in samplers)
                if is_new and _is_sampler(inner, name):
                    samplers.append(inner)
    return samplers


def _is_sampler(value: object, name: str) -> bool:
    """Return whether the attribute ``name`` of a sampler holds another sampler."""
    if isinstance(value, Sampler) or "Sampler" in type(value).__name__:
        return True
    return "sampler" in name.lower() and hasattr(value, "__iter__")


def _int_of(part: object, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = getattr(part, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def shares_of(sampler: object) -> Shares | None:
    """Return the part that a sampler yields, if it divides the rows over ranks itself."""
    if sampler is None or hasattr(sampler, "draw"):
        return None
    for part in _parts(sampler):
        count, rank = _int_of(part, _COUNTS), _int_of(part, _RANKS)
        if count is not None and rank is not None:
            return Shares(count, rank)
    return None


def rows_of(sampler: Sized) -> int:
    """Return the number of rows that a sampler yields, also one that yields batches.

    Raises:
        TypeError: the sampler has no length.
    """
    size = getattr(sampler, "batch_size", None)
    if isinstance(sampler, BatchSampler) and isinstance(size, int):
        return len(sampler) * size
    return len(sampler)


def _part_with_epoch(sampler: object) -> Any:
    parts = [part for part in _parts(sampler) if hasattr(part, "set_epoch")]
    return parts[0] if parts else None


def follows_epochs(sampler: object) -> bool:
    """Return whether a sampler has ``set_epoch``, which decides its order."""
    return _part_with_epoch(sampler) is not None


def told_epoch(sampler: object) -> int | None:
    """Return the epoch that was set on a sampler; None if it has no such attribute."""
    return _int_of(_part_with_epoch(sampler), ("epoch", "_epoch"))


def set_epoch(sampler: object, epoch: int) -> None:
    """Set the epoch of a sampler, if it has ``set_epoch``."""
    part = _part_with_epoch(sampler)
    if part is not None:
        part.set_epoch(epoch)


# The state of a sampler at the start of an epoch --------------------------------------


def _generators(sampler: object) -> list[Any]:
    kinds = (torch.Generator, random.Random, np.random.Generator)
    return [
        value
        for part in _parts(sampler)
        for value in getattr(part, "__dict__", {}).values()
        if isinstance(value, kinds)
    ]


def _stateful(sampler: object) -> Any:
    for part in _parts(sampler):
        if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            return part
    return None


def state_of(sampler: object) -> dict[str, Any] | None:
    """Return the state that decides a sampler's next rows: its own and its generators'."""
    state: dict[str, Any] = {}
    part = _stateful(sampler)
    if part is not None:
        state["sampler"] = part.state_dict()
    generator_states: list[Any] = []
    for generator in _generators(sampler):
        if isinstance(generator, torch.Generator):
            generator_states.append(generator.get_state())
        elif isinstance(generator, random.Random):
            generator_states.append(generator.getstate())
        else:
            generator_states.append(generator.bit_generator.state)
    if generator_states:
        state["generators"] = generator_states
    return state or None


def _load(sampler: object, state: dict[str, Any]) -> None:
    part = _stateful(sampler)
    if part is not None and "sampler" in state:
        part.load_state_dict(state["sampler"])
    _load_generators(sampler, state)


def _load_generators(sampler: object, state: dict[str, Any]) -> None:
    # A sampler may create its generators only when it is iterated over.
    for generator, saved in zip(
        _generators(sampler), state.get("generators", ()), strict=False
    ):
        if isinstance(generator, torch.Generator):
            generator.set_state(saved)
        elif isinstance(generator, random.Random):
            version, numbers, following = saved
            generator.setstate((version, tuple(numbers), following))
        else:
            generator.bit_generator.state = saved


class _OwnChance:
    """The global generators of torch, Python and NumPy, as a sampler uses them.

    While the sampler runs, they are seeded for the epoch. Afterwards their states are
    restored for the rest of the program.

    Args:
        seed: the seed of the epoch.
        is_once: whether the sampler uses only torch's generator, and only at its start.
    """

    def __init__(self, seed: int, is_once: bool) -> None:
        self._seed = seed
        self._is_once = is_once
        self._own_states: tuple[Any, ...] | None = None

    @contextlib.contextmanager
    def active(self) -> Generator[None, None, None]:
        """Activate the sampler's states of the generators."""
        if self._is_once and self._own_states is not None:
            yield
            return
        before = self._states()
        if self._own_states is None:
            torch.default_generator.manual_seed(self._seed)
            if not self._is_once:
                random.seed(self._seed)
                np.random.seed(self._seed % 2**32)  # noqa: NPY002
        else:
            self._set(self._own_states)
        try:
            yield
        finally:
            self._own_states = self._states()
            self._set(before)

    def _states(self) -> tuple[Any, ...]:
        if self._is_once:
            return (torch.get_rng_state(),)
        return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002

    def _set(self, states: tuple[Any, ...]) -> None:
        torch.set_rng_state(states[0])
        if not self._is_once:
            random.setstate(states[1])
            np.random.set_state(states[2])  # noqa: NPY002


class SamplerRows:
    """The rows of one epoch that a torch sampler, or another iterable, yields.

    If the sampler draws from the global generators, these are seeded for the epoch, and
    restored afterwards.

    Args:
        sampler: an iterable over row indices.
        seed: the seed of the epoch.
        epoch: the number of the epoch, for ``set_epoch``.
        state: the state of the sampler at the start of the epoch.
        num_rows: the number of rows of the source, which bounds the indices.
        takes_batches: whether the sampler may yield lists of indices.

    Attributes:
        state: the state of the sampler at the start of the epoch.
    """

    def __init__(
        self,
        sampler: Iterable[object],
        seed: int,
        epoch: int,
        state: dict[str, Any] | None,
        num_rows: int,
        *,
        takes_batches: bool = False,
    ) -> None:
        self._num_rows = num_rows
        self._takes_batches = takes_batches
        if state is not None:
            _load(sampler, state)
        set_epoch(sampler, epoch)
        self.state: dict[str, Any] | None = state_of(sampler)
        self._chance = _OwnChance(seed, type(sampler) in _DRAW_AT_ONCE)
        with self._chance.active():
            rows: Iterator[Any] = iter(sampler)
            first = list(itertools.islice(rows, 1))
            if not first and state is not None and "sampler" in state:
                # A state from the end of an epoch yields no rows; the next epoch yields
                # all.
                _load_generators(sampler, state)
                rows = iter(sampler)
        self._rows = self._numbers(itertools.chain(first, rows))

    def _numbers(self, given: Iterator[Any]) -> Iterator[Any]:
        if not self._takes_batches:
            return given
        return itertools.chain.from_iterable(
            item if isinstance(item, (list, tuple)) else (item,) for item in given
        )

    def skip(self, count: int | None) -> None:
        """Draw rows that were dealt before; None draws all."""
        with self._chance.active():
            for _ in itertools.islice(self._rows, count):
                pass

    def draw(self, count: int) -> torch.Tensor:
        """Draw the next rows; fewer than ``count`` at the end.

        Raises:
            TypeError: the sampler yields something other than integers.
            IndexError: a row index is out of range.
        """
        with self._chance.active():
            numbers = list(itertools.islice(self._rows, count))
        try:
            rows = torch.tensor(
                [number.__index__() for number in numbers], dtype=torch.int64
            )
        except (AttributeError, TypeError):
            kinds = sorted({type(number).__name__ for number in numbers})
            msg = (
                "A sampler must yield row indices, one at a time, but this one yields "
                f"{', '.join(kinds)}. The loader makes the batches: pass no batch sampler."
            )
            raise TypeError(msg) from None
        outside = (rows < -self._num_rows) | (rows >= self._num_rows)
        if bool(outside.any()):
            msg = (
                f"the sampler yielded row {int(rows[outside][0])}, but there are "
                f"{self._num_rows} rows"
            )
            raise IndexError(msg)
        return rows.where(rows >= 0, rows + self._num_rows)
