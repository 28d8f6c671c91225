"""Optimizers: states that go by the names of parameters, whatever their order and groups."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch

from tensordict.checkpoint.files import fields_in
from tensordict.checkpoint.kinds.flat_parameters import refuse_flat_optimizer
from tensordict.checkpoint.kinds.interface import Kind, Saving
from tensordict.checkpoint.kinds.optimizer_groups import Parameters, SavedGroups
from tensordict.checkpoint.placing import placed_like
from tensordict.storage.sharded import is_sharded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.checkpoint.files import ItemFiles
    from tensordict.checkpoint.kinds.interface import Item
    from tensordict.checkpoint.restoring import Restoring

__all__ = ["OptimizerKind"]

MSG_DIFFERS = (
    "Cannot restore {item!r}: the optimizer and the checkpoint differ.{lines}\n"
    "Nothing was changed."
)
MSG_UNNAMED = (
    "Cannot save {item!r}: the ranks {one} and {other} have other parameters, and their "
    "names are not known. Save the model with the optimizer, or make that of "
    "model.named_parameters()."
)


class OptimizerKind(Kind):
    """Saves the state of an optimizer with the names and shapes of its parameters."""

    name = "optimizer"
    is_shared = True

    def matches(self, item: object) -> bool:
        """Return whether an item is an optimizer."""
        return isinstance(item, torch.optim.Optimizer)

    def describe(self, item: Item, saving: Saving) -> dict[str, Any]:
        """Take the state of each parameter under its name."""
        refuse_flat_optimizer(saving.name, item)
        encoder, state = saving.encoder, item.state_dict()
        if not _is_usual(state):
            return {"value": encoder.encode(state)}
        numbers = [n for group in state["param_groups"] for n in group["params"]]
        own = Parameters.of(item, saving.parameters)
        names = own.names if len(own.names) == len(numbers) else [None] * len(numbers)
        stems = {
            number: name or str(number)
            for number, name in zip(numbers, names, strict=True)
        }
        pairs = [
            [
                encoder.encode(key),
                encoder.encode(each, ("state", stems.get(key, str(key)))),
            ]
            for key, each in state["state"].items()
        ]
        others = {
            key: encoder.encode(value, (key,))
            for key, value in state.items()
            if key != "state"
        }
        about: dict[str, Any] = {
            "value": {"state": {"$": "dict", "items": pairs}, **others}
        }
        if len(own.names) == len(numbers):
            about["parameters"] = [
                [name, list(parameter.shape) if _has_shape(parameter) else None]
                for name, parameter in zip(names, own.parameters, strict=True)
            ]
        return about

    def prepare(
        self, item: Item, name: str, about: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Match the parameters, and compare groups and shapes."""
        refuse_flat_optimizer(name, item)
        value = about["value"]
        if not _is_usual(value) or not _is_usual(item.state_dict()):
            state = restoring.value(name, about, like=item.state_dict())
        else:
            state = _Matching(item, name, about, restoring).state()
        before = item.state, item.param_groups
        kept = (
            type(before[0])(before[0].default_factory)
            if hasattr(before[0], "default_factory")
            else {}
        )
        kept.update({key: dict(value) for key, value in before[0].items()})
        groups = [dict(group) for group in before[1]]

        def undo() -> None:
            item.__setstate__({"state": kept, "param_groups": groups})

        restoring.add(lambda: load_optimizer(item, state), undo)

    def merged(self, item: str, abouts: Mapping[int, Any]) -> dict[str, Any]:
        """Return the union of the parameters of all ranks, which have new numbers."""
        ranks = sorted(abouts)
        first = abouts[ranks[0]]
        tables = {rank: abouts[rank].get("parameters") for rank in ranks}
        for rank in ranks[1:]:
            both = tables[rank], tables[ranks[0]]
            if not all(table and all(name for name, _ in table) for table in both):
                raise RuntimeError(
                    MSG_UNNAMED.format(item=item, one=ranks[0], other=rank)
                )
        numbers: dict[str, int] = {}
        parameters: list[Any] = []
        state: dict[int, Any] = {}
        groups: dict[Any, dict[str, Any]] = {}
        for rank in ranks:
            for name, shape in tables[rank]:
                if name not in numbers:
                    numbers[name] = len(numbers)
                    parameters.append([name, shape])
            saved = SavedGroups(abouts[rank])
            for number, each in saved.state.items():
                state.setdefault(numbers[saved.names[number]], each)
            for place, group in enumerate(saved.groups):
                options = {
                    key: value
                    for key, value in group.items()
                    if key not in ("params", "param_names")
                }
                made = groups.setdefault(
                    (place, repr(options)), {**options, "params": []}
                )
                for number in group["params"]:
                    own = numbers[saved.names[number]]
                    if all(own not in each["params"] for each in groups.values()):
                        made["params"].append(own)
        # Numbers follow the groups, as those of torch do.
        order = [number for group in groups.values() for number in group["params"]]
        new = {old: number for number, old in enumerate(order)}
        merged_groups = [
            {**group, "params": [new[each] for each in group["params"]]}
            for group in groups.values()
        ]
        pairs = [[new[number], state[number]] for number in order if number in state]
        value = {**first["value"], "state": {"$": "dict", "items": pairs}}
        value["param_groups"] = merged_groups
        return {
            **first,
            "value": value,
            "parameters": [parameters[each] for each in order],
        }


def _is_usual(state: object) -> bool:
    """Return whether a state is one as torch's own optimizers have it."""
    return (
        isinstance(state, dict)
        and isinstance(state.get("state"), dict)
        and isinstance(state.get("param_groups"), list)
        and all(
            isinstance(group, dict) and "params" in group
            for group in state["param_groups"]
        )
    )


def _has_shape(parameter: torch.Tensor) -> bool:
    return not torch.nn.parameter.is_lazy(parameter)


class _Matching:
    """The restoring of one optimizer.

    Args:
        optimizer: the optimizer.
        item: its name.
        about: what the checkpoint says of it.
        restoring: the restore that it is part of.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        item: str,
        about: Mapping[str, Any],
        restoring: Restoring,
    ) -> None:
        self.optimizer = optimizer
        self.item = item
        self.restoring = restoring
        self.files: ItemFiles = restoring.files_of(item, about)
        self.saved = SavedGroups(about)
        self.own = Parameters.of(optimizer, restoring.parameters)
        self.lines: list[str] = []

    def state(self) -> dict[str, Any]:
        """Read the state that the optimizer gets, with its own numbers.

        Raises:
            RuntimeError: names, shapes or options differ.
        """
        matched = self.saved.matched(self.own, self.lines)
        missing = [
            self.own.shown(number)
            for number in range(len(self.own.parameters))
            if number not in matched
        ]
        unexpected = [
            self.saved.shown(number)
            for number in self.saved.numbers
            if number not in matched.values()
        ]
        restoring = self.restoring
        if restoring.strict:
            if missing:
                self.lines.append(f"the checkpoint has no state of {_shown(missing)}")
            if unexpected and (self.lines or restoring.ranks is None):
                self.lines.append(
                    f"the optimizer has no parameter {_shown(unexpected)}"
                )
            if self.lines and self.own.lengths != self.saved.lengths:
                self.lines.append(
                    f"it has parameter groups of {self.own.lengths} parameters, and in "
                    f"the checkpoint they have {self.saved.lengths}"
                )
        else:
            restoring.missing += [f"{self.item}.{name}" for name in missing]
            restoring.unexpected += [f"{self.item}.{name}" for name in unexpected]
        for number, saved in matched.items():
            self._compare_shapes(number, saved)
        groups = self._groups(matched)
        if self.lines:
            raise self._refusal(self.lines)
        if restoring.strict:
            restoring.note_unexpected(
                self.item,
                unexpected,
                lambda names: self._refusal(
                    [f"the optimizer has no parameter {_shown(names)}"]
                ),
            )
        return {"state": self._states(matched), "param_groups": groups}

    def _refusal(self, lines: list[str]) -> RuntimeError:
        joined = "".join(f"\n  {line}" for line in lines)
        return RuntimeError(MSG_DIFFERS.format(item=self.item, lines=joined))

    def _shapes(self, encoded: object) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors in the state of a parameter."""
        if not isinstance(encoded, dict):
            return {}
        found = {}
        for key, value in encoded.items():
            if isinstance(value, dict) and value.get("$") in ("tensor", "sharded"):
                found[key] = self.files.of_fields(value).shape
        return found

    def _compare_shapes(self, number: int, saved: int) -> None:
        parameter = self.own.parameters[number]
        if not _has_shape(parameter):
            return
        own = tuple(parameter.shape)
        name = self.own.names[number] or self.saved.shown(saved)
        known = self.saved.shapes[saved]
        if known is not None:
            if tuple(known) != own:
                self.lines.append(
                    f"size mismatch for {name!r}: the parameter has {list(own)}, and "
                    f"had {list(known)}"
                )
            return
        # A step of before has no shapes of parameters: states that all have one shape
        # have that of theirs.
        shapes = self._shapes(self.saved.state.get(saved))
        large = {shape for shape in shapes.values() if math.prod(shape) > 1}
        if len(large) == 1 and own not in large:
            key = next(key for key, shape in shapes.items() if shape in large)
            self.lines.append(
                f"size mismatch for {name!r}: the parameter has {list(own)}, and "
                f"{key!r} in the checkpoint {list(large.pop())}"
            )

    def _groups(self, matched: Mapping[int, int]) -> list[dict[str, Any]]:
        """The groups of the optimizer with the options that were saved of theirs."""
        encoded = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.saved.groups
        ]
        names = [(each["name"], None) for each in fields_in(encoded, "tensor")]
        sharded = [(each, None) for each in fields_in(encoded, "sharded")]
        options = self.restoring.decoder(self.files, names, sharded).decode(encoded)
        made = []
        numbers = iter(range(len(self.own.parameters)))
        for place, group in enumerate(self.optimizer.param_groups):
            own = [next(numbers) for _ in group["params"]]
            places = {self.saved.place[matched[n]] for n in own if n in matched}
            if not places and place < len(options) and not own:
                places = {place}
            taken = self._options(
                place, group, [options[each] for each in sorted(places)]
            )
            made.append({**taken, "params": own})
        return made

    def _options(
        self, place: int, group: Mapping[str, Any], saved: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """The options of a group, of those of all groups that its parameters were in."""
        own = {key: value for key, value in group.items() if key != "params"}
        if not saved:
            return own
        joined = {**saved[0]}
        for other in saved[1:]:
            for key in joined.keys() & other.keys() - {"param_names"}:
                if not _is_equal(joined[key], other[key]):
                    if self.restoring.strict:
                        self.lines.append(
                            f"the parameters of group {place} had {key}={joined[key]!r} "
                            f"and {key}={other[key]!r}: split the group as it was"
                        )
                    joined[key] = own.get(key, joined[key])
        joined.pop("param_names", None)
        missing = [
            key for key in own if key in self.optimizer.defaults and key not in joined
        ]
        if missing:
            known = _with_later_options(self.optimizer, joined)
            missing = [key for key in missing if key not in known]
            joined = {**known, **joined}
        if missing and self.restoring.strict:
            shown = ", ".join(map(repr, missing))
            self.lines.append(f"group {place} of the checkpoint has no option {shown}")
        return {**own, **joined}

    def _states(self, matched: Mapping[int, int]) -> dict[int, Any]:
        """Read the states of matched parameters; others keep theirs."""
        names, sharded, encoded = [], [], {}
        for number, saved in matched.items():
            if saved not in self.saved.state:
                continue
            encoded[number] = state = self.saved.state[saved]
            parameter = self.own.parameters[number]
            present = self.optimizer.state.get(parameter, {})
            for key, value in state.items() if isinstance(state, dict) else ():
                for fields in fields_in(value, "tensor"):
                    like = self._like(fields, parameter, present.get(key))
                    names.append((fields["name"], like))
                for fields in fields_in(value, "sharded"):
                    like = self._like(fields, parameter, present.get(key))
                    sharded.append((fields, like))
        decoder = self.restoring.decoder(self.files, names, sharded)
        found = {number: decoder.decode(each) for number, each in encoded.items()}
        own = self.optimizer.state_dict()["state"]
        for number in range(len(self.own.parameters)):
            if number not in matched and number in own:
                found[number] = copy.copy(own[number])
        return found

    def _like(self, fields: Mapping[str, Any], parameter: Any, present: Any) -> Any:
        """The tensor whose placements a state gets; None for a plain one."""
        if not is_sharded(parameter) or ("dtype" in fields and fields["$"] == "tensor"):
            return None
        shape = self.files.of_fields(fields).shape
        if is_sharded(present) and tuple(present.shape) == shape:
            return present
        if tuple(parameter.shape) == shape:
            return parameter
        if fields["$"] == "tensor" and not shape:
            return None
        return placed_like(parameter, shape, fields.get("placements", ()))


def _is_equal(first: object, second: object) -> bool:
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        return bool(torch.equal(torch.as_tensor(first), torch.as_tensor(second)))
    return bool(first == second)


def _with_later_options(
    optimizer: torch.optim.Optimizer, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Add the options that newer versions of an optimizer fill into older states."""
    probe = object.__new__(type(optimizer))
    group = {**options, "params": []}
    try:
        probe.__setstate__(
            {"state": {}, "param_groups": [group], "defaults": dict(optimizer.defaults)}
        )
    except Exception:  # noqa: BLE001 (a class of the user's: nothing is filled in)
        return dict(options)
    return {key: value for key, value in group.items() if key != "params"}


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state of an optimizer, with the dtypes that were saved.

    torch's own method imports Dynamo when it is first called, which takes over a second,
    and rounds the state of parameters of half precision to theirs.
    """
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


def _shown(names: list[Any]) -> str:
    return ", ".join(map(repr, names[:20]))
