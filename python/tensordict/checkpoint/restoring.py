"""Restore items in place: read and compare everything first, then change the items."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tensordict.checkpoint.comparing import Needing
from tensordict.checkpoint.distributed import run_together
from tensordict.checkpoint.files import ItemFiles, StepParts, fields_in, keyed
from tensordict.checkpoint.kinds import kind_named, kind_of, loading_kind
from tensordict.checkpoint.names import parameter_names, unwrapped
from tensordict.checkpoint.randomness import set_random_states
from tensordict.checkpoint.reads import Reads
from tensordict.primitives.errors import MissingKeyError
from tensordict.storage.encoding import Decoder
from tensordict.storage.sharded import is_sharded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.distributed.tensor import DTensor

    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.ranges import Stored
    from tensordict.checkpoint.reading import StepFiles
    from tensordict.storage.sharded import Sharded

__all__ = ["Restored", "Restoring", "restore_items"]

MSG_ITEM = "The checkpoint '{}' has no item {!r}: it has {}. Nothing was changed."
MSG_KIND = (
    "Cannot restore {!r}: a {} was saved, but a {} was given. Nothing was changed."
)

MSG_DAMAGED = "The checkpoint is damaged. Nothing was changed:\n{}"


class Restored(dict[str, Any]):
    """The result of a restore: plain data by name, and the names that did not match.

    Args:
        values: the plain data, and other values that were not restored in place.
        step: the number of the step.
        missing: the names that the items contain and the checkpoint does not.
        unexpected: the names that the checkpoint contains and the items do not.
        metrics: the metrics with which the step was saved.
    """

    def __init__(
        self,
        values: dict[str, Any],
        step: int,
        missing: list[str],
        unexpected: list[str],
        metrics: dict[str, float],
    ) -> None:
        super().__init__(values)
        self.step = step
        self.missing = missing
        self.unexpected = unexpected
        self.metrics = metrics


class _Change:
    """A prepared change that can be undone."""

    def __init__(self, make: Callable[[], None], undo: Callable[[], None]) -> None:
        self.make = make
        self.undo = undo


class Restoring:
    """The restore of one step: reads the items, compares them, then changes them.

    The kinds of items prepare their changes with :meth:`value`, :meth:`tensor`,
    :meth:`read_into`, :meth:`add` and :meth:`after`.

    Args:
        files: the files of the step.
        meta: the content of ``meta.json``.
        device: the device of tensors that no item has yet.
        strict: whether the names in items and checkpoint must be equal.
        lazy: whether tensors stay memory-mapped and are read when they are used.
        ranks: the ranks that restore together; None if there is one process.
    """

    def __init__(
        self,
        files: StepFiles,
        meta: Mapping[str, Any],
        *,
        device: torch.device | None,
        strict: bool,
        lazy: bool,
        ranks: Ranks | None = None,
    ) -> None:
        self.files = files
        self.meta = meta
        self.device = device
        self.strict = strict
        self.lazy = lazy
        self.ranks = ranks
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.values: dict[str, Any] = {}
        self.parameters: dict[int, tuple[str, str]] = {}
        """The item and name of each parameter of the restored modules, by ``id``."""
        self.parts: StepParts = StepParts(files, meta)
        self.rank: int = self.parts.place_of(None if ranks is None else ranks.rank)
        self.parts.rank = self.rank
        own_part = self.parts.of_rank(self.rank)
        self.rng: Any = own_part.get("rng")
        self.items: dict[str, Any] = dict(meta["items"])
        """The description of each item: this rank's if it has its own, else rank 0's."""
        self._ranks: dict[str, int] = dict.fromkeys(self.items, 0)
        for name, metadata in own_part["items"].items():
            if "value" in metadata or "names" in metadata:
                self.items[name] = metadata
                self._ranks[name] = self.rank
        self._changes: list[_Change] = []
        self._unexpected: dict[str, tuple[list[str], Callable[[list[str]], Exception]]]
        self._unexpected = {}
        needing = None
        if ranks is not None:
            needing = Needing(torch.distributed.get_rank())
        self._reads = Reads(files.num_threads, needing, files.bring)
        self._mapped_later: list[tuple[Stored, torch.Tensor]] = []
        """Tensors to map, each with the tensor whose memory the mapping replaces."""
        self._after: list[Callable[[], None]] = []

    # Methods for the kinds of items ---------------------------------------------------

    def files_of(self, name: str, metadata: Mapping[str, Any]) -> ItemFiles:
        """Return the tensors of an item."""
        return ItemFiles(self.parts, name, metadata, self._ranks.get(name, 0))

    def value(self, name: str, metadata: Mapping[str, Any], like: object = None) -> Any:
        """Return the saved value of an item.

        Args:
            name: the name of the item.
            metadata: the description of the item.
            like: the item's state now. Where it has a ``DTensor``, the value has one as
                well.
        """
        likes = keyed(like)
        files = self.files_of(name, metadata)
        decoder = self.decoder(
            files,
            [(name, likes.get(name)) for name in files.names()],
            [
                (fields, likes.get(fields["key"]))
                for fields in fields_in(metadata, "sharded")
            ],
        )
        return loading_kind(metadata["kind"]).load(metadata, decoder)

    def decoder(
        self,
        files: ItemFiles,
        names: list[tuple[str, Any]],
        sharded: list[tuple[Any, Any]],
    ) -> Decoder:
        """Read tensors of an item, and return a decoder that builds values from them.

        Args:
            files: the tensors of the item.
            names: the names of plain tensors, each with a ``DTensor`` whose layout the
                result gets, or None.
            sharded: the JSON of saved ``DTensor`` values, each with the same.
        """
        reads = Reads(self.files.num_threads, bring=self.files.bring)
        stored = {name: files.stored(name) for name in dict(names)}
        parts = [(fields["key"], files.of_fields(fields)) for fields, _ in sharded]
        if self.lazy:
            # Each tensor is mapped separately, so the bytes of all are downloaded before.
            own = [*stored.values(), *dict(parts).values()]
            self.files.bring_tensors(own)
        plain = {
            name: self._new(stored[name], like, None, reads)
            for name, like in dict(names).items()
        }
        placed = {
            key: self._new(each, like, None, reads)
            for (key, each), (_, like) in zip(parts, sharded, strict=True)
        }
        reads.fetch()
        return self.files.decoder(
            plain,
            self.files.directory,
            self.device,
            lambda fields: placed[fields["key"]],
        )

    def tensor(
        self,
        stored: Stored,
        like: Any,
        device: torch.device | None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """Return a new tensor; its values are read when all items are prepared.

        If ``like`` is a ``DTensor`` of the same shape, the result is one with this
        rank's shard.
        """
        return self._new(stored, like, device, self._reads, dtype)

    def _new(
        self,
        stored: Stored,
        like: Any,
        device: torch.device | None,
        reads: Reads,
        dtype: torch.dtype | None = None,
    ) -> DTensor | torch.Tensor:
        dtype = dtype or stored.dtype
        if is_sharded(like) and tuple(like.shape) == stored.shape:
            tensor = empty_sharded(like, dtype)
            if self.device in (None, tensor.device):
                # The values are used only after the collective read of all items.
                reads = self._reads
            reads.add(stored, tensor, is_new=True)
            return tensor
        shown = self.files.lazy_tensor(stored) if self.lazy else None
        if shown is not None:
            return (
                shown
                if dtype == shown.dtype and device is None
                else shown.to(device, dtype)
            )
        tensor = torch.empty(stored.shape, dtype=dtype, device=device)
        reads.add(stored, tensor, is_new=True)
        return tensor

    def read_into(self, stored: Stored, tensor: torch.Tensor) -> None:
        """Read a tensor into the memory of ``tensor``, after all checks have passed."""
        if self.lazy and stored.is_one_file and _can_be_mapped(tensor, stored):
            self._mapped_later.append((stored, tensor))
            return
        self._reads.add(stored, tensor, is_new=False)

    def add(
        self,
        make: Callable[[], Any],
        undo: Callable[[], Any],
        *,
        is_first: bool = False,
    ) -> None:
        """Register a change, which is undone if another change fails.

        Args:
            make: the function that makes the change.
            undo: the function that undoes it.
            is_first: whether it is made before the changes that are registered now.
        """
        place = 0 if is_first else len(self._changes)
        self._changes.insert(place, _Change(make, undo))

    def after(self, work: Callable[[], None]) -> None:
        """Register work that cannot fail, to run after all changes."""
        self._after.append(work)

    def note_unexpected(
        self, item: str, names: list[str], error: Callable[[list[str]], Exception]
    ) -> None:
        """Refuse names that the checkpoint contains, unless another rank has them.

        Args:
            item: the name of the item.
            names: the names that the item lacks on this rank.
            error: returns the error for some of the names.

        Raises:
            Exception: the error, if there is one process.
        """
        if names and self.ranks is None:
            raise error(names)
        self._unexpected[item] = names, error

    # Steps of a restore ---------------------------------------------------------------

    def prepare(self, items: Mapping[str, Any]) -> None:
        """Compare names and shapes of all items; change nothing.

        Raises:
            KeyError: the checkpoint does not contain an item.
            RuntimeError: an item has another kind or other shapes than the saved one,
                or a file is damaged.
        """
        saved = self.items
        self.parameters = parameter_names(items)
        for name, given in items.items():
            item = unwrapped(given)
            kind = kind_of(item)
            if name not in saved:
                if self.strict:
                    shown = sorted(saved)
                    text = MSG_ITEM.format(self.files.directory, name, shown)
                    raise MissingKeyError(text)
                self.missing.append(name)
                if kind.name == "value":
                    self.values[name] = item
                continue
            metadata = saved[name]
            saved_kind = kind_named(metadata["kind"], name)
            if kind is not saved_kind and (kind.is_exact or saved_kind.is_exact):
                text = MSG_KIND.format(name, saved_kind.name, kind.name)
                raise RuntimeError(text)
            kind.prepare(item, name, metadata, self)
        for name, metadata in saved.items():
            if name not in items and metadata["kind"] in (
                "value",
                "tensor",
                "collection",
            ):
                self.values[name] = self.value(name, metadata)

    def agree_on_names(self) -> None:
        """Refuse names in the checkpoint that no rank has: each pipeline stage has a part.

        Raises:
            Exception: the error of the item.
        """
        if self.ranks is None or not self.strict:
            return
        own_names = {item: names for item, (names, _) in self._unexpected.items()}
        # If each rank saved the item for itself, each rank must have all names.
        per_rank_items = {item for item, rank in self._ranks.items() if rank}
        answers = self.ranks.gather((own_names, per_rank_items))
        for item, (names, error) in self._unexpected.items():
            others = [answer[item] for answer, _ in answers if item in answer]
            if not any(item in answer for _, answer in answers):
                lacking = set(names).intersection(*others)
                names = [name for name in names if name in lacking]
            if names:
                raise error(names)

    def read(self) -> None:
        """Compare all needed bytes with their checksums, and fill the new tensors.

        Raises:
            RuntimeError: a file is damaged.
        """
        needing = self._reads.needing
        if self.ranks is not None and needing is not None:
            announcements = self.ranks.gather(needing.told())
            # With a folder for each node, each rank compares all that it reads.
            needing.agree(announcements if self.parts.ranks is None else ())
        try:
            self._reads.fetch()
        except RuntimeError as error:
            raise RuntimeError(MSG_DAMAGED.format(error)) from error
        self.files.bring_tensors([stored for stored, _ in self._mapped_later])
        for stored, own in self._mapped_later:
            mapped = self.files.mapped_tensor(stored)
            self.after(partial(setattr, own, "data", mapped))

    def change(self, *, rng: bool) -> None:
        """Change the items; if that fails on any rank, undo all changes.

        Raises:
            Exception: the error of an item.
        """
        started: list[_Change] = []
        with torch.no_grad():
            error: BaseException | None = None
            try:
                for change in self._changes:
                    started.append(change)
                    change.make()
            except BaseException as caught:  # noqa: BLE001 (`_agree` raises it)
                error = caught
            try:
                self._agree(error)
                self._reads.run()
            except BaseException:
                for change in reversed(started):
                    change.undo()
                raise
            finally:
                # The error's traceback refers to this frame, which holds the values.
                error = None
            _tell_autograd(self._reads.targets())
            for work in self._after:
                work()
        if rng and self.rng is not None:
            set_random_states(Decoder({}, "").decode(self.rng))

    def _agree(self, error: BaseException | None) -> None:
        """Raise the error of this rank, or an error about another rank's."""
        try:
            if self.ranks is not None and isinstance(error, Exception | None):
                self.ranks.raise_together(error, "could not restore")
            elif error is not None:
                raise error
        finally:
            del error

    def result(self) -> Restored:
        """Return the values that were not restored in place, and the unmatched names."""
        return Restored(
            self.values,
            self.meta["step"],
            self.missing,
            self.unexpected,
            Decoder({}, "").decode(self.meta["metrics"]),
        )

    def forget(self) -> None:
        """Release the prepared changes, whose functions refer to this object.

        Without it, the replaced values would stay in memory until the next garbage
        collection.
        """
        self._changes.clear()
        self._unexpected.clear()
        self._after.clear()


def empty_sharded(like: Sharded, dtype: torch.dtype) -> Any:
    """Return a ``DTensor`` laid out like another, with new memory for this rank's shard."""
    from torch.distributed.tensor import DTensor

    device = like.device
    if device.type == "meta":
        device = torch.device(like.device_mesh.device_type)
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
    local = torch.empty(like.to_local().shape, dtype=dtype, device=device)
    return DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _can_be_mapped(tensor: torch.Tensor, stored: Stored) -> bool:
    """Return whether memory-mapped memory can replace the memory of a tensor."""
    return (
        tensor.device.type == "cpu"
        and tensor.dtype == stored.dtype
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    )


def _tell_autograd(tensors: list[torch.Tensor]) -> None:
    """Increment the version counters, so that autograd notices changed saved tensors."""
    increment = getattr(torch.autograd.graph, "increment_version", None)
    if increment is not None and tensors:
        increment(tensors)


def restore_items(
    opened: tuple[StepFiles, Mapping[str, Any]] | Exception,
    items: Mapping[str, Any],
    *,
    device: torch.device | None,
    strict: bool,
    lazy: bool,
    rng: bool,
    ranks: Ranks | None = None,
) -> Restored:
    """Restore items in place, and return the plain data.

    If several ranks restore, either all of them are changed or none.

    Args:
        opened: the files and the description of a step, or this rank's error.
        items: the items to restore.
        device: the device of tensors that no item has yet.
        strict: whether the names in items and checkpoint must be equal.
        lazy: whether tensors stay memory-mapped.
        rng: whether to set the random states.
        ranks: the ranks that restore together; None if there is one process.
    """
    restoring: Any = None

    def prepare() -> None:
        nonlocal restoring
        if isinstance(opened, Exception):
            raise opened
        restoring = Restoring(
            *opened, device=device, strict=strict, lazy=lazy, ranks=ranks
        )
        restoring.prepare(items)

    def agree_on_names() -> None:
        restoring.agree_on_names()

    def read() -> None:
        restoring.read()

    try:
        for work in (prepare, agree_on_names, read):
            run_together(work, ranks, "cannot restore")
        restoring.change(rng=rng)
        restored: Restored = restoring.result()
        return restored
    finally:
        if restoring is not None:
            restoring.forget()
