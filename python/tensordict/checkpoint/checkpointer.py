"""The checkpointer: steps that appear whole, of which a killed training goes on."""

from __future__ import annotations

import inspect
import math
import threading
from typing import TYPE_CHECKING, Any, Literal

import torch

from tensordict.checkpoint.background import Writer
from tensordict.checkpoint.distributed import (
    Publication,
    group_of,
    mark_failed,
    ranks,
    refuse_unshared,
    sweep_parts,
)
from tensordict.checkpoint.exporting import Exporting
from tensordict.checkpoint.files import StepParts
from tensordict.checkpoint.items import describe_all
from tensordict.checkpoint.loading import load_step
from tensordict.checkpoint.lost_ranks import tell_process
from tensordict.checkpoint.mirroring import Mirroring
from tensordict.checkpoint.preemption import Preemption
from tensordict.checkpoint.randomness import set_random_states
from tensordict.checkpoint.restoring import Restored, restore_items
from tensordict.checkpoint.save_order import SaveOrder
from tensordict.checkpoint.steps import Step, Steps, read_meta, step_name
from tensordict.checkpoint.turns import Turn, step_fields
from tensordict.checkpoint.writing import plan_step
from tensordict.primitives.closing import Closing
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.errors import KeyMessageError
from tensordict.storage.encoding import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.items import Described
    from tensordict.checkpoint.mirror import Mirror
    from tensordict.checkpoint.reading import StepFiles
    from tensordict.checkpoint.shares import Shared, Sharer
    from tensordict.checkpoint.writing import Plan


__all__ = ["Checkpointer"]

MSG_STEP = "A step is a number from 0 on, got {!r}."
MSG_KEEP = "{} is a number from 1 on, or None, got {!r}."
MSG_BUSY = "when_busy is 'wait', 'skip' or 'queue', got {!r}."
MSG_MODE = "mode is 'min' or 'max', got {!r}."
MSG_CLOSED = "The checkpointer is closed."
MSG_SHARED_STORE = (
    "shared=False keeps the parts of each node in a folder of its own, and all nodes share "
    "the object store {!r}: leave out shared=False, or the URL."
)
MSG_FILE = "The steps of a checkpointer are in a directory, and '{}' is a file."
MSG_OPTION = (
    "{name!r} is an option of the checkpointer, and not of save: make it with "
    "Checkpointer(directory, {name}={value!r}). An item needs another name."
)
MSG_NO_METRIC = "No step in '{}' has the metric {!r}: there {}."
MSG_STEPS = "All ranks ask for the same step, and they asked for {}, by rank."
MSG_NOTHING = "Nothing is to be saved: give items, such as model=model."

_MAX_ATTEMPTS = 100
"""The number of times that a step that is replaced while it is read is read again."""


class Checkpointer(SaveOrder, Exporting, Mirroring, Closing):
    """Saves the steps of a training in a folder, and restores them.

    A step is the directory ``step-<number>``: safetensors files under the plain names of
    ``state_dict()``, which other libraries read, and ``meta.json``. It appears whole, and
    stays whole when it is copied alone or when other steps are deleted.

    Args:
        directory: the folder, which is made when the first step is saved; or the URL of one
            in an object store (``"s3://bucket/run"``).
        keep: how many of the steps that were saved last are kept; None for all. Others
            are deleted once a new one is there. Steps of another job that is still
            running in the same folder neither count nor are deleted.
        keep_every: steps whose number is a multiple of this are kept, too.
        durable: whether a step is on the disk when it is there, and survives a power cut.
        shards: the files of each item. Default: one, or as many as there are threads where
            it is large, since threads write side by side.
        dedupe: whether tensors that did not change since the step before are not written
            again: their files get a second name. A tensor is a file of its own then.
        when_busy: what a save does while the one before is written: ``"wait"`` for it,
            ``"skip"`` this one, or ``"queue"`` it, with memory of its own.
        background: whether a save copies the values and returns, and threads write them.
        handle_sigterm: whether SIGTERM sets :attr:`preempted` and does not end the
            process. A handler that was there before is called as well.
        num_threads: the most threads. Default: the cores of this process, at most 8.
        rank_timeout: how many seconds rank 0 waits for the parts of others. It does not
            wait for a process of its own machine that has ended.
        per_rank: the names of modules and optimizers of which each rank saves its own,
            which other ranks have under the same name for other things.
        process_group: the ranks that save and restore together: a ``ProcessGroup``, or a
            ``DeviceMesh``, such as ``mesh["dp"]``. Default: all. Every call that ranks
            make together goes over it. Groups save at the same time, each into a folder
            of its own; the parts of a ``DTensor`` are in one group.
        shared: whether all ranks have the directory. With False, for the local disks of
            nodes, each folder gets steps of its own with the parts of the ranks that have
            it, which are restored from there by the same ranks. What several folders need
            is in each. :meth:`steps` and :meth:`latest` are those of this folder;
            :meth:`restore` takes the newest step that all folders have.
        mirror: the URL of a folder in an object store, to which the steps of ``directory``
            go up behind the training. Steps that are no more here are found there.
        staging: where the steps of a URL are made before they go up. Default: a folder
            below ``TMPDIR``. Several ranks share it.
        storage_options: the options of the object store, as of :meth:`TensorDict.memmap`.

    Raises:
        ValueError: this process is not in ``process_group``, or ``shared=False`` comes with
            an object store.

    Examples:
        >>> import tempfile
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> checkpointer = Checkpointer(tempfile.mkdtemp())
        >>> path = checkpointer.save(1, model=model, optimizer=optimizer, epoch=3)
        >>> checkpointer.steps()
        [1]
        >>> checkpointer.restore(model=model, optimizer=optimizer)
        {'epoch': 3}
    """

    def __init__(
        self,
        directory: Any,
        *,
        keep: int | None = 3,
        keep_every: int | None = None,
        durable: bool = True,
        shards: int | None = None,
        dedupe: bool = False,
        when_busy: Literal["wait", "skip", "queue"] = "wait",
        background: bool = False,
        handle_sigterm: bool = False,
        num_threads: int = 0,
        rank_timeout: float = 1800.0,
        per_rank: Collection[str] = (),
        process_group: ProcessGroup | DeviceMesh | None = None,
        shared: bool = True,
        mirror: object = None,
        staging: str | Path | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        for name, count in (
            ("keep", keep),
            ("keep_every", keep_every),
            ("shards", shards),
        ):
            if count is not None and (not isinstance(count, int) or count < 1):
                raise ValueError(MSG_KEEP.format(name, count))
        if when_busy not in ("wait", "skip", "queue"):
            raise ValueError(MSG_BUSY.format(when_busy))
        self.keep: int | None = keep
        self.keep_every: int | None = keep_every
        self.directory: Path
        self._mirror: Mirror | None
        self._place(directory, mirror, staging, storage_options)
        if not shared and self._mirror is not None:
            raise ValueError(MSG_SHARED_STORE.format(mirror or directory))
        for place in (self.directory, *self.directory.parents):
            if place.is_file():
                raise NotADirectoryError(MSG_FILE.format(place))
        self.durable = durable
        self.shards = shards
        self.dedupe = dedupe
        self.when_busy = when_busy
        self.background = background
        self.num_threads = num_threads
        self.rank_timeout = rank_timeout
        self.per_rank = per_rank
        self.handle_sigterm = handle_sigterm
        self.process_group: Any = group_of(process_group)
        self.shared = shared
        found = ranks(self.process_group)
        if found is not None:
            tell_process(found.members[found.rank])
        self._steps: Steps = Steps(self.directory)
        self._writer: Writer = Writer((num_threads, durable, True))
        # The handler of a signal may save in the middle of a save of the same thread.
        self._lock: threading.RLock = threading.RLock()
        self._is_saving: bool = False
        self._last_order: int = -1
        self._tokens: dict[int, str] = {}
        # Steps that rank 0 publishes, of which this rank has written a part.
        self._published: list[Publication] = []
        self._is_shared: bool = False
        self._last_sharer: Sharer | None = None
        self._last: tuple[Step, dict[str, Any]] | None = None
        self._is_closed: bool = False
        self._preemption: Preemption = Preemption(handle_sigterm)
        self._preempted: threading.Event = self._preemption.event

    # Saving -------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        background: bool | None = None,
        trainable_only: bool = False,
        rng: bool = True,
        **items: object,
    ) -> Path | None:
        """Save a step, in the place of one of this number if there is one.

        The values are those of the call, also where they are written later. It may be
        called by the handler of a signal.

        Args:
            step: its number.
            metrics: numbers by which :meth:`best` finds it.
            background: whether this returns once the values are copied. Default: as the
                checkpointer was made.
            trainable_only: whether parameters that need no gradient are left out; a
                restored model keeps its own.
            rng: whether the random states of Python, NumPy and torch are saved.
            **items: modules, optimizers, schedulers, whatever has ``state_dict()``,
                collections, tensors, and plain data.

        Returns:
            The directory of the step; None if it was skipped.

        Raises:
            OSError: it could not be written, or one before it in the background: older
                steps are there still.
            TypeError: an item holds something that a checkpoint cannot, or is named as an
                option of the checkpointer.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(MSG_STEP.format(step))
        if not items:
            raise ValueError(MSG_NOTHING)
        for name in _OPTIONS & items.keys():
            raise TypeError(MSG_OPTION.format(name=name, value=items[name]))
        fields = step_fields(metrics, rng=rng)
        with self._lock:
            if self._is_closed:
                raise RuntimeError(MSG_CLOSED)
            if self._is_saving:
                # This is the handler of a signal, and the save that it came upon waits.
                turn = self._turn(step, None, is_later=False, is_free=True)
                return self._save(step, fields, items, trainable_only, turn)
            self._is_saving = True
            try:
                is_later = self.background if background is None else background
                turn = self._turn(step, self._saving_ranks(step), is_later)
                if not turn.is_free:
                    return None
                return self._save(step, fields, items, trainable_only, turn)
            finally:
                self._is_saving = False

    def _save(
        self,
        step: int,
        fields: dict[str, Any],
        items: dict[str, Any],
        trainable_only: bool,
        turn: Turn,
    ) -> Path:
        """Save a step, or the part of this rank: rank 0 publishes it when all have theirs."""
        group, rank = turn.ranks, turn.rank
        path = self.directory / step_name(step)
        new = Step(step, turn.order, {}, path, turn.process)
        error: Exception | None = None
        described: list[Described] = []
        try:
            described = describe_all(
                items, self.per_rank, trainable_only=trainable_only
            )
            if group is not None:
                refuse_unshared(self.directory, turn, is_known=self._is_shared)
        except Exception as found:
            error = found
            if group is None:
                raise
        shared = self._share(group, described, error)
        own, others = turn.places(self.directory)
        if group is not None:
            fields = {**fields, "world": group.here or group.world}
            if group.here:
                fields["ranks"] = list(group.order)
        try:
            if rank:
                self._is_free(turn.is_later)
            else:
                self._sweep_parts(turn)
            plan = plan_step(
                self.directory,
                step,
                shared,
                {"order": turn.order, "process": turn.process, **fields},
                shards=self.shards,
                retired=[] if rank else self._retired(turn, new),
                before=self._before(turn) if self.dedupe else None,
                dedupe=self.dedupe,
                digest_threads=self.num_threads,
                rank=rank,
                target=own,
                gathered=(others, self.rank_timeout),
                writers=turn.members[1 : len(others) + 1],
            )
            self._write(plan, new, turn)
        except Exception as found:
            error = found
            if group is not None:
                mark_failed(own or group.folder(self.directory, turn.token), found)
            if group is None or turn.is_later:
                raise
        if group is not None and not turn.is_later:
            try:
                group.raise_together(error)
            except Exception:
                self._published.clear()
                raise
            if rank == 0:
                sweep_parts(self.directory, [])
            self._await_published()
        if shared.warning is not None:
            warn_caller(shared.warning, UserWarning)
        return path

    def _ranks(self) -> Ranks | None:
        """Return the ranks that save and restore together; None for a process alone."""
        return ranks(self.process_group)

    def _saving_ranks(self, number: int) -> Ranks | None:
        """Return the ranks, where ``shared=False`` those with the folder of this first."""
        found = self._ranks()
        if found is None or self.shared:
            return found
        return found.by_folder(f"save({number})", self.directory)

    def _share(
        self, group: Ranks | None, described: list[Described], error: Exception | None
    ) -> Shared:
        """Agree on what each rank writes, or raise what one of them has met before."""
        if group is None:
            return self._sharer(group).share(described)
        try:
            group.raise_together(error)
            shared = self._sharer(group).share_all(described)
        except Exception:
            self._sweep_failed(group)
            raise
        self._is_shared = True
        if group.here == 1:
            # No part comes: it has shown to all that the folder is not that of others.
            sweep_parts(self.directory, self._pending_tokens())
        return shared

    def _write(self, plan: Plan, new: Step, turn: Turn) -> None:
        """Write a step now, or in the background."""
        save = None
        if turn.is_later:
            save = self._writer.write_later(plan, new)
        else:
            self._writer.write(plan)
        if turn.rank:
            first = turn.processes[0], turn.members[0]
            self._published.append(Publication(new, plan.target, *first))
        self._upload(new, save, turn)
        if turn.ranks is None:
            self._steps.remember(new.path, plan.meta, plan.description)
        if self.dedupe:
            self._last = new, plan.meta

    # Reading ------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """The numbers of the steps that are there, in the order in which they were saved.

        The last one is :meth:`latest`, and not always the highest: a training that went
        back to step 2 and saved step 3 anew has ``[1, 2, 4, 3]``. ``sorted(steps())`` has
        them by number.
        """
        return [step.number for step in self._durable_steps()]

    def latest(self) -> int | None:
        """The number of the step that was saved last; None where there is none.

        It is on the disk: a power cut does not take it back.
        """
        steps = self.steps()
        return steps[-1] if steps else None

    def best(self, metric: str, mode: Literal["min", "max"] = "min") -> int | None:
        """The number of the step whose metric is the lowest, or the highest.

        Of equal ones it is the one that was saved first; steps without the metric, or
        where it is not a number, do not count. None where no step is left.

        Raises:
            KeyError: there are steps, and none has the metric.
        """
        if mode not in ("min", "max"):
            raise ValueError(MSG_MODE.format(mode))
        steps = self._durable_steps()
        known = {name for step in steps for name in step.metrics}
        if steps and metric not in known:
            shown = f"are {sorted(known)}" if known else "are none"
            raise KeyMessageError(MSG_NO_METRIC.format(self.directory, metric, shown))
        found = [
            (step.metrics[metric], step.number)
            for step in steps
            if not math.isnan(step.metrics.get(metric, math.nan))
        ]
        if not found:
            return None
        choose = min if mode == "min" else max
        return choose(found, key=lambda pair: pair[0])[1]

    # Restoring ----------------------------------------------------------------------------

    def load(self, step: int | None = None) -> Any:
        """Load a step as a collection over its files, without a model.

        A module's entries are nested by the dots in their names; of other states keys
        that are numbers become text. If the step is in an object store, the collection is a
        remote one: each tensor is read when it is used, and only the rows that an index
        takes. It needs the step to stay there.

        Args:
            step: its number. Default: the one that was saved last.

        Raises:
            FileNotFoundError: there is no such step.
        """
        return self._read(step, load_step, is_shown=True)

    def restore(
        self,
        step: int | None = None,
        *,
        map_location: torch.device | str | None = None,
        strict: bool = True,
        lazy: bool = False,
        rng: bool = True,
        **items: object,
    ) -> Restored:
        """Restore items in their place, and return the plain data.

        Everything is read and compared first: where that fails, nothing is changed. A
        model on ``meta`` is filled.

        Args:
            step: its number. Default: the one that was saved last.
            map_location: where tensors go that have no place yet. Default: the CPU.
            strict: whether names must be the same.
            lazy: whether tensors stay mapped to the files, and are read when they are
                used. Stores into them stay in this process.
            rng: whether the random states are set, too.
            **items: what is restored, by the names under which it was saved.

        Returns:
            The plain data, and what else was saved and not given, by name; with
            ``missing`` and ``unexpected``, the names that did not fit, and ``step``, the
            number of the step that was taken.

        Raises:
            FileNotFoundError: there is no such step.
            KeyError: an item was not saved.
            RuntimeError: names or shapes differ, or a file is damaged.
        """
        options: dict[str, Any] = {
            "device": None if map_location is None else torch.device(map_location),
            "strict": strict,
            "lazy": lazy,
            "rng": rng,
        }
        group = self._ranks()
        if group is not None:
            return self._restore_together(group, step, items, options)

        def read(files: StepFiles, meta: dict[str, Any]) -> Restored:
            return restore_items((files, meta), items, **options)

        restored: Restored = self._read(step, read)
        return restored

    def _restore_together(
        self,
        group: Ranks,
        number: int | None,
        items: dict[str, object],
        options: dict[str, Any],
    ) -> Restored:
        """Restore the same step on all ranks, or nothing on any."""
        number = self._agree_on_step(group, number)
        opened: tuple[StepFiles, dict[str, Any]] | Exception
        try:
            files = self._open(self._find(number))
        except Exception as found:  # noqa: BLE001 (it is raised on all ranks)
            return restore_items(found, items, ranks=group, **options)
        try:
            with files.names_in_errors():
                try:
                    opened = files, read_meta(files.root)
                except Exception as found:  # noqa: BLE001 (it is raised on all ranks)
                    opened = found
                return restore_items(opened, items, ranks=group, **options)
        finally:
            files.close()

    def restore_random_states(self, step: int | None = None) -> None:
        """Set the random states of a step, and nothing else: those of this rank."""
        group = self._ranks()
        rank = 0 if group is None else group.rank

        def read(files: StepFiles, meta: dict[str, Any]) -> None:
            parts = StepParts(files, meta)
            own = parts.of_rank(parts.place_of(None if group is None else rank))
            if "rng" in own:
                set_random_states(Decoder({}, "").decode(own["rng"]))

        self._read(step, read)

    def _read(
        self,
        number: int | None,
        read: Callable[[StepFiles, dict[str, Any]], Any],
        *,
        is_shown: bool = False,
    ) -> Any:
        """Read a step, also where others take its place meanwhile.

        Args:
            number: its number.
            read: is given its files and its description.
            is_shown: whether tensors of a store stay there until they are used.
        """
        with self._lock:
            if not self._is_saving:
                self._wait_for_steps()
        attempts = 0
        while True:
            step = self._find(number)
            attempts += 1
            try:
                files = self._open(step, is_shown=is_shown)
            except FileNotFoundError:
                if attempts >= _MAX_ATTEMPTS:
                    raise
                continue
            try:
                with files.names_in_errors():
                    return read(files, read_meta(files.root))
            except (OSError, RuntimeError):
                # Files of a step that was deleted meanwhile are missing.
                if files.is_current() or attempts >= _MAX_ATTEMPTS:
                    raise
            finally:
                files.close()

    # The end ------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until all steps are there.

        Raises:
            OSError: one could not be written.
        """
        try:
            self._writer.wait()
            if self._mirror is not None:
                self._mirror.wait()
        except OSError:
            self._published.clear()
            raise
        self._await_published()

    def _await_published(self) -> None:
        """Wait for the steps of which this rank has written a part, and rank 0 the rest."""
        while self._published:
            self._published.pop(0).wait(self.rank_timeout)

    def close(self) -> None:
        """Wait for all steps, and give the handler of SIGTERM back."""
        if self._is_closed:
            return
        try:
            self.wait()
        finally:
            self._is_closed = True
            self._preemption.close()

    @property
    def preempted(self) -> bool:
        """Return whether the process was asked to end by SIGTERM: save, and end it."""
        return self._preempted.is_set()

    def reached_preemption(self, step: int) -> bool:
        """Return whether one of the ranks was asked to end: all save this step, and end.

        All ranks call it behind the same step, and get the same answer. A process alone
        has that of :attr:`preempted`.

        Args:
            step: the number of the step, the same on all ranks.

        Raises:
            RuntimeError: the ranks ask for different steps.
        """
        group = self._ranks()
        if group is None:
            return self.preempted
        told = group.call("reached_preemption", (step, self.preempted))
        if len({number for number, _ in told}) > 1:
            asked = [number for number, _ in told]
            raise RuntimeError(MSG_STEPS.format(asked))
        return any(is_preempted for _, is_preempted in told)

    def num_staged_bytes(self) -> int:
        """The bytes of memory that is kept for saves in the background."""
        return self._writer.num_staged_bytes()


_OPTIONS = inspect.signature(Checkpointer).parameters.keys() - {"background"}
"""The names that no item has: a mistaken option would be saved as one, in silence."""
