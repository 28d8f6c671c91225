"""Each scenario answers as the published release does, or as its reason says."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import pytest
from torch.distributions import Distribution

sys.path.insert(0, str(Path(__file__).parent))

from scenario import (  # noqa: E402
    Scenario,
    cases_of,
    differences,
    read_answers,
    run,
    topics,
    unescaped,
    without_order,
)

BY_ACCIDENT = {"TypeError", "AttributeError", "UnboundLocalError", "AssertionError"}
"""Classes whose text is Python's own more often than the release's."""


@pytest.fixture(autouse=True)
def distributions_validate():
    """Check arguments of distributions, which torch.compile ends for the process."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


recorded = cache(read_answers)


@pytest.mark.parametrize(
    ("chapter", "case"),
    [
        pytest.param(chapter, case, id=f"{chapter}-{case.name}")
        for chapter in topics()
        for case in cases_of(chapter)
    ],
)
def test_scenario_answers_as_recorded(chapter: str, case: Scenario) -> None:
    expected = recorded(chapter).get(case.name)
    assert expected is not None, "not recorded: run tests/record.py scenarios"
    answer, result = run(case)
    missing = getattr(result, "__cause__", None)
    if isinstance(missing, ModuleNotFoundError) and missing.name in ("h5py", "zarr"):
        pytest.skip(f"could not import {missing.name!r}")
    if case.reason:
        assert answer["ours"], f"what ours= claims is not true of {result!r}"
        return
    found = json.loads(json.dumps(answer))
    if "raises" in expected:
        assert "raises" in found, f"release raises {expected['raises']}, ours {found}"
        said, ours = expected["raises"], found["raises"]
        assert said["chain"][0] in ours["chain"], f"release {said}, ours {ours}"
        if case.message or (
            case.message is None and said["chain"][0] not in BY_ACCIDENT
        ):
            assert unescaped(said["message"]).lower() in ours["message"].lower()
        return
    if "raises" in found:
        raise AssertionError(f"ours raises {result!r}") from result
    if not case.ordered:
        expected, found = without_order(expected), without_order(found)
    lines = list(differences(expected, found))
    assert not lines, "\n".join(lines)
