"""The :class:`Checkpointer`: atomic steps, from which a killed training resumes."""

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

MSG_STEP = "step must be an integer from 0 on, got {!r}."
MSG_KEEP = "{} must be an integer from 1 on, or None, got {!r}."
MSG_BUSY = "when_busy must be 'wait', 'skip' or 'queue', got {!r}."
MSG_MODE = "mode must be 'min' or 'max', got {!r}."
MSG_CLOSED = "The checkpointer is closed: make a new one."
MSG_SHARED_STORE = (
    "shared=False is for local folders of each node, but all nodes share the object store "
    "{!r}: leave out shared=False, or the URL."
)
MSG_FILE = "A checkpointer needs a directory for its steps, but '{}' is a file."
MSG_OPTION = (
    "{name!r} is an option of the checkpointer, not of save: write "
    "Checkpointer(directory, {name}={value!r}). If it is an item, give it another name."
)
MSG_NO_METRIC = "No step in '{}' has the metric {!r}: there {}."
MSG_STEPS = "All ranks must ask for the same step, but they asked for {}, by rank."
MSG_NOTHING = "There is nothing to save: give items, such as model=model."

_MAX_ATTEMPTS = 100
"""The most times that a step is read again because another save replaced it meanwhile."""


class Checkpointer(SaveOrder, Exporting, Mirroring, Closing):
    """A folder of training steps: saves, restores and deletes them.

    A step is the directory ``step-<number>``. It contains ``meta.json`` and safetensors
    files with the plain names of ``state_dict()``, which other libraries read. A step
    appears atomically. On a disk it depends on no other step, so it can be copied
    alone.

    Args:
        directory: the folder, created by the first save; or the URL of a folder in an
            object store (``"s3://bucket/run"``).
        keep: the number of latest steps to keep; None keeps all. Older steps are
            deleted after a new one is complete. Steps of another job that still runs in
            the same folder are not counted and not deleted.
        keep_every: also keep the steps whose number is a multiple of this.
        durable: whether a step is complete only after it is on the disk, so that it
            survives a power cut.
        shards: the number of files of each item. Default: one; for a large item, one
            for each thread, since threads write at the same time.
        dedupe: whether a tensor that is unchanged since the previous step becomes a
            hard link and is not written again. Each tensor of 16 KiB or more is then
            its own file.
        when_busy: what a save does if the previous save is still running: ``"wait"``
            for it, ``"skip"`` the new step, or ``"queue"`` the new step in memory of
            its own.
        background: whether a save copies the values and returns, and threads write
            them.
        handle_sigterm: whether SIGTERM sets :attr:`preempted` instead of ending the
            process. A handler that was installed before is also called.
        num_threads: the most threads. Default: the cores of this process, at most 8.
        rank_timeout: the seconds that rank 0 waits for the parts of other ranks. If a
            process of the same machine has ended, rank 0 does not wait for it.
        per_rank: the names of modules and optimizers that differ between ranks under
            the same name. Each rank saves and restores its own, each mesh its own
            ``DTensor`` values.
        process_group: the ranks that save and restore together: a ``ProcessGroup``, or
            a ``DeviceMesh``, such as ``mesh["dp"]``. Default: all ranks. All collective
            calls use it. Several groups can save at the same time, each into its own
            folder; all shards of a ``DTensor`` must be in one group.
        shared: whether all ranks see the same directory. Pass False if ``directory`` is
            on the local disk of each node. Each node's folder then contains the parts
            of its own ranks, and the same ranks restore them. Data that several nodes
            need is written into each folder. :meth:`steps` and :meth:`latest` list this
            node's folder; :meth:`restore` takes the newest step that all folders
            contain.
        mirror: the URL of a folder in an object store, to which threads upload each
            step of ``directory`` during the training. Steps that are deleted locally
            are read from there.
        staging: if ``directory`` is a URL, the local folder in which steps are written
            before the upload. Default: a folder below ``TMPDIR``. Ranks share it.
        storage_options: the options of the object store, as in
            :meth:`TensorDict.memmap`.

    Raises:
        ValueError: this process is not in ``process_group``, or ``shared=False`` is
            combined with an object store.

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
        group = ranks(self.process_group)
        if group is not None:
            tell_process(group.members[group.rank])
        self._steps: Steps = Steps(self.directory)
        self._writer: Writer = Writer((num_threads, durable, True))
        # A signal handler may save while the same thread is inside a save.
        self._lock: threading.RLock = threading.RLock()
        self._is_saving: bool = False
        self._last_order: int = -1
        self._tokens: dict[int, str] = {}
        # Steps that rank 0 has yet to publish, to which this rank has written its part.
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
        """Save a step; it replaces an existing step of the same number.

        The saved values are the values at the call, also if threads write them later. A
        signal handler may call this.

        Args:
            step: the number of the step, from 0 on.
            metrics: numbers by which :meth:`best` compares steps.
            background: whether to return after the values are copied. Default: the
                checkpointer's ``background``.
            trainable_only: whether to leave out parameters with
                ``requires_grad=False``. A restored model keeps its own values of them.
            rng: whether to save the random states of Python, NumPy and torch.
            **items: the items by name: modules, optimizers, schedulers, other objects
                with ``state_dict()``, collections, tensors and plain data.

        Returns:
            The directory of the step; None if ``when_busy="skip"`` skipped it.

        Raises:
            OSError: this step, or an earlier one in the background, could not be
                written. Older steps are unchanged.
            TypeError: an item contains an object that a checkpoint cannot store, or has
                the name of an option of the checkpointer.
            ValueError: ``step`` is no number from 0 on, or there are no items.
            RuntimeError: the checkpointer is closed.
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
                # This call comes from a signal handler inside a save of the same
                # thread.
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
        """Save a step, or this rank's part of it; rank 0 publishes the step."""
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
                self._check_shared(turn)
        except Exception as found:
            if group is None:
                raise
            error = found
        shared = self._share(group, described, error)
        part, others = turn.places(self.directory)
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
                target=part,
                gathered=(others, self.rank_timeout),
                writers=turn.members[1 : len(others) + 1],
            )
            self._write(plan, new, turn)
        except Exception as found:
            if group is not None:
                mark_failed(part or group.folder(self.directory, turn.token), found)
            if group is None or turn.is_later:
                raise
            error = found
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

    def _check_shared(self, turn: Turn) -> None:
        """Check that the ranks share the folder of the steps, unless that is known.

        Raises:
            OSError: they do not.
        """
        known, staging = self._is_shared, self._is_remote
        refuse_unshared(self.directory, turn, is_known=known, is_staging=staging)

    def _ranks(self) -> Ranks | None:
        """Return the ranks that save and restore together; None if there is one process."""
        return ranks(self.process_group)

    def _saving_ranks(self, number: int) -> Ranks | None:
        """Return the saving ranks, with ``shared=False`` ranks of this folder first."""
        found = self._ranks()
        if found is None or self.shared:
            return found
        return found.by_folder(f"save({number})", self.directory)

    def _share(
        self, group: Ranks | None, described: list[Described], error: Exception | None
    ) -> Shared:
        """Agree on the parts that each rank writes, or raise an error of any rank."""
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
            # This is the only rank of its folder, so the part that it wrote to show its
            # folder to the other ranks is not needed any more.
            sweep_parts(self.directory, self._pending_tokens())
        return shared

    def _write(self, plan: Plan, new: Step, turn: Turn) -> None:
        """Write a step, now or in the background."""
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
        """Return the numbers of the saved steps, in the order in which they were saved.

        The last number is :meth:`latest`, and not always the highest: if a training of
        four steps went back to step 2 and saved step 3 again, the result is ``[1, 2, 4,
        3]``.
        """
        return [step.number for step in self._durable_steps()]

    def latest(self) -> int | None:
        """Return the number of the step that was saved last; None if there is none.

        With ``durable=True`` the step is on the disk and survives a power cut.
        """
        steps = self.steps()
        return steps[-1] if steps else None

    def best(self, metric: str, mode: Literal["min", "max"] = "min") -> int | None:
        """Return the number of the step with the lowest or highest value of a metric.

        If several steps are equal, the first saved wins. Steps without the metric, or
        whose value is NaN, are ignored.

        Args:
            metric: a name from ``metrics=`` of :meth:`save`.
            mode: ``"min"`` for the lowest value, ``"max"`` for the highest.

        Returns:
            The number; None if there is no step with a value.

        Raises:
            KeyError: there are steps, and no step has the metric.
        """
        if mode not in ("min", "max"):
            raise ValueError(MSG_MODE.format(mode))
        steps = self._durable_steps()
        known_metrics = {name for step in steps for name in step.metrics}
        if steps and metric not in known_metrics:
            shown = f"are {sorted(known_metrics)}" if known_metrics else "are none"
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
        """Load a step as a memory-mapped tensordict, without a model.

        The names of a module's tensors become nested keys, split at their dots. Integer
        keys of other states become strings. If the step is in an object store, the result
        is a remote tensordict: each tensor is read when it is used, and an index reads only
        its rows. The step must stay in the store.

        Args:
            step: the number of the step. Default: the step that was saved last.

        Returns:
            A tensordict of batch size ``[]`` with one entry for each item.

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
        """Restore items in place, and return the plain data.

        All files are read and compared with their checksums first. If that fails, no
        item is changed. A model on the ``meta`` device gets memory.

        Args:
            step: the number of the step. Default: the step that was saved last.
            map_location: the device of tensors that no item has yet. Default: the CPU.
            strict: whether the names in the items and in the step must be equal.
            lazy: whether tensors stay memory-mapped and are read when they are used.
                Writes to them stay in this process.
            rng: whether to set the random states as well.
            **items: the items to restore, under the names with which they were saved.

        Returns:
            The plain data and the saved items that were not passed, by name. Its
            attributes ``missing`` and ``unexpected`` list the names that did not match,
            ``step`` is the number of the step.

        Raises:
            FileNotFoundError: there is no such step.
            KeyError: the step does not contain an item.
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
        """Restore the same step on all ranks, or change no rank."""
        number = self._agree_on_step(group, number)
        opened: tuple[StepFiles, dict[str, Any]] | Exception
        try:
            files = self._open(self._find(number))
        except Exception as found:  # noqa: BLE001 (all ranks raise it)
            return restore_items(found, items, ranks=group, **options)
        try:
            with files.names_in_errors():
                try:
                    opened = files, read_meta(files.root)
                except Exception as found:  # noqa: BLE001 (all ranks raise it)
                    opened = found
                return restore_items(opened, items, ranks=group, **options)
        finally:
            files.close()

    def restore_random_states(self, step: int | None = None) -> None:
        """Set the random states of this rank from a step; restore no item."""
        group = self._ranks()
        rank = 0 if group is None else group.rank

        def read(files: StepFiles, meta: dict[str, Any]) -> None:
            parts = StepParts(files, meta)
            own_part = parts.of_rank(parts.place_of(None if group is None else rank))
            if "rng" in own_part:
                set_random_states(Decoder({}, "").decode(own_part["rng"]))

        self._read(step, read)

    def _read(
        self,
        number: int | None,
        read: Callable[[StepFiles, dict[str, Any]], Any],
        *,
        is_shown: bool = False,
    ) -> Any:
        """Read a step; if another save replaces it meanwhile, read the new one.

        Args:
            number: the number of the step; None for the last step.
            read: the function that reads, given the files and the description.
            is_shown: whether tensors in a store stay there until they are used.
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
                # The error may come from a save that deleted the step meanwhile.
                if files.is_current() or attempts >= _MAX_ATTEMPTS:
                    raise
            finally:
                files.close()

    # Waiting and closing --------------------------------------------------------------

    def wait(self) -> None:
        """Wait until all steps are complete and uploaded.

        Raises:
            OSError: a step could not be written.
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
        """Wait for the steps that rank 0 publishes and this rank has written a part of."""
        while self._published:
            self._published.pop(0).wait(self.rank_timeout)

    def close(self) -> None:
        """Wait for all steps, and restore the previous handler of SIGTERM."""
        if self._is_closed:
            return
        try:
            self.wait()
        finally:
            self._is_closed = True
            self._preemption.close()

    @property
    def preempted(self) -> bool:
        """Whether SIGTERM asked this process to end: save a step and stop."""
        return self._preempted.is_set()

    def reached_preemption(self, step: int) -> bool:
        """Return whether any rank was asked to end; then all save this step and stop.

        All ranks call this after the same step and get the same answer. In a single
        process the answer is :attr:`preempted`.

        Args:
            step: the number of the step, the same on all ranks.

        Raises:
            RuntimeError: the ranks passed different steps.
        """
        group = self._ranks()
        if group is None:
            return self.preempted
        answers = group.call("reached_preemption", (step, self.preempted))
        if len({number for number, _ in answers}) > 1:
            asked = [number for number, _ in answers]
            raise RuntimeError(MSG_STEPS.format(asked))
        return any(is_preempted for _, is_preempted in answers)

    def num_staged_bytes(self) -> int:
        """Return the number of bytes of memory that background saves keep."""
        return self._writer.num_staged_bytes()


_OPTIONS = inspect.signature(Checkpointer).parameters.keys() - {"background"}
"""Names that no item may have: a misplaced option would silently be saved as an item."""
