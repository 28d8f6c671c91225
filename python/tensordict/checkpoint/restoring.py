"""Restoring items in their place: first everything is read and compared, then changed."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensordict.checkpoint import modules
from tensordict.checkpoint.distributed import like_sharded
from tensordict.checkpoint.items import kind_of, unwrapped
from tensordict.checkpoint.randomness import set_random_states
from tensordict.storage.encoding import Decoder
from tensordict.storage.sharded import is_sharded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensordict.checkpoint.reading import StepFiles

__all__ = ["Restored", "restore_items"]

MSG_ITEM = "The checkpoint '{}' has no item {!r}: it has {}. Nothing was changed."
MSG_KIND = "Cannot restore {!r}: a {} was saved, and a {} is to be restored. Nothing was changed."
MSG_GROUPS = (
    "Cannot restore {!r}: the optimizer has parameter groups of {} parameters, and in the "
    "checkpoint they have {}. Nothing was changed."
)

_SAME_KINDS = {
    "module": "module",
    "optimizer": "optimizer",
    "generator": "generator",
    "stateful": "stateful",
}


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


class Restorer:
    """Reads the items of a step, compares them, and then changes what is restored.

    Args:
        files: the files of the step.
        meta: its description.
        device: where tensors go that have no place yet.
        strict: whether everything must be there.
        lazy: whether tensors stay mapped, and are read when they are used.
        rank: whose part of the step is restored.
    """

    def __init__(
        self,
        files: StepFiles,
        meta: Mapping[str, Any],
        *,
        device: torch.device | None,
        strict: bool,
        lazy: bool,
        rank: int = 0,
    ) -> None:
        self.files = files
        self.meta = meta
        self.device = device
        self.strict = strict
        self.lazy = lazy
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.values: dict[str, Any] = {}
        self._changes: list[_Change] = []
        # Modules whose tensors are read into their memory, when nothing can be refused any more.
        self._read_into: list[tuple[Any, dict[str, torch.Tensor]]] = []
        self._after_reading: list[Callable[[], None]] = []
        self.parts: list[Mapping[str, Any]] = files.parts(meta)
        self.items: dict[str, Any] = dict(meta["items"])
        own = self.parts[rank] if rank < len(self.parts) else meta
        self.rng: Any = own.get("rng")
        for name, about in own["items"].items():
            if about["kind"] not in ("module", "optimizer"):
                self.items[name] = about

    def prepare(self, items: Mapping[str, Any]) -> None:
        """Read and compare; nothing is changed yet.

        Raises:
            KeyError: an item is not in the checkpoint.
            RuntimeError: an item is of another kind, or differs from what was saved; a
                file is damaged.
        """
        saved = self.items
        for name, item in items.items():
            if name not in saved:
                if self.strict:
                    shown = sorted(saved)
                    text = MSG_ITEM.format(self.files.directory, name, shown)
                    raise KeyError(text)
                self.missing.append(name)
                if kind_of(item) == "value":
                    self.values[name] = item
                continue
            self._prepare(name, item, saved[name])
        for name, about in saved.items():
            if name not in items and about["kind"] in ("value", "tensor", "collection"):
                self.values[name] = self._value(name, about)

    def _prepare(self, name: str, item: Any, about: Mapping[str, Any]) -> None:
        item = unwrapped(item)
        kind, saved_kind = kind_of(item), about["kind"]
        if kind != saved_kind and (kind in _SAME_KINDS or saved_kind in _SAME_KINDS):
            raise RuntimeError(MSG_KIND.format(name, saved_kind, kind))
        if kind == "module":
            self._module(name, item, about)
            return
        value = self._value(name, about)
        if kind == "optimizer":
            self._optimizer(name, item, value)
        elif kind == "stateful":
            self._stateful(item, value)
        elif kind == "generator":
            before = item.get_state()
            state = torch.frombuffer(bytearray(value), dtype=torch.uint8)
            self._add(lambda: item.set_state(state), lambda: item.set_state(before))
        elif kind == "collection" and saved_kind == "collection":
            before = item.clone()
            self._add(lambda: _fill(item, value), lambda: _fill(item, before))
        elif kind == "tensor" and saved_kind == "tensor":
            self._tensor(name, item, value)
        else:
            self.values[name] = value

    def _add(self, make: Callable[[], Any], undo: Callable[[], Any]) -> None:
        self._changes.append(_Change(make, undo))

    def _tensors(self, about: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return self.files.mapped(about) if self.lazy else self.files.in_memory(about)

    def _value(self, name: str, about: Mapping[str, Any]) -> Any:
        decoder = Decoder(
            self._tensors(about),
            self.files.directory,
            self.device,
            self.files.assembler(self.parts, name),
        )
        if about["kind"] == "module":
            return modules.saved_state(about, decoder)
        return decoder.decode(about["value"])

    # Modules --------------------------------------------------------------------------

    def _module(self, name: str, module: nn.Module, about: Mapping[str, Any]) -> None:
        is_plain = modules.is_plain(module) and not any(
            is_sharded(value) for value in module.parameters()
        )
        if not is_plain or about.get("values"):
            self._module_by_torch(name, module, about)
            return
        tied = about.get("tied", {})
        described = self.files.described(about)
        decoder = Decoder(described, self.files.directory)
        shapes = {each: decoder.named(tied.get(each, each)) for each in about["names"]}
        found = modules.check_module(module, about, shapes)
        self._refuse(name, found)
        places = modules.places_of(module, shapes)
        on_meta = [each for each, (_, _, value) in places.items() if value.is_meta]
        if on_meta:
            names = {tied.get(each, each) for each in on_meta}
            tensors = (
                self.files.mapped(about)
                if self.lazy
                else self.files.in_memory(about, names)
            )
            state = {each: tensors[tied.get(each, each)] for each in on_meta}
            self._after_reading.append(
                lambda: modules.fill_module(module, state, device=self.device)
            )
        in_memory = {
            each: value for each, (_, _, value) in places.items() if not value.is_meta
        }
        if not in_memory:
            return
        if self.lazy:
            mapped = self.files.mapped(about)
            state = {each: mapped[tied.get(each, each)] for each in in_memory}
            self._after_reading.append(lambda: _take_mapped(in_memory, state))
            return
        self.files.check(about)
        self._read_in_place(about, tied, described, in_memory)

    def _read_in_place(
        self,
        about: Mapping[str, Any],
        tied: Mapping[str, str],
        described: Mapping[str, torch.Tensor],
        places: Mapping[str, torch.Tensor],
    ) -> None:
        """Have values read into the memory of a module, or copied there where that differs."""
        direct: dict[str, torch.Tensor] = {}
        memory: set[int] = set()
        copied: list[tuple[torch.Tensor, str]] = []
        for name, value in places.items():
            source = tied.get(name, name)
            own = value.detach()
            is_same = (
                own.device.type == "cpu"
                and type(own) is torch.Tensor
                and own.dtype == described[source].dtype
                and own.is_contiguous()
                and not own.is_conj()
                and not own.is_neg()
                and source not in direct
                and own.data_ptr() not in memory
            )
            if is_same:
                direct[source] = own
                if own.numel():
                    memory.add(own.data_ptr())
            elif source in direct and direct[source].data_ptr() == own.data_ptr():
                # It is tied here, too.
                continue
            else:
                copied.append((own, source))
        if direct:
            self._read_into.append((about, direct))
        if copied:
            mapped = self.files.mapped(about)

            def copy_all() -> None:
                for own, source in copied:
                    own.copy_(mapped[source])

            self._after_reading.append(copy_all)

    def _refuse(self, name: str, found: modules.Mismatch) -> None:
        text = found.text(name, strict=self.strict)
        if text is not None:
            raise RuntimeError(text)
        self.missing += [f"{name}.{each}" for each in found.missing]
        self.unexpected += [f"{name}.{each}" for each in found.unexpected]

    def _module_by_torch(
        self, name: str, module: nn.Module, about: Mapping[str, Any]
    ) -> None:
        """A module with its own way to load, which may rename and convert what it gets."""
        state = self._value(name, about)
        frozen = set(about.get("frozen", ()))
        own = modules.module_state(module)
        for each, value in own.items():
            if is_sharded(value) and isinstance(state.get(each), torch.Tensor):
                state[each] = like_sharded(state[each], value)
        for each in frozen & own.keys():
            state[each] = own[each]
        takes_strict = "strict" in inspect.signature(module.load_state_dict).parameters
        has_meta = any(
            isinstance(value, torch.Tensor) and value.is_meta for value in own.values()
        )
        before = None if has_meta else _copied(own)
        strict = self.strict

        def load() -> None:
            options: dict[str, Any] = {"strict": strict} if takes_strict else {}
            if has_meta:
                options["assign"] = True
            result = module.load_state_dict(state, **options)
            if not strict and result is not None:
                self.missing += [f"{name}.{each}" for each in result.missing_keys]
                self.unexpected += [f"{name}.{each}" for each in result.unexpected_keys]

        def undo() -> None:
            if before is not None:
                module.load_state_dict(before)

        self._add(load, undo)

    # The others -----------------------------------------------------------------------

    def _optimizer(
        self, name: str, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        own = [len(group["params"]) for group in optimizer.param_groups]
        saved = [len(group["params"]) for group in state["param_groups"]]
        if own != saved:
            raise RuntimeError(MSG_GROUPS.format(name, own, saved))
        before = optimizer.state, optimizer.param_groups
        kept = (
            type(before[0])(before[0].default_factory)
            if hasattr(before[0], "default_factory")
            else {}
        )
        kept.update({key: dict(value) for key, value in before[0].items()})
        groups = [dict(group) for group in before[1]]

        def undo() -> None:
            optimizer.__setstate__({"state": kept, "param_groups": groups})

        self._add(lambda: load_optimizer(optimizer, state), undo)

    def _stateful(self, item: Any, state: Any) -> None:
        before = copy.deepcopy(item.state_dict())
        self._add(
            lambda: item.load_state_dict(state), lambda: item.load_state_dict(before)
        )

    def _tensor(self, name: str, item: torch.Tensor, value: torch.Tensor) -> None:
        if item.shape != value.shape:
            raise RuntimeError(
                f"Cannot restore {name!r}: a tensor of the shape {list(value.shape)} was "
                f"saved, and it has {list(item.shape)}. Nothing was changed."
            )
        before = item.detach().clone()
        self._add(
            lambda: item.detach().copy_(value), lambda: item.detach().copy_(before)
        )

    # The change -----------------------------------------------------------------------

    def change(self, *, rng: bool) -> None:
        """Change what is restored; where that fails, all is as it was.

        Raises:
            Exception: what an item raised.
        """
        made: list[_Change] = []
        with torch.no_grad():
            try:
                for change in self._changes:
                    made.append(change)
                    change.make()
                if self._read_into:
                    self.files.read_into(self._read_into)
                    _tell_autograd(self._read_into)
            except BaseException:
                for change in reversed(made):
                    change.undo()
                raise
            for work in self._after_reading:
                work()
        if rng and self.rng is not None:
            set_random_states(Decoder({}, "").decode(self.rng))

    def result(self) -> Restored:
        """Return the items not restored in place, and the keys that did not fit."""
        return Restored(
            self.values,
            self.meta["step"],
            self.missing,
            self.unexpected,
            Decoder({}, "").decode(self.meta["metrics"]),
        )


def _tell_autograd(read: list[tuple[Any, dict[str, torch.Tensor]]]) -> None:
    """Say that tensors have changed, to graphs that have kept them for a backward pass."""
    increment = getattr(torch.autograd.graph, "increment_version", None)
    if increment is not None:
        increment([tensor for _, tensors in read for tensor in tensors.values()])


def _copied(state: Mapping[str, Any]) -> Any:
    copied = copy.copy(state)
    for name, value in state.items():
        is_tensor = isinstance(value, torch.Tensor)
        copied[name] = value.clone() if is_tensor else copy.deepcopy(value)  # type: ignore[index]
    return copied


def _take_mapped(
    places: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]
) -> None:
    """Have parameters use mapped memory where they can, and copy where not."""
    for name, value in places.items():
        mapped = state[name]
        if (
            value.device.type == "cpu"
            and value.dtype == mapped.dtype
            and type(value) in (torch.Tensor, nn.Parameter)
        ):
            value.data = mapped
        else:
            value.detach().copy_(mapped)


def _fill(item: Any, value: Any) -> None:
    """Give a collection the values of another, in its memory where it has the keys."""
    if item.is_locked:
        item.update_(value)
    else:
        item.update(value, inplace=True)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state of an optimizer, with the dtypes that were saved.

    torch's own method imports Dynamo when it is first called, which takes over a second,
    and rounds the state of parameters of half precision to theirs.
    """
    _shard_state(optimizer, state)
    cls = type(optimizer)
    base = torch.optim.Optimizer
    own = getattr(base.load_state_dict, "__wrapped__", None)
    if cls.load_state_dict is not base.load_state_dict or own is None:
        optimizer.load_state_dict(state)
        return
    own(optimizer, state)
    parameters = [
        parameter for group in optimizer.param_groups for parameter in group["params"]
    ]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        loaded = optimizer.state.get(parameter)
        if not loaded:
            continue
        for key, value in state["state"].get(number, {}).items():
            found = loaded.get(key)
            if (
                isinstance(value, torch.Tensor)
                and isinstance(found, torch.Tensor)
                and found.dtype != value.dtype
            ):
                loaded[key] = value.to(found.device)


def _shard_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Have the state of parameters that are sharded be sharded like them."""
    pairs = zip(optimizer.param_groups, state["param_groups"], strict=True)
    for group, saved in pairs:
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            if not is_sharded(parameter):
                continue
            values = state["state"].get(number, {})
            for key, value in values.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    values[key] = like_sharded(value, parameter)


def restore_items(
    files: StepFiles,
    meta: Mapping[str, Any],
    items: Mapping[str, Any],
    *,
    device: torch.device | None,
    strict: bool,
    lazy: bool,
    rng: bool,
    rank: int = 0,
) -> Restored:
    """Restore items in their place; what is plain data is returned."""
    restorer = Restorer(files, meta, device=device, strict=strict, lazy=lazy, rank=rank)
    restorer.prepare(items)
    restorer.change(rng=rng)
    return restorer.result()
