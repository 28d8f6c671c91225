"""The kind of optimizers, whose states are matched by the names of parameters."""

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
    "Cannot save {item!r}: the ranks {one} and {other} have different parameters of unknown "
    "names. Save the model together with the optimizer, or create the optimizer from "
    "model.named_parameters()."
)


class OptimizerKind(Kind):
    """A kind that saves the state with the names and shapes of the parameters."""

    name = "optimizer"
    is_shared = True

    def matches(self, item: object) -> bool:
        """Return whether an item is an optimizer."""
        return isinstance(item, torch.optim.Optimizer)

    def describe(self, item: Item, saving: Saving) -> dict[str, Any]:
        """Collect the state of each parameter under the parameter's name."""
        refuse_flat_optimizer(saving.name, item)
        encoder, state = saving.encoder, item.state_dict()
        if not _is_usual(state):
            return {"value": encoder.encode(state)}
        numbers = [n for group in state["param_groups"] for n in group["params"]]
        parameters = Parameters.of(item, saving.parameters)
        names = (
            parameters.names
            if len(parameters.names) == len(numbers)
            else [None] * len(numbers)
        )
        stems = {
            number: name or str(number)
            for number, name in zip(numbers, names, strict=True)
        }
        pairs = [
            [
                encoder.encode(key),
                encoder.encode(parameter_state, ("state", stems.get(key, str(key)))),
            ]
            for key, parameter_state in state["state"].items()
        ]
        others = {
            key: encoder.encode(value, (key,))
            for key, value in state.items()
            if key != "state"
        }
        metadata: dict[str, Any] = {
            "value": {"state": {"$": "dict", "items": pairs}, **others}
        }
        if len(parameters.names) == len(numbers):
            metadata["parameters"] = [
                [name, list(parameter.shape) if _has_shape(parameter) else None]
                for name, parameter in zip(names, parameters.parameters, strict=True)
            ]
        return metadata

    def prepare(
        self, item: Item, name: str, metadata: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Match the parameters, compare groups and shapes, and register the load."""
        refuse_flat_optimizer(name, item)
        value = metadata["value"]
        if not _is_usual(value) or not _is_usual(item.state_dict()):
            state = restoring.value(name, metadata, like=item.state_dict())
        else:
            state = _Matching(item, name, metadata, restoring).state()
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

    def merged(self, item: str, metadata_by_rank: Mapping[int, Any]) -> dict[str, Any]:
        """Merge the parameters of all ranks, and number them anew."""
        ranks = sorted(metadata_by_rank)
        first = metadata_by_rank[ranks[0]]
        tables = {rank: metadata_by_rank[rank].get("parameters") for rank in ranks}
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
            saved = SavedGroups(metadata_by_rank[rank])
            for number, parameter_state in saved.state.items():
                state.setdefault(numbers[saved.names[number]], parameter_state)
            for place, group in enumerate(saved.groups):
                options = {
                    key: value
                    for key, value in group.items()
                    if key not in ("params", "param_names")
                }
                merged_group = groups.setdefault(
                    (place, repr(options)), {**options, "params": []}
                )
                for number in group["params"]:
                    merged_number = numbers[saved.names[number]]
                    if all(
                        merged_number not in merged["params"]
                        for merged in groups.values()
                    ):
                        merged_group["params"].append(merged_number)
        # Number the parameters in the order of the groups, as torch does.
        order = [number for group in groups.values() for number in group["params"]]
        new_numbers = {old_number: number for number, old_number in enumerate(order)}
        merged_groups = [
            {**group, "params": [new_numbers[number] for number in group["params"]]}
            for group in groups.values()
        ]
        pairs = [
            [new_numbers[number], state[number]] for number in order if number in state
        ]
        value = {**first["value"], "state": {"$": "dict", "items": pairs}}
        value["param_groups"] = merged_groups
        return {
            **first,
            "value": value,
            "parameters": [parameters[number] for number in order],
        }


def _is_usual(state: object) -> bool:
    """Return whether a state has the form of torch's own optimizers."""
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
    """The restore of one optimizer.

    Args:
        optimizer: the optimizer.
        item: the name of the item.
        metadata: the description of the item.
        restoring: the restore to which it belongs.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        item: str,
        metadata: Mapping[str, Any],
        restoring: Restoring,
    ) -> None:
        self.optimizer = optimizer
        self.item = item
        self.restoring = restoring
        self.files: ItemFiles = restoring.files_of(item, metadata)
        self.saved = SavedGroups(metadata)
        self.own = Parameters.of(optimizer, restoring.parameters)
        self.lines: list[str] = []

    def state(self) -> dict[str, Any]:
        """Read the state for the optimizer, under its own parameter numbers.

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
                    f"its parameter groups have {self.own.lengths} parameters, but the "
                    f"groups in the checkpoint have {self.saved.lengths}"
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
        """Return the shapes of the tensors in the encoded state of a parameter."""
        if not isinstance(encoded, dict):
            return {}
        shapes = {}
        for key, value in encoded.items():
            if isinstance(value, dict) and value.get("$") in ("tensor", "sharded"):
                shapes[key] = self.files.of_fields(value).shape
        return shapes

    def _compare_shapes(self, number: int, saved: int) -> None:
        parameter = self.own.parameters[number]
        if not _has_shape(parameter):
            return
        own_shape = tuple(parameter.shape)
        name = self.own.names[number] or self.saved.shown(saved)
        saved_shape = self.saved.shapes[saved]
        if saved_shape is not None:
            if tuple(saved_shape) != own_shape:
                self.lines.append(
                    f"size mismatch for {name!r}: the parameter has {list(own_shape)}, and "
                    f"had {list(saved_shape)}"
                )
            return
        # Steps of older versions contain no parameter shapes. If all tensors of the
        # state have one shape, it is the parameter's.
        shapes = self._shapes(self.saved.state.get(saved))
        large = {shape for shape in shapes.values() if math.prod(shape) > 1}
        if len(large) == 1 and own_shape not in large:
            key = next(key for key, shape in shapes.items() if shape in large)
            self.lines.append(
                f"size mismatch for {name!r}: the parameter has {list(own_shape)}, and "
                f"{key!r} in the checkpoint {list(large.pop())}"
            )

    def _groups(self, matched: Mapping[int, int]) -> list[dict[str, Any]]:
        """Return the groups of the optimizer with their saved options."""
        encoded = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.saved.groups
        ]
        names = [(fields["name"], None) for fields in fields_in(encoded, "tensor")]
        sharded = [(fields, None) for fields in fields_in(encoded, "sharded")]
        options = self.restoring.decoder(self.files, names, sharded).decode(encoded)
        groups = []
        numbers = iter(range(len(self.own.parameters)))
        for place, group in enumerate(self.optimizer.param_groups):
            own_numbers = [next(numbers) for _ in group["params"]]
            places = {self.saved.place[matched[n]] for n in own_numbers if n in matched}
            if not places and place < len(options) and not own_numbers:
                places = {place}
            options_of_group = self._options(
                place, group, [options[saved_place] for saved_place in sorted(places)]
            )
            groups.append({**options_of_group, "params": own_numbers})
        return groups

    def _options(
        self, place: int, group: Mapping[str, Any], saved: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Merge the saved options of all groups in which a group's parameters were."""
        own_options = {key: value for key, value in group.items() if key != "params"}
        if not saved:
            return own_options
        joined = {**saved[0]}
        for other in saved[1:]:
            for key in joined.keys() & other.keys() - {"param_names"}:
                if not _is_equal(joined[key], other[key]):
                    if self.restoring.strict:
                        self.lines.append(
                            f"the parameters of group {place} had {key}={joined[key]!r} "
                            f"and {key}={other[key]!r}: split the group as it was"
                        )
                    joined[key] = own_options.get(key, joined[key])
        joined.pop("param_names", None)
        missing = [
            key
            for key in own_options
            if key in self.optimizer.defaults and key not in joined
        ]
        if missing:
            with_defaults = _with_later_options(self.optimizer, joined)
            missing = [key for key in missing if key not in with_defaults]
            joined = {**with_defaults, **joined}
        if missing and self.restoring.strict:
            shown = ", ".join(map(repr, missing))
            self.lines.append(f"group {place} of the checkpoint has no option {shown}")
        return {**own_options, **joined}

    def _states(self, matched: Mapping[int, int]) -> dict[int, Any]:
        """Read the states of matched parameters; the others keep their states."""
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
        states = {
            number: decoder.decode(parameter_state)
            for number, parameter_state in encoded.items()
        }
        own_states = self.optimizer.state_dict()["state"]
        for number in range(len(self.own.parameters)):
            if number not in matched and number in own_states:
                states[number] = copy.copy(own_states[number])
        return states

    def _like(self, fields: Mapping[str, Any], parameter: Any, present: Any) -> Any:
        """Return the ``DTensor`` whose placements a state gets; None for a plain tensor."""
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
    """Add options that this version of an optimizer fills into states of older versions."""
    probe = object.__new__(type(optimizer))
    group = {**options, "params": []}
    try:
        probe.__setstate__(
            {"state": {}, "param_groups": [group], "defaults": dict(optimizer.defaults)}
        )
    except Exception:  # noqa: BLE001 (a user's class may not support it)
        return dict(options)
    return {key: value for key, value in group.items() if key != "params"}


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state of an optimizer, and keep the saved dtypes.

    torch's own method imports Dynamo at its first call, which takes over a second. For
    half-precision parameters it rounds the state to their dtype.
    """
    cls = type(optimizer)
    base = torch.optim.Optimizer
    original_load = getattr(base.load_state_dict, "__wrapped__", None)
    if cls.load_state_dict is not base.load_state_dict or original_load is None:
        optimizer.load_state_dict(state)
        return
    original_load(optimizer, state)
    parameters = [
        parameter for group in optimizer.param_groups for parameter in group["params"]
    ]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        loaded = optimizer.state.get(parameter)
        if not loaded:
            continue
        for key, value in state["state"].get(number, {}).items():
            loaded_value = loaded.get(key)
            if (
                isinstance(value, torch.Tensor)
                and isinstance(loaded_value, torch.Tensor)
                and loaded_value.dtype != value.dtype
            ):
                loaded[key] = value.to(loaded_value.device)


def _shown(names: list[Any]) -> str:
    return ", ".join(map(repr, names[:20]))
