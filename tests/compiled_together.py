"""Compile many small programs as one: a compilation costs more than what is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Programs = Mapping[str, Callable[[Any], Any]]


def in_groups(programs: Programs, size: int = 12) -> list[Any]:
    """Return parameters of a test, each a dict of some of the programs."""
    pairs = list(programs.items())
    parts = [dict(pairs[at : at + size]) for at in range(0, len(pairs), size)]
    return [pytest.param(part, id=f"{[*part][0]} to {[*part][-1]}") for part in parts]


def on_one(programs: Programs) -> Callable[[Any], dict[str, Any]]:
    """Return a function that calls all programs with its argument."""
    pairs = list(programs.items())

    def run(argument: Any) -> dict[str, Any]:
        return {name: program(argument) for name, program in pairs}

    return run


def on_each(programs: Programs) -> Callable[[list[Any]], dict[str, Any]]:
    """Return a function that calls each program with an argument of its own."""
    pairs = list(programs.items())

    def run(arguments: list[Any]) -> dict[str, Any]:
        found = {}
        for (name, program), argument in zip(pairs, arguments, strict=True):
            found[name] = program(argument)
        return found

    return run
