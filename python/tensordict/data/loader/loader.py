"""The loader of batches: prefetched, shuffled, and resumable."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from tensordict.data.loader.arguments import (
    checked_block_size,
    checked_options,
    dealing_of,
    names_ours,
    pins,
)
from tensordict.data.loader.drawing import EpochState, drawing_for
from tensordict.data.loader.epoch import Epoch
from tensordict.data.loader.iterated import (
    checked_sampler,
    rows_of,
    set_epoch,
    shares_of,
    told_epoch,
)
from tensordict.data.loader.mixture import Mixture
from tensordict.data.loader.order import Dealing, Order, checked_number
from tensordict.data.loader.source import FormedBatch, OneSource, checked_rows
from tensordict.data.ragged import RaggedForm
from tensordict.storage.functions import load_memmap
from tensordict.storage.locations import scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch.distributed.device_mesh import DeviceMesh

    from tensordict._nestedkey import NestedKey
    from tensordict.data.loader.iterated import Shares
    from tensordict.data.loader.order import Uneven
    from tensordict.data.loader.source import Source
    from tensordict.data.ragged import Ragged
    from tensordict.parallel.processes import ProcessesBackend
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["BatchLoader"]

_VERSION = 1

MSG_FACT = (
    "The state is of a loader with {key}={theirs!r}, but this loader has {key}={own!r}: "
    "the orders of rows differ, so it cannot resume in the middle of an epoch."
)


class BatchLoader:
    """A loader of batches of rows, which prefetches while you work on an earlier batch.

    Each iteration is one epoch. The order of a shuffled epoch depends only on the seed
    and the number of the epoch, and is the same on every machine. A shuffle needs no
    memory and no set-up, for any number of rows. Native threads copy the rows without
    the GIL.

    :meth:`state_dict` can be taken between any two batches. A loader that loads the
    state resumes at the next batch, also with another batch size, prefetch or number of
    ranks.

    Args:
        td: the tensordict to read, in memory or memory-mapped; its first batch
            dimension counts the rows. Also a :class:`Mixture` of several, or the URL of
            a save in an object store, which is opened with the credentials of the
            environment.
        batch_size: the number of rows of a batch.
        shuffle: True for a new order of all rows in each epoch; ``"blocks"`` for a new
            order of blocks of neighbouring rows, for disks with slow seeks.
        sampler: an iterable that yields the row indices instead: a torch sampler, any
            other iterable, or a :class:`WeightedSampler`. It is asked in the thread
            that takes batches, ``prefetch`` batches ahead. A sampler with
            ``num_replicas`` and ``rank``, or similar attributes, yields only the rows
            of its rank.
        generator: the generator from which the seed is drawn.
        seed: the seed of the order. Default: drawn from torch's generator, or 0 if
            there are several ranks.
        drop_last: whether to leave out the last batch if it has fewer rows.
        prefetch: the number of batches to prefetch; 0 reads each batch when it is
            needed.
        keys: the entries to read. Default: all.
        device: the device of the batches. Copies to a CUDA device overlap with its
            work.
        pin_memory: whether batches are in pinned memory, so that copies to a CUDA
            device are asynchronous. Ignored with a warning without CUDA. Default: True
            with a CUDA device.
        rank: the part of each step that this loader yields. Default: the part of its
            sampler, of ``torch.distributed`` if it is initialized, or 0.
        world_size: the number of parts.
        mesh: a ``DeviceMesh`` that replaces ``rank`` and ``world_size``. Rows are dealt
            along its data-parallel dimensions; ranks that differ along other dimensions
            (tensor, pipeline, context parallel) get the same rows. Dimensions are
            recognized by their usual names (``"dp"``, ``"fsdp"``, ``"tp"``). A mesh of
            one dimension, such as ``mesh["dp"]``, may have any name.
        uneven: how to deal the last rows if ranks cannot get equally many: ``"pad"``
            repeats rows of the epoch, ``"drop"`` leaves them out. All ranks always get
            equally many batches of equal sizes.
        transform: a function that is called with each batch; the loader yields its
            result.
        workers: the number of threads or processes that call ``transform``. With 0, the
            thread that takes the batches calls it.
        backend: the kind of workers: ``"threads"`` or ``"processes"``.
        mp_start_method: the start method of processes.
        recycle: whether to reuse the memory of a batch after the batch, its tensors and
            their views are garbage-collected.
        block_size: the number of neighbouring rows in a block of ``shuffle="blocks"``.
        ragged: the form of rows that differ in shape, as in :func:`gather`.
        padding_value: the value of padding.
        mask_key: the key for masks of padded entries, as in :func:`gather`.

    Raises:
        TypeError, ValueError: an argument has a wrong type or value.
        KeyError: ``td`` lacks an entry of ``keys``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.data import BatchLoader
        >>> td = TensorDict(x=torch.arange(10), batch_size=[10])
        >>> for batch in BatchLoader(td, 4):
        ...     print(batch["x"])
        tensor([0, 1, 2, 3])
        tensor([4, 5, 6, 7])
        tensor([8, 9])
        >>> loader = BatchLoader(td, 4, shuffle=True, seed=0)
        >>> len(loader)
        3
        >>> batches = iter(loader)
        >>> _ = next(batches)
        >>> other = BatchLoader(td, 4, shuffle=True)
        >>> other.load_state_dict(loader.state_dict())
        >>> torch.equal(next(iter(other))["x"], next(batches)["x"])
        True
    """

    @names_ours
    def __init__(
        self,
        td: CollectionProtocol,
        batch_size: int,
        *,
        shuffle: bool | Literal["blocks"] = False,
        sampler: Iterable[int] | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        prefetch: int = 2,
        keys: Iterable[NestedKey] | None = None,
        device: torch.device | str | int | None = None,
        pin_memory: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        uneven: Uneven = "pad",
        transform: Callable[[Any], Any] | None = None,
        workers: int = 0,
        backend: Literal["threads", "processes"] = "threads",
        mp_start_method: str | None = None,
        recycle: bool = True,
        block_size: int | None = None,
        ragged: Ragged | None = None,
        padding_value: float = 0.0,
        mask_key: NestedKey | Mapping[NestedKey, NestedKey] | None = None,
    ) -> None:
        if scheme_of(td) is not None:
            td = load_memmap(cast("Any", td))
        if not isinstance(td, Mixture):
            checked_rows(td)
        if keys is not None:
            td = td.select(*keys)
        checked_options(transform, backend)
        form = None
        if ragged is not None or mask_key is not None:
            parts = td.sources if isinstance(td, Mixture) else [td]
            form = RaggedForm(parts, ragged, padding_value, mask_key)
        self.source: Source
        if not isinstance(td, Mixture):
            self.source = OneSource(td, form)
        else:
            self.source = td
            if form is not None:
                # A batch of a mixture may contain rows of several tensordicts.
                transform = FormedBatch(form, transform)
        self.batch_size: int = checked_number("batch_size", batch_size, 1)
        self.prefetch: int = checked_number("prefetch", prefetch, 0)
        self.workers: int = checked_number("workers", workers, 0)
        self.drop_last: bool = drop_last
        self.sampler: Any = checked_sampler(sampler)
        self.shares: Shares | None = shares_of(sampler)
        self.transform: Callable[[Any], Any] | None = transform
        self.backend: str = backend
        self.mp_start_method: str | None = mp_start_method
        self.recycle: bool = recycle
        self.device: torch.device | None = (
            None if device is None else torch.device(device)
        )
        self.pin_memory: bool = pins(pin_memory, self.device)
        self.dealing: Dealing = dealing_of(
            self.batch_size, rank, world_size, drop_last, uneven, self.shares, mesh
        )
        is_random = bool(shuffle) or sampler is not None
        # Ranks that get the same rows need one order, also if there is only one part.
        has_one_order = self.dealing.world_size > 1 or mesh is not None
        block_size = checked_block_size(shuffle, block_size, sampler)
        self.order: Order = Order(
            bool(shuffle),
            block_size,
            self._seed(seed, generator, is_random and not has_one_order),
        )
        self.pool: ProcessesBackend | None = None
        self._next = EpochState(0)
        self._current: Epoch | None = None
        self._told: int | None = 0

    def _seed(
        self, seed: int | None, generator: torch.Generator | None, is_drawn: bool
    ) -> int:
        if seed is not None and generator is not None:
            msg = (
                "Pass either seed= or generator=, from which a seed is drawn, not both."
            )
            raise ValueError(msg)
        if seed is not None:
            return checked_number("seed", seed, -(2**63))
        if generator is None and not is_drawn:
            return 0
        return int(torch.empty((), dtype=torch.int64).random_(generator=generator))

    @property
    def seed(self) -> int:
        """The seed of the order. The order depends on it and on the epoch."""
        return self.order.seed

    @property
    def epoch(self) -> int:
        """The epoch of the last batch, or the next epoch between two epochs."""
        return self._where().epoch

    @property
    def progress(self) -> tuple[int, int | None]:
        """The number of batches taken, and the number in the epoch, or None if unknown."""
        done = -(-self._where().position // self.dealing.step_rows)
        try:
            return done, len(self)
        except TypeError:
            return done, None

    def num_rows(self) -> int:
        """Return the number of rows of an epoch, over all ranks.

        Raises:
            TypeError: the sampler has no length.
        """
        if self.shares is not None:
            return rows_of(self.sampler) * self.shares.num_replicas
        if self.sampler is not None:
            return len(self.sampler)
        if isinstance(self.source, Mixture):
            return len(self.source)
        return self.source.num_rows

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch.

        Raises:
            TypeError: the sampler has no length.
        """
        if self.shares is not None:
            # The sampler divides the rows, so its length is this rank's.
            return replace(self.dealing, rank=0, world_size=1).num_batches(
                rows_of(self.sampler)
            )
        return self.dealing.num_batches(self.num_rows())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration.

        If a state of this epoch was loaded, the iteration resumes from it. The call
        also affects an iterator that has not yielded a batch yet.
        """
        epoch = checked_number("epoch", epoch, 0)
        start = self._next
        self._come(start if start.epoch == epoch else self._moved(start, epoch))

    @property
    def batch_sampler(self) -> EpochTold:
        """An object on which training loops set the epoch, as on a ``DataLoader``."""
        return EpochTold(self)

    def _come(self, start: EpochState) -> None:
        """Start the next iteration at a position."""
        self._next, self._current = start, None
        self._told = told_epoch(self.sampler)

    def _moved(self, start: EpochState, epoch: int) -> EpochState:
        """Return the start of another epoch, after moving the sampler there."""
        if start.position == 0:
            return replace(start, epoch=epoch)
        if start.sampler is not None:
            # The sampler continues from its loaded state, after the rows taken before.
            drawing_for(self.sampler)(self, start).next()
        return EpochState(epoch)

    def _is_at_end(self, start: EpochState) -> bool:
        try:
            left = self.num_rows() - start.position
        except TypeError:
            return False
        return start.position > 0 and self.dealing.num_batches(max(0, left)) == 0

    def _tell(self, epoch: int) -> None:
        """Start an epoch of a training loop, unless a later epoch or part of one is due.

        A loop that knows the number of batches does not ask for another one after the
        last. So the state that it saved there is at the end of its epoch, and would
        yield no batch.
        """
        start = self._next
        if start.epoch < epoch:
            if start.position == 0 and start.sampler is None:
                # A loop that resumes at the end of an epoch may not load a state.
                epochs = range(start.epoch, epoch)
                drawing_for(self.sampler).pass_over(self, epochs)
            start = self._moved(start, epoch)
        elif start.epoch == epoch and self._is_at_end(start):
            start = self._moved(start, epoch + 1)
        self._come(start)

    def __iter__(self) -> Epoch:
        """Begin the next epoch, or resume from a loaded state."""
        self._current = None
        return Epoch(self)

    def _beginning(self, epoch: Epoch) -> EpochState:
        """Return the start of an iterator: in the epoch that was set on the sampler."""
        start, told = self._next, told_epoch(self.sampler)
        if told is not None and told not in (self._told, start.epoch):
            start = self._moved(start, told)
        self._next, self._current = EpochState(start.epoch + 1), epoch
        self._told = start.epoch
        return start

    def _ended(self, epoch: Epoch) -> None:
        """Set the next epoch on the sampler, so that a call of ``set_epoch`` is noticed."""
        if self._told == epoch.start.epoch == told_epoch(self.sampler):
            self._told = epoch.start.epoch + 1
            set_epoch(self.sampler, self._told)

    def _where(self) -> EpochState:
        epoch = self._current
        return self._next if epoch is None or epoch.is_finished else epoch.state()

    def _state(self) -> EpochState:
        """Return the position, with the state that decides the following rows."""
        where = self._where()
        if where.sampler is not None or where.position > 0:
            return where
        between = drawing_for(self.sampler).between(self)
        return replace(where, sampler=between)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the iteration, after the last returned batch.

        The state contains numbers, and tensors if the sampler has some.
        """
        where = self._state()
        return {
            "version": _VERSION,
            "epoch": where.epoch,
            "position": where.position,
            "sampler": where.sampler,
            "seed": self.seed,
            **self._facts(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state in the next iteration. The seed becomes the state's.

        The call also affects an iterator that has not yielded a batch yet.

        Raises:
            ValueError: the state is of another number of rows, or of another kind of
                order.
        """
        if state.get("version") != _VERSION:
            msg = (
                f"The state has version {state.get('version')!r}, but this loader reads "
                f"version {_VERSION}: a newer package saved it, or it is not a loader's state."
            )
            raise ValueError(msg)
        own = self._facts()
        for key, value in own.items():
            if state.get(key) != value and key != "weights":
                msg = MSG_FACT.format(key=key, theirs=state.get(key), own=value)
                raise ValueError(msg)
        if isinstance(self.source, Mixture) and state.get("weights") is not None:
            self.source.weights = state["weights"]
        self.order = Order(self.order.shuffle, self.order.block_size, state["seed"])
        self._come(EpochState(state["epoch"], state["position"], state["sampler"]))

    def _facts(self) -> dict[str, Any]:
        weights = self.source.weights if isinstance(self.source, Mixture) else None
        return {
            "num_rows": self.source.num_rows,
            "shuffle": self.order.shuffle,
            "block_size": self.order.block_size,
            "has_sampler": self.sampler is not None,
            "weights": weights,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, without threads and processes."""
        state = {**vars(self), "pool": None}
        state["_next"], state["_current"] = self._state(), None
        return state

    def __repr__(self) -> str:
        done, total = self.progress
        return (
            f"BatchLoader(num_rows={self.source.num_rows}, batch_size={self.batch_size}, "
            f"epoch={self.epoch}, batch={done} of {'?' if total is None else total})"
        )


class EpochTold:
    """A stand-in for the sampler of a ``DataLoader``, on which loops set the epoch.

    Args:
        loader: the loader.
    """

    def __init__(self, loader: BatchLoader) -> None:
        self._loader = loader

    @property
    def sampler(self) -> EpochTold:
        """This object itself."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next iteration, unless a part of one is due."""
        self._loader._tell(epoch)
