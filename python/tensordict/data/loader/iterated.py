"""Iterate over a sampler of torch, or its like, and go on after a restart."""

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
"""Their iterators take nothing from torch's own generator after the first number."""

_COUNTS = ("num_replicas", "world_size", "num_processes", "num_shards")
_RANKS = ("rank", "process_index", "shard_index", "shard_id")


class Shares(NamedTuple):
    """The part of the rows that a sampler gives.

    Args:
        num_replicas: how many parts there are.
        rank: which one it is.
    """

    num_replicas: int
    rank: int


def checked_sampler(sampler: object) -> Any:
    """Check what is given as a sampler.

    Raises:
        TypeError: it gives nothing.
    """
    known = ("__iter__", "__getitem__", "draw")
    if sampler is not None and not any(hasattr(sampler, name) for name in known):
        msg = (
            "sampler must be a sampler of torch, a WeightedSampler or another iterable "
            f"over numbers of rows, got {type(sampler).__name__}."
        )
        raise TypeError(msg)
    return sampler


def _parts(sampler: object) -> list[Any]:
    """Return a sampler and those that it wraps, from the outermost inwards."""
    found = [sampler]
    for part in found:
        for name, value in getattr(part, "__dict__", {}).items():
            values = value if isinstance(value, (list, tuple)) else [value]
            for inner in values:
                is_new = not any(inner is one for one in found)
                if is_new and _is_sampler(inner, name):
                    found.append(inner)
    return found


def _is_sampler(value: object, name: str) -> bool:
    """Return whether the attribute ``name`` of a sampler has another sampler."""
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
    """Return the part that a sampler gives, if it shares the rows out to ranks itself."""
    if sampler is None or hasattr(sampler, "draw"):
        return None
    for part in _parts(sampler):
        count, rank = _int_of(part, _COUNTS), _int_of(part, _RANKS)
        if count is not None and rank is not None:
            return Shares(count, rank)
    return None


def rows_of(sampler: Sized) -> int:
    """Count the numbers that a sampler gives, also one that gives batches of them.

    Raises:
        TypeError: it does not say it.
    """
    size = getattr(sampler, "batch_size", None)
    if isinstance(sampler, BatchSampler) and isinstance(size, int):
        return len(sampler) * size
    return len(sampler)


def _part_with_epoch(sampler: object) -> Any:
    found = [part for part in _parts(sampler) if hasattr(part, "set_epoch")]
    return found[0] if found else None


def follows_epochs(sampler: object) -> bool:
    """Return whether a sampler is told the epoch, which decides its order."""
    return _part_with_epoch(sampler) is not None


def told_epoch(sampler: object) -> int | None:
    """Return the epoch that a sampler was told; None where it does not say it."""
    return _int_of(_part_with_epoch(sampler), ("epoch", "_epoch"))


def set_epoch(sampler: object, epoch: int) -> None:
    """Tell a sampler the epoch, if it wants to know it."""
    part = _part_with_epoch(sampler)
    if part is not None:
        part.set_epoch(epoch)


# The state of a sampler when an epoch begins ------------------------------------------


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
    """Return what decides the next rows of a sampler: its state, and its generators."""
    state: dict[str, Any] = {}
    part = _stateful(sampler)
    if part is not None:
        state["sampler"] = part.state_dict()
    found: list[Any] = []
    for generator in _generators(sampler):
        if isinstance(generator, torch.Generator):
            found.append(generator.get_state())
        elif isinstance(generator, random.Random):
            found.append(generator.getstate())
        else:
            found.append(generator.bit_generator.state)
    if found:
        state["generators"] = found
    return state or None


def _load(sampler: object, state: dict[str, Any]) -> None:
    part = _stateful(sampler)
    if part is not None and "sampler" in state:
        part.load_state_dict(state["sampler"])
    _load_generators(sampler, state)


def _load_generators(sampler: object, state: dict[str, Any]) -> None:
    # One that makes its generators when it begins has none yet.
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
    """The common generators of torch, Python and NumPy as a sampler finds them.

    They have a seed for the epoch, and are as they were for everybody else.

    Args:
        seed: that of the epoch.
        is_once: whether the sampler takes from that of torch alone, and when it begins.
    """

    def __init__(self, seed: int, is_once: bool) -> None:
        self._seed = seed
        self._is_once = is_once
        self._own: tuple[Any, ...] | None = None

    @contextlib.contextmanager
    def taken(self) -> Generator[None, None, None]:
        """Let the sampler take from them."""
        if self._is_once and self._own is not None:
            yield
            return
        before = self._states()
        if self._own is None:
            torch.default_generator.manual_seed(self._seed)
            if not self._is_once:
                random.seed(self._seed)
                np.random.seed(self._seed % 2**32)  # noqa: NPY002
        else:
            self._set(self._own)
        try:
            yield
        finally:
            self._own = self._states()
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
    """The rows of one epoch as a sampler of torch, or anything iterable, gives them.

    One that draws from the common generators gets a seed for the epoch, and these stay as
    they were.

    Args:
        sampler: gives numbers of rows.
        seed: that of the epoch.
        epoch: its number, for samplers that want it.
        state: that of the sampler when the epoch began.
        num_rows: of the source, which bounds the numbers.
        takes_batches: whether it may give lists of numbers as well.

    Attributes:
        state: of the sampler when the epoch began.
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
        with self._chance.taken():
            rows: Iterator[Any] = iter(sampler)
            first = list(itertools.islice(rows, 1))
            if not first and state is not None and "sampler" in state:
                # A state of the end of an epoch has nothing left, and the next has all.
                _load_generators(sampler, state)
                rows = iter(sampler)
        self._rows = self._numbers(itertools.chain(first, rows))

    def _numbers(self, given: Iterator[Any]) -> Iterator[Any]:
        if not self._takes_batches:
            return given
        return itertools.chain.from_iterable(
            one if isinstance(one, (list, tuple)) else (one,) for one in given
        )

    def skip(self, count: int | None) -> None:
        """Draw rows that were dealt before; None for all."""
        with self._chance.taken():
            for _ in itertools.islice(self._rows, count):
                pass

    def draw(self, count: int) -> torch.Tensor:
        """Draw the next rows, fewer at the end.

        Raises:
            TypeError: the sampler gives something that is no number.
            IndexError: it gives a row that is not there.
        """
        with self._chance.taken():
            numbers = list(itertools.islice(self._rows, count))
        try:
            rows = torch.tensor([one.__index__() for one in numbers], dtype=torch.int64)
        except (AttributeError, TypeError):
            kinds = sorted({type(one).__name__ for one in numbers})
            msg = (
                "A sampler gives numbers of rows, one at a time, and this one gives "
                f"{', '.join(kinds)}. The loader makes the batches: no batch sampler."
            )
            raise TypeError(msg) from None
        outside = (rows < -self._num_rows) | (rows >= self._num_rows)
        if bool(outside.any()):
            msg = (
                f"the sampler gave row {int(rows[outside][0])}, and there are "
                f"{self._num_rows} rows"
            )
            raise IndexError(msg)
        return rows.where(rows >= 0, rows + self._num_rows)
