"""Compare our answers with those of the published release, a test per method of a topic."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from torch_versions import OLDER

sys.path.insert(0, str(Path(__file__).parent))

from describe import unescaped  # noqa: E402
from frame import (  # noqa: E402
    Case,
    cases_of,
    differences,
    read_answers,
    run,
    topics,
    without_order,
)

RAISED_BY_ACCIDENT = {
    "TypeError",
    "AttributeError",
    "UnboundLocalError",
    "NameError",
    "AssertionError",
}
"""Classes whose text is Python's own more often than the release's."""

OF_OLDER_TORCH: dict[str, str] = {}
"""Classes and texts of torch's own errors, in a version before that of the answers."""
if OLDER:
    OF_OLDER_TORCH = {"NotImplementedError": "RuntimeError", "addmm": "mat1 and mat2"}


def methods() -> dict[tuple[str, str], list[Case]]:
    """The cases by topic and method: a test each would take as long as the cases do."""
    found: dict[tuple[str, str], list[Case]] = {}
    for topic in topics():
        for case in cases_of(topic):
            found.setdefault((topic, case.method), []).append(case)
    return found


METHODS = methods()


recorded = cache(read_answers)


def compare_errors(case: Case, expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Assert that an error is caught by the same clauses and says the same."""
    chain = found["chain"]
    name = expected["chain"][0]
    assert name in chain or OF_OLDER_TORCH.get(name) in chain, (
        f"release raises {expected}, ours {found}"
    )
    message = case.message
    if message is None:
        message = name not in RAISED_BY_ACCIDENT
    if message:
        said = unescaped(OF_OLDER_TORCH.get(expected["message"], expected["message"]))
        assert said.lower() in found["message"].lower(), (
            f"release says {expected['message']!r}, ours {found['message']!r}"
        )


def check(topic: str, case: Case) -> None:
    """Assert that the result, the error and the state afterwards are the recorded ones."""
    found, names = run(case)
    if case.ours:
        assert eval(case.ours, names), f"{case.ours} is not true of {found}"  # noqa: S307
        return
    expected = recorded(topic).get((case.method, case.fixture, case.program))
    assert expected is not None, "not recorded: run tests/record.py parity"
    found = json.loads(json.dumps(found))
    if "raises" in expected:
        assert "raises" in found, f"release raises {expected['raises']}, ours {found}"
        compare_errors(case, expected["raises"], found["raises"])
        expected = {k: v for k, v in expected.items() if k != "raises"}
        found = {k: v for k, v in found.items() if k != "raises"}
        # The release may have written a part of the change: here nothing is.
        for name in ("td", "o"):
            if found.get(name) == "unchanged":
                expected[name] = "unchanged"
    elif "raises" in found:
        error = names["error"]
        raise AssertionError(f"ours raises {error!r}") from error
    if not case.ordered:
        expected, found = without_order(expected), without_order(found)
    lines = list(differences(expected, found))
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    ("topic", "method"), METHODS, ids=[f"{topic}-{name}" for topic, name in METHODS]
)
def test_answers_are_those_of_the_release(topic: str, method: str) -> None:
    wrong = []
    for case in METHODS[topic, method]:
        try:
            check(topic, case)
        except Exception as error:  # noqa: BLE001 (each case is judged by itself)
            wrong.append(f"{case.name}\n    {error!r}")
    told = "\n".join(wrong[:20])
    assert not wrong, f"{len(wrong)} of {len(METHODS[topic, method])} differ:\n{told}"
