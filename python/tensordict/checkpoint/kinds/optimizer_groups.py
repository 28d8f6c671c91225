"""Match the parameters of an optimizer with the parameters of a saved optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tensordict.checkpoint.names import bare_text, bare_wrapper_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim import Optimizer

__all__ = ["Parameters", "SavedGroups"]


class Parameters(NamedTuple):
    """The parameters of an optimizer, in the order of its groups."""

    parameters: list[Any]
    names: list[str | None]
    """The names of the parameters in the bare model; None if unknown."""
    lengths: list[int]
    """The number of parameters of each group."""

    @classmethod
    def of(
        cls, optimizer: Optimizer, names_by_id: Mapping[int, tuple[str, str]]
    ) -> Parameters:
        """Return the parameters of an optimizer.

        Args:
            optimizer: the optimizer.
            names_by_id: the item and name of the parameters of modules, by ``id``.
        """
        groups = optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        given_names: list[Any] = [
            name
            for group in groups
            for name in group.get("param_names") or [None] * len(group["params"])
        ]
        items_and_names = [names_by_id.get(id(parameter)) for parameter in parameters]
        if all(items_and_names):
            pairs = [pair for pair in items_and_names if pair is not None]
            names: list[str | None] = [name for _, name in pairs]
            if len(set(names)) < len(names):
                # Several modules have a parameter of this name, so the item
                # distinguishes them.
                names = [f"{item}.{name}" for item, name in pairs]
        elif len(given_names) == len(parameters) and None not in given_names:
            bare = bare_wrapper_names(given_names, ())
            names = [bare[name] for name in given_names]
        else:
            names = [None] * len(parameters)
        return cls(parameters, names, [len(group["params"]) for group in groups])

    def shown(self, number: int) -> str:
        """Return the name of a parameter for messages."""
        return self.names[number] or f"parameter {number}"


class SavedGroups:
    """The groups and states of an optimizer in a step, not yet decoded.

    Args:
        metadata: the description of the optimizer.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        value = metadata["value"]
        state = value["state"]
        pairs = state["items"] if "$" in state else list(state.items())
        self.state: dict[int, Any] = dict(pairs)
        self.groups: list[dict[str, Any]] = value["param_groups"]
        self.numbers: list[int] = [n for group in self.groups for n in group["params"]]
        self.place: dict[int, int] = {
            number: place
            for place, group in enumerate(self.groups)
            for number in group["params"]
        }
        table = metadata.get("parameters")
        if table is None:
            given_names = [
                name
                for group in self.groups
                for name in group.get("param_names") or [None] * len(group["params"])
            ]
            table = [[name and bare_text(name), None] for name in given_names]
        names, shapes = zip(*table, strict=True) if table else ((), ())
        self.names: dict[int, Any] = dict(zip(self.numbers, names, strict=True))
        self.shapes: dict[int, Any] = dict(zip(self.numbers, shapes, strict=True))

    def shown(self, number: int) -> str:
        """Return the name of a parameter for messages."""
        return self.names[number] or f"parameter {number}"

    @property
    def lengths(self) -> list[int]:
        """The number of parameters of each group."""
        return [len(group["params"]) for group in self.groups]

    def matched(self, parameters: Parameters, lines: list[str]) -> dict[int, int]:
        """Map the parameters of an optimizer to their numbers in the step.

        Parameters are matched by name. If names are unknown, they are matched by order,
        and the groups must have the saved lengths.

        Args:
            parameters: the parameters of the optimizer.
            lines: the list that receives descriptions of errors.
        """
        saved = [self.names[number] for number in self.numbers]
        if None not in saved and None not in parameters.names:
            bare = bare_wrapper_names(
                saved, [name for name in parameters.names if name]
            )
            by_name = {bare[self.names[number]]: number for number in self.numbers}
            return {
                number: by_name[name]
                for number, name in enumerate(parameters.names)
                if name in by_name
            }
        if parameters.lengths != self.lengths:
            lines.append(
                "the names of the parameters are unknown, so they cannot be matched: save "
                "and restore the model together with the optimizer"
            )
            return dict(
                zip(range(len(parameters.parameters)), self.numbers, strict=False)
            )
        return dict(enumerate(self.numbers))
