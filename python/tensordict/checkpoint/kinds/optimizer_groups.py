"""The parameters of an optimizer and of a saved one, and which belong together."""

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
    """The names that they have without wrappers; None where nobody knows one."""
    lengths: list[int]
    """The number of parameters of each group."""

    @classmethod
    def of(
        cls, optimizer: Optimizer, known: Mapping[int, tuple[str, str]]
    ) -> Parameters:
        """Return those of an optimizer.

        Args:
            optimizer: the optimizer.
            known: item and name of the parameters of modules, by ``id``.
        """
        groups = optimizer.param_groups
        parameters = [each for group in groups for each in group["params"]]
        given: list[Any] = [
            name
            for group in groups
            for name in group.get("param_names") or [None] * len(group["params"])
        ]
        found = [known.get(id(each)) for each in parameters]
        if all(found):
            pairs = [pair for pair in found if pair is not None]
            names: list[str | None] = [name for _, name in pairs]
            if len(set(names)) < len(names):
                # The item tells apart what several modules call alike.
                names = [f"{item}.{name}" for item, name in pairs]
        elif len(given) == len(parameters) and None not in given:
            bare = bare_wrapper_names(given, ())
            names = [bare[name] for name in given]
        else:
            names = [None] * len(parameters)
        return cls(parameters, names, [len(group["params"]) for group in groups])

    def shown(self, number: int) -> str:
        """The name of a parameter in messages."""
        return self.names[number] or f"parameter {number}"


class SavedGroups:
    """The groups and states of an optimizer in a step, still as JSON.

    Args:
        about: what the step says of the optimizer.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        value = about["value"]
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
        table = about.get("parameters")
        if table is None:
            given = [
                name
                for group in self.groups
                for name in group.get("param_names") or [None] * len(group["params"])
            ]
            table = [[name and bare_text(name), None] for name in given]
        names, shapes = zip(*table, strict=True) if table else ((), ())
        self.names: dict[int, Any] = dict(zip(self.numbers, names, strict=True))
        self.shapes: dict[int, Any] = dict(zip(self.numbers, shapes, strict=True))

    def shown(self, number: int) -> str:
        """The name of a parameter in messages."""
        return self.names[number] or f"parameter {number}"

    @property
    def lengths(self) -> list[int]:
        """The number of parameters of each group."""
        return [len(group["params"]) for group in self.groups]

    def matched(self, own: Parameters, lines: list[str]) -> dict[int, int]:
        """Return the numbers in the step of the parameters of an optimizer, by theirs.

        They go by name. Where names are not known they go by their order, and groups
        have to be as long as they were.

        Args:
            own: the parameters of the optimizer.
            lines: takes what is wrong.
        """
        saved = [self.names[number] for number in self.numbers]
        if None not in saved and None not in own.names:
            bare = bare_wrapper_names(saved, [name for name in own.names if name])
            by_name = {bare[self.names[number]]: number for number in self.numbers}
            return {
                number: by_name[name]
                for number, name in enumerate(own.names)
                if name in by_name
            }
        if own.lengths != self.lengths:
            lines.append(
                "names are not known: parameters go by them where the model is saved and "
                "restored with the optimizer"
            )
            return dict(zip(range(len(own.parameters)), self.numbers, strict=False))
        return dict(enumerate(self.numbers))
