"""Load batches of a collection: prefetched, in an order that can be taken up."""

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
    "The state is of a loader with {key}={theirs!r}, and this one has {key}={own!r}: "
    "another order of rows, which cannot go on in the middle."
)


class BatchLoader:
    """Load batches of the rows of a collection while you work on an earlier one.

    Each iteration is an epoch. A shuffled one has an order of its own, which seed and
    number of the epoch decide, for ever and on every machine; it needs no memory and no
    set-up, whatever the number of rows. Rows are copied by threads that need no Python.

    :meth:`state_dict` between two batches says where an epoch is. A loader that gets the
    state goes on with the batch that comes next, also one of another batch size, prefetch
    or number of ranks.

    Args:
        td: what is read: a collection whose first batch dim has the rows, in memory or in
            files, or a :class:`Mixture` of several. The URL of a save in an object store is
            loaded with the credentials of the environment.
        batch_size: how many rows a batch has.
        shuffle: True for a new order of all rows in each epoch; ``"blocks"`` for a new
            order of blocks of neighbours, for disks that seek.
        sampler: chooses the rows instead: a sampler of torch, anything iterable over
            numbers of rows, or a :class:`WeightedSampler`. It is asked in the thread that
            takes batches, as many batches earlier as are prefetched. One with
            ``num_replicas`` and ``rank``, or the like, gives the rows of its rank alone.
        generator: draws the seed.
        seed: decides the order. Default: drawn from torch's generator, or 0 where there
            are several ranks.
        drop_last: whether the last batch is left out if it is not whole.
        prefetch: how many batches are prefetched; 0 reads each when it is asked for.
        keys: the entries to read. Default: all.
        device: where batches go. Copies to a CUDA device overlap with its work.
        pin_memory: whether batches lie in memory from which such copies need not wait;
            ignored with a warning without CUDA. Default with a CUDA device: they do.
        rank: which part of each step this loader has. Default: that of its sampler, of
            ``torch.distributed`` if it is initialized, or 0.
        world_size: how many parts there are.
        mesh: deals by the data-parallel dims of a ``DeviceMesh`` instead: ranks that
            differ along other dims (tensor, pipeline, context parallel) get the same rows.
            The dims go by the names that libraries give them (``"dp"``, ``"fsdp"``,
            ``"tp"``); a part of one dim, such as ``mesh["dp"]``, may have any name.
        uneven: what becomes of the last rows, if ranks cannot have equally many: ``"pad"``
            repeats rows of the epoch, ``"drop"`` leaves them out. Ranks always have
            equally many batches of equal sizes.
        transform: is called with each batch, and gives what comes instead of it.
        workers: how many threads or processes call it. With 0 it is called in the thread
            that takes the batches.
        backend: what the workers are: ``"threads"`` or ``"processes"``.
        mp_start_method: how processes are started.
        recycle: whether the memory of a batch is used again when nobody has the batch, a
            part or a view of it any more.
        block_size: how many neighbours stay together in a shuffled epoch.
        ragged: what becomes of rows that differ in shape, as of :func:`gather`.
        padding_value: what fills them up.
        mask_key: where the masks of padded entries go, as of :func:`gather`.

    Raises:
        TypeError, ValueError: an argument is none that is described here.
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
                # Its batches are of rows of several collections.
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
        # Ranks with the same rows have one order, also where there is one part alone.
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
            msg = "A loader takes a seed or a generator that draws it, and not both."
            raise ValueError(msg)
        if seed is not None:
            return checked_number("seed", seed, -(2**63))
        if generator is None and not is_drawn:
            return 0
        return int(torch.empty((), dtype=torch.int64).random_(generator=generator))

    @property
    def seed(self) -> int:
        """The number that decides the order, together with the epoch."""
        return self.order.seed

    @property
    def epoch(self) -> int:
        """The epoch of the last batch, or the one that begins next."""
        return self._where().epoch

    @property
    def progress(self) -> tuple[int, int | None]:
        """The number of batches that were taken, and that of the epoch, if it is known."""
        done = -(-self._where().position // self.dealing.step_rows)
        try:
            return done, len(self)
        except TypeError:
            return done, None

    def num_rows(self) -> int:
        """Count the rows of an epoch, of all ranks.

        Raises:
            TypeError: the sampler does not say it.
        """
        if self.shares is not None:
            return rows_of(self.sampler) * self.shares.num_replicas
        if self.sampler is not None:
            return len(self.sampler)
        if isinstance(self.source, Mixture):
            return len(self.source)
        return self.source.num_rows

    def __len__(self) -> int:
        """Count the batches of a whole epoch.

        Raises:
            TypeError: the sampler does not say how many rows it gives.
        """
        if self.shares is not None:
            # The sampler has made the parts equal, if it wants them so.
            return replace(self.dealing, rank=0, world_size=1).num_batches(
                rows_of(self.sampler)
            )
        return self.dealing.num_batches(self.num_rows())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration is.

        If a state of this epoch was loaded, it is gone on with. An iterator that has not
        given a batch yet takes part.
        """
        epoch = checked_number("epoch", epoch, 0)
        start = self._next
        self._come(start if start.epoch == epoch else self._moved(start, epoch))

    @property
    def batch_sampler(self) -> EpochTold:
        """By this the training loops of others tell the epoch, as to a ``DataLoader``."""
        return EpochTold(self)

    def _come(self, start: EpochState) -> None:
        """Begin there with the next iteration."""
        self._next, self._current = start, None
        self._told = told_epoch(self.sampler)

    def _moved(self, start: EpochState, epoch: int) -> EpochState:
        """Go from a place to the beginning of an epoch."""
        if start.position == 0:
            return replace(start, epoch=epoch)
        if start.sampler is not None:
            # The sampler goes on from what it was, through what was taken.
            drawing_for(self.sampler)(self, start).next()
        return EpochState(epoch)

    def _is_at_end(self, start: EpochState) -> bool:
        try:
            left = self.num_rows() - start.position
        except TypeError:
            return False
        return start.position > 0 and self.dealing.num_batches(max(0, left)) == 0

    def _tell(self, epoch: int) -> None:
        """Begin an epoch of somebody's loop, unless a later one or a part of one is due.

        A loop that knows the number of batches does not ask for more of them than there
        are. So a state that it saved behind the last one has an iteration with nothing.
        """
        start = self._next
        if start.epoch < epoch:
            if start.position == 0 and start.sampler is None:
                # A loop that goes on at the end of an epoch may give no state back.
                epochs = range(start.epoch, epoch)
                drawing_for(self.sampler).pass_over(self, epochs)
            start = self._moved(start, epoch)
        elif start.epoch == epoch and self._is_at_end(start):
            start = self._moved(start, epoch + 1)
        self._come(start)

    def __iter__(self) -> Epoch:
        """Begin the next epoch, or go on where a state was taken."""
        self._current = None
        return Epoch(self)

    def _beginning(self, epoch: Epoch) -> EpochState:
        """Return where an iterator begins: in the epoch that the sampler was told."""
        start, told = self._next, told_epoch(self.sampler)
        if told is not None and told not in (self._told, start.epoch):
            start = self._moved(start, told)
        self._next, self._current = EpochState(start.epoch + 1), epoch
        self._told = start.epoch
        return start

    def _ended(self, epoch: Epoch) -> None:
        """Tell the sampler the epoch that comes, so that another one is noticed."""
        if self._told == epoch.start.epoch == told_epoch(self.sampler):
            self._told = epoch.start.epoch + 1
            set_epoch(self.sampler, self._told)

    def _where(self) -> EpochState:
        epoch = self._current
        return self._next if epoch is None or epoch.is_finished else epoch.state()

    def _state(self) -> EpochState:
        """Return where it is, with what decides the rows that follow."""
        where = self._where()
        if where.sampler is not None or where.position > 0:
            return where
        between = drawing_for(self.sampler).between(self)
        return replace(where, sampler=between)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the iteration: behind the batch that was returned last.

        It has numbers, and tensors where a sampler has some.
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
        """Go on where a state was taken, with the next iteration. The seed is the state's.

        An iterator that has not given a batch yet takes part.

        Raises:
            ValueError: the state is of another number of rows, or of another kind of order.
        """
        if state.get("version") != _VERSION:
            msg = (
                f"The state has the version {state.get('version')!r}, and this loader reads "
                f"version {_VERSION}: it is of a newer package, or of something else."
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
        """Return the state for another process: threads and processes stay here."""
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
    """The part of a loader that training loops look for, to tell the number of an epoch.

    Args:
        loader: the loader.
    """

    def __init__(self, loader: BatchLoader) -> None:
        self._loader = loader

    @property
    def sampler(self) -> EpochTold:
        """This."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next iteration, unless a part of one is due."""
        self._loader._tell(epoch)
