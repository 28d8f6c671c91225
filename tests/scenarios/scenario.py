"""Scenarios: what one has, and how it is run and described."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "Scenario",
    "cases_of",
    "differences",
    "read_answers",
    "run",
    "scenario",
    "topics",
    "unescaped",
    "without_order",
    "write_answers",
]

FOLDER = Path(__file__).parent
# Results are described as those of the parity cases are.
for folder in (FOLDER, FOLDER.parent / "parity"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from describe import Origins, describe, describe_error, unescaped  # noqa: E402
from frame import differences, without_order  # noqa: E402


@dataclass(frozen=True)
class Scenario:
    """A program, and what is known about its answer.

    Attributes:
        program: the function that is run.
        reason: why our answer is not the release's; empty where it is the same.
        ours: what is true of our result, or of the exception that we raise.
        warned: whether warnings are part of the answer.
        ordered: whether the order of entries is.
        message: whether the text of an error is compared. Default: for the classes
            that are raised on purpose.
    """

    program: Callable[..., Any]
    reason: str = ""
    ours: Callable[[Any], bool] | None = None
    warned: bool = False
    ordered: bool = True
    message: bool | None = None

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.program.__name__


_found: dict[str, dict[str, Scenario]] = {}


def scenario(program: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Register a function as a scenario of the chapter that it stands in."""
    if program is None:
        return lambda function: scenario(function, **options)
    found = Scenario(program, **options)
    if bool(found.reason) != bool(found.ours):
        msg = f"{found.name}: a difference has a reason and ours=."
        raise ValueError(msg)
    chapter = _found.setdefault(program.__module__, {})
    if found.name in chapter:
        msg = f"{program.__module__} has two scenarios named {found.name}"
        raise ValueError(msg)
    chapter[found.name] = found
    return program


def topics() -> list[str]:
    """Return the chapters that there are."""
    return sorted(path.stem[8:] for path in FOLDER.glob("chapter_*.py"))


def cases_of(chapter: str) -> list[Scenario]:
    """Return the scenarios of ``chapter_<chapter>.py``, in their order."""
    module = f"chapter_{chapter}"
    importlib.import_module(module)
    return list(_found.get(module, {}).values())


def _answers_path(chapter: str) -> Path:
    return FOLDER / "answers" / f"{chapter}.json"


def read_answers(chapter: str) -> dict[str, Any]:
    """Read what the release answers to the scenarios of a chapter, by their names."""
    path = _answers_path(chapter)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_answers(chapter: str, answers: list[tuple[Scenario, Any]]) -> None:
    """Write what the release answers, a line each."""
    lines = ",\n".join(
        f"{json.dumps(case.name)}: {json.dumps(answer, separators=(',', ':'))}"
        for case, answer in answers
    )
    path = _answers_path(chapter)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def run(case: Scenario) -> tuple[dict[str, Any], Any]:
    """Run a scenario. Returns its answer as JSON, and the result or the exception."""
    torch.manual_seed(0)
    answer: dict[str, Any] = {}
    origins = Origins(None, None)
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        needs_folder = "tmp_path" in inspect.signature(case.program).parameters
        arguments = {"tmp_path": Path(folder)} if needs_folder else {}
        try:
            result = case.program(**arguments)
            answer["result"] = describe(result, origins, whole=True)
        except Exception as error:  # noqa: BLE001  # every error is an answer
            result = error
            answer["raises"] = describe_error(error)
            # Folders have another name each time.
            message = answer["raises"]["message"].replace(folder, "FOLDER")
            answer["raises"]["message"] = message
        if case.reason and case.ours is not None:
            answer["ours"] = _holds(case.ours, result)
    if case.warned:
        answer["warns"] = sorted(
            {(seen.category.__name__, str(seen.message)[:80]) for seen in caught}
        )
    return answer, result


def _holds(claim: Callable[[Any], bool], result: Any) -> bool:
    """Return whether a claim about our result is true; a claim that fails is not."""
    try:
        return bool(claim(result))
    except Exception:  # noqa: BLE001  # such as a claim about another type of result
        return False
