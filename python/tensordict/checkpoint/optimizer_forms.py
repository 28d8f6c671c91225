"""The three forms of an optimizer's state: by number, by name, and flat.

``optimizer.state_dict()`` numbers the parameters. ``get_state_dict`` of
``torch.distributed.checkpoint`` uses their names instead of numbers. With
``flatten_optimizer_state_dict=True`` it returns one flat dictionary::

    {"state.layer.weight.exp_avg": ..., "param_groups.layer.weight.lr": 0.1}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["by_name", "by_number", "is_flat_key", "is_optimizer"]

_STATE = "state."
_GROUPS = "param_groups."


def is_flat_key(key: object) -> bool:
    """Return whether a key belongs to the flat form."""
    return isinstance(key, str) and key.startswith((_STATE, _GROUPS))


def is_optimizer(value: object) -> bool:
    """Return whether a value is the state of an optimizer, in any form."""
    if not isinstance(value, dict) or not value:
        return False
    if "param_groups" in value:
        # DCP does not store an empty dictionary, so a stateless optimizer has no
        # "state".
        groups = value["param_groups"]
        return value.keys() >= {"state", "param_groups"} or (
            len(value) == 1
            and isinstance(groups, list)
            and all(isinstance(group, dict) and "params" in group for group in groups)
        )
    return all(map(is_flat_key, value)) and any(
        key.startswith(_GROUPS) for key in value
    )


def by_name(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Convert a state from numbers to names, the form of ``get_state_dict``.

    Args:
        state: the state, by number.
        names: the names of the parameters, in the order of the groups.
    """
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    name_of = dict(zip(numbers, names, strict=True))
    groups = [
        {**group, "params": [name_of[number] for number in group["params"]]}
        for group in state["param_groups"]
    ]
    states = {name_of.get(key, key): values for key, values in state["state"].items()}
    return {**state, "state": states, "param_groups": groups}


def by_number(state: Mapping[str, Any]) -> tuple[dict[str, Any], list[str] | None]:
    """Convert a state to numbers; also return the names in order, or None."""
    if "param_groups" not in state:
        state = _nested(state)
    names = [name for group in state["param_groups"] for name in group["params"]]
    states = state.get("state", {})
    if not names or not all(isinstance(name, str) for name in names):
        return {**state, "state": states}, None
    number_of = {name: number for number, name in enumerate(names)}
    groups = [
        {**group, "params": [number_of[name] for name in group["params"]]}
        for group in state["param_groups"]
    ]
    numbered = {number_of.get(name, name): values for name, values in states.items()}
    return {**state, "state": numbered, "param_groups": groups}, names


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a flat state to the form by name; equal options make one group."""
    options: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        if key.startswith(_GROUPS):
            name, _, option = key.removeprefix(_GROUPS).rpartition(".")
            own_options = options.setdefault(name, {})
            if option != "param_names":
                own_options[option] = value
    groups: dict[str, dict[str, Any]] = {}
    for name, own_options in options.items():
        groups.setdefault(repr(own_options), {**own_options, "params": []})[
            "params"
        ].append(name)
    states: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        if not key.startswith(_STATE):
            continue
        name, parts = _split(key.removeprefix(_STATE), options)
        level = states.setdefault(name, {})
        for part in parts[:-1]:
            level = level.setdefault(part, {})
        level[parts[-1]] = value
    return {"state": states, "param_groups": list(groups.values())}


def _split(key: str, names: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Split a key into the name of its parameter and the remaining components."""
    parts = key.split(".")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        if name in names:
            return name, parts[length:]
    return ".".join(parts[:-1]), parts[-1:]
