"""Restoring items in their place: first everything is read and compared, then changed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tensordict.checkpoint.comparing import Needing
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

    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.ranges import Stored
    from tensordict.checkpoint.reading import StepFiles
    from tensordict.storage.sharded import Sharded

__all__ = ["Restored", "Restoring", "restore_items"]

MSG_ITEM = "The checkpoint '{}' has no item {!r}: it has {}. Nothing was changed."
MSG_KIND = "Cannot restore {!r}: a {} was saved, and a {} is to be restored. Nothing was changed."

MSG_DAMAGED = "Nothing was changed, since the checkpoint is damaged:\n{}"


class Restored(dict[str, Any]):
    """The plain data of a checkpoint by name, and what did not fit.

    Args:
        values: the plain data, and what else was not restored in its place.
        step: the number of the step.
        missing: what the items have and the checkpoint has not.
        unexpected: what the checkpoint has and the items have not.
        metrics: the metrics that were given when it was saved.
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
    """A change that is ready to be made, and can be taken back."""

    def __init__(self, make: Callable[[], None], undo: Callable[[], None]) -> None:
        self.make = make
        self.undo = undo


class Restoring:
    """Reads the items of a step, compares them, and then changes what is restored.

    Kinds of items prepare theirs with :meth:`value`, :meth:`tensor`, :meth:`read_into`,
    :meth:`add` and :meth:`after`.

    Args:
        files: the files of the step.
        meta: its description.
        device: where tensors go that have no place yet.
        strict: whether everything must be there.
        lazy: whether tensors stay mapped, and are read when they are used.
        ranks: the ranks that restore together; None for a process alone.
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
        """Item and name of the parameters of all modules that are restored, by ``id``."""
        self.parts: StepParts = StepParts(files, meta)
        self.rank: int = self.parts.place_of(None if ranks is None else ranks.rank)
        self.parts.rank = self.rank
        own = self.parts.of_rank(self.rank)
        self.rng: Any = own.get("rng")
        self.items: dict[str, Any] = dict(meta["items"])
        """The description of each item: by rank 0, or by this rank where it has its own."""
        self._ranks: dict[str, int] = dict.fromkeys(self.items, 0)
        for name, about in own["items"].items():
            if "value" in about or "names" in about:
                self.items[name] = about
                self._ranks[name] = self.rank
        self._changes: list[_Change] = []
        self._unexpected: dict[str, tuple[list[str], Callable[[list[str]], Exception]]]
        self._unexpected = {}
        needing = None
        if ranks is not None:
            needing = Needing(torch.distributed.get_rank())
        self._reads = Reads(files.num_threads, needing, files.bring)
        self._mapped_later: list[tuple[Stored, torch.Tensor]] = []
        """Tensors that are mapped, and those whose memory they take the place of."""
        self._after: list[Callable[[], None]] = []

    # For kinds of items -------------------------------------------------------------------

    def files_of(self, name: str, about: Mapping[str, Any]) -> ItemFiles:
        """Return the tensors of an item."""
        return ItemFiles(self.parts, name, about, self._ranks.get(name, 0))

    def value(self, name: str, about: Mapping[str, Any], like: object = None) -> Any:
        """Return what was saved of an item.

        Args:
            name: its name.
            about: what is said of it.
            like: the state that it has. Where that has a ``DTensor``, so has the value.
        """
        likes = keyed(like)
        files = self.files_of(name, about)
        decoder = self.decoder(
            files,
            [(name, likes.get(name)) for name in files.names()],
            [
                (fields, likes.get(fields["key"]))
                for fields in fields_in(about, "sharded")
            ],
        )
        return loading_kind(about["kind"]).load(about, decoder)

    def decoder(
        self,
        files: ItemFiles,
        names: list[tuple[str, Any]],
        sharded: list[tuple[Any, Any]],
    ) -> Decoder:
        """Read tensors of an item, and return what makes values of them.

        Args:
            files: the tensors of the item.
            names: the tensors that are no parts of ``DTensor`` values, and what each
                becomes like: a ``DTensor``, or None.
            sharded: the JSON of ``DTensor`` values, and the same.
        """
        reads = Reads(self.files.num_threads, bring=self.files.bring)
        stored = {name: files.stored(name) for name in dict(names)}
        parts = [(fields["key"], files.of_fields(fields)) for fields, _ in sharded]
        if self.lazy:
            # Each tensor is mapped alone: the bytes of all of them come at once.
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
        """Make a tensor: of one that becomes like a ``DTensor`` the part of this rank.

        Its values are there when all items are prepared.
        """
        return self._new(stored, like, device, self._reads, dtype)

    def _new(
        self,
        stored: Stored,
        like: Any,
        device: torch.device | None,
        reads: Reads,
        dtype: torch.dtype | None = None,
    ) -> Any:
        dtype = dtype or stored.dtype
        if is_sharded(like) and tuple(like.shape) == stored.shape:
            made = empty_sharded(like, dtype)
            if self.device in (None, made.device):
                # Nobody looks at it before all is read, which ranks do together.
                reads = self._reads
            reads.add(stored, made, is_new=True)
            return made
        shown = self.files.lazy_tensor(stored) if self.lazy else None
        if shown is not None:
            return (
                shown
                if dtype == shown.dtype and device is None
                else shown.to(device, dtype)
            )
        made = torch.empty(stored.shape, dtype=dtype, device=device)
        reads.add(stored, made, is_new=True)
        return made

    def read_into(self, stored: Stored, own: torch.Tensor) -> None:
        """Have a tensor read into the memory of another, when nothing can be refused."""
        if self.lazy and stored.is_one_file and _can_be_mapped(own, stored):
            self._mapped_later.append((stored, own))
            return
        self._reads.add(stored, own, is_new=False)

    def add(
        self,
        make: Callable[[], Any],
        undo: Callable[[], Any],
        *,
        is_first: bool = False,
    ) -> None:
        """Have a change made, which is taken back if another one fails.

        Args:
            make: makes the change.
            undo: takes it back.
            is_first: whether it is made before others, which need it.
        """
        place = 0 if is_first else len(self._changes)
        self._changes.insert(place, _Change(make, undo))

    def after(self, work: Callable[[], None]) -> None:
        """Have work done that cannot fail, behind all changes."""
        self._after.append(work)

    def note_unexpected(
        self, item: str, names: list[str], error: Callable[[list[str]], Exception]
    ) -> None:
        """Have names refused that the checkpoint has, unless another rank has them.

        Args:
            item: the name of an item, whose other names were compared.
            names: the names that this rank lacks.
            error: makes an error of some of them.

        Raises:
            Exception: the error, where no other rank counts.
        """
        if names and self.ranks is None:
            raise error(names)
        self._unexpected[item] = names, error

    # For all items ----------------------------------------------------

    def prepare(self, items: Mapping[str, Any]) -> None:
        """Compare names and shapes; nothing is changed yet.

        Raises:
            KeyError: an item is not in the checkpoint.
            RuntimeError: an item is of another kind, or differs from what was saved; a
                file is damaged.
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
            about = saved[name]
            saved_kind = kind_named(about["kind"], name)
            if kind is not saved_kind and (kind.is_exact or saved_kind.is_exact):
                text = MSG_KIND.format(name, saved_kind.name, kind.name)
                raise RuntimeError(text)
            kind.prepare(item, name, about, self)
        for name, about in saved.items():
            if name not in items and about["kind"] in ("value", "tensor", "collection"):
                self.values[name] = self.value(name, about)

    def agree_on_names(self) -> None:
        """Refuse the names of the checkpoint that no rank has: stages have each a part.

        Raises:
            Exception: what the item raises.
        """
        if self.ranks is None or not self.strict:
            return
        own = {item: names for item, (names, _) in self._unexpected.items()}
        # Of an item that each rank saved for itself, each has all names.
        alone = {item for item, rank in self._ranks.items() if rank}
        told = self.ranks.gather((own, alone))
        for item, (names, error) in self._unexpected.items():
            others = [each[item] for each, _ in told if item in each]
            if not any(item in each for _, each in told):
                lacking = set(names).intersection(*others)
                names = [name for name in names if name in lacking]
            if names:
                raise error(names)

    def read(self) -> None:
        """Compare the bytes of all files that are needed, and fill new tensors.

        Raises:
            RuntimeError: a file is damaged.
        """
        needing = self._reads.needing
        if self.ranks is not None and needing is not None:
            told = self.ranks.gather(needing.told())
            # Files in folders of their own are compared by each that reads them.
            needing.agree(told if self.parts.ranks is None else ())
        try:
            self._reads.fetch()
        except RuntimeError as error:
            raise RuntimeError(MSG_DAMAGED.format(error)) from error
        self.files.bring_tensors([stored for stored, _ in self._mapped_later])
        for stored, own in self._mapped_later:
            mapped = self.files.mapped_tensor(stored)
            self.after(partial(setattr, own, "data", mapped))

    def change(self, *, rng: bool) -> None:
        """Change what is restored; where that fails, on any rank, all is as it was.

        Raises:
            Exception: what an item raised.
        """
        made: list[_Change] = []
        with torch.no_grad():
            error: BaseException | None = None
            try:
                for change in self._changes:
                    made.append(change)
                    change.make()
            except BaseException as found:  # noqa: BLE001 (it is raised below)
                error = found
            try:
                self._agree(error)
                self._reads.run()
            except BaseException:
                for change in reversed(made):
                    change.undo()
                raise
            _tell_autograd(self._reads.targets())
            for work in self._after:
                work()
        if rng and self.rng is not None:
            set_random_states(Decoder({}, "").decode(self.rng))

    def _agree(self, error: BaseException | None) -> None:
        """Raise what this rank has met, or that another one has met something."""
        if self.ranks is None or not (error is None or isinstance(error, Exception)):
            if error is not None:
                raise error
            return
        self.ranks.raise_together(error, "could not restore")

    def result(self) -> Restored:
        """Return the items not restored in place, and the keys that did not fit."""
        return Restored(
            self.values,
            self.meta["step"],
            self.missing,
            self.unexpected,
            Decoder({}, "").decode(self.meta["metrics"]),
        )


def empty_sharded(like: Sharded, dtype: torch.dtype) -> Any:
    """Return a ``DTensor`` with the placements of another, and memory for this rank's part."""
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


def _can_be_mapped(own: torch.Tensor, stored: Stored) -> bool:
    """Return whether mapped memory can take the place of a tensor's own."""
    return (
        own.device.type == "cpu"
        and own.dtype == stored.dtype
        and type(own) in (torch.Tensor, torch.nn.Parameter)
    )


def _tell_autograd(tensors: list[torch.Tensor]) -> None:
    """Say that tensors have changed, to graphs that have kept them for a backward pass."""
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
    """Restore items in their place; what is plain data is returned.

    Where several ranks restore, none is changed unless all can be.

    Args:
        opened: the files and the description of a step, or why this rank has none.
        items: what is restored.
        device: where tensors go that have no place yet.
        strict: whether everything must be there.
        lazy: whether tensors stay mapped.
        rng: whether the random states are set.
        ranks: the ranks that restore together; None for a process alone.
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

    for work in (prepare, agree_on_names, read):
        error: Exception | None = None
        try:
            work()
        except Exception as found:
            error = found
            if ranks is None:
                raise
        if ranks is not None:
            ranks.raise_together(error, "cannot restore")
    restoring.change(rng=rng)
    restored: Restored = restoring.result()
    return restored
