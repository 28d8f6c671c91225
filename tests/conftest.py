"""Hypothesis profiles and fixtures that every test shares.

``quick`` is the default. ``HYPOTHESIS_PROFILE=thorough pytest tests/property`` looks ten
times as far. Neither has a deadline: the machines that run tests are busy with others.
Where ``CI`` is set the examples are the same in every run, so that a change is judged by
what it did, and not by what was drawn; elsewhere each run looks at new ones.
"""

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.util import get_temp_dir
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from separate_process import start_server

settings.register_profile(
    "quick",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", parent=settings.get_profile("quick"), max_examples=500
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# Each process of a test would compile the package anew, and pytest the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Each new worker of Ray imports torch for seconds: idle workers are kept. A disk that other
# programs fill stops no test.
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_num_workers_soft_limit="4",
    RAY_idle_worker_killing_time_threshold_ms="600000",
    RAY_local_fs_capacity_threshold="1",
)

LONG = (
    *("test_typing", "test_hunt", "test_parity", "test_doctests", "test_damage"),
    *("test_scenarios", "test_twins", "test_conformance", "test_stateful"),
    *("test_examples", "test_collectives", "test_shared_values"),
)
"""The files that take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: no worker waits for another at the end.

    A worker gets whole files (``--dist loadfile``), so that what the tests of a file
    share, such as the answers of a type checker, is made once, and not in each worker.
    """
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the tests themselves: there are thousands.

    A worker has its server of processes from the start, whichever test needs one first.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        start_server()
    gc.collect()
    gc.freeze()


CHECKOUT = Path(__file__).parents[1]
CACHES = {
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    "build",
    "target",
}


@pytest.fixture(scope="session", autouse=True)
def clean_checkout() -> Iterator[None]:
    """Fail where a test leaves a file in the folder of the checkout."""
    before = set(os.listdir(CHECKOUT))
    yield
    left = set(os.listdir(CHECKOUT)) - before - CACHES
    assert not left, f"tests wrote into the checkout: {sorted(left)}"


@pytest.fixture(scope="session", autouse=True)
def temporary_files() -> Iterator[None]:
    """Remove what the programs of the tests left in the folder of temporary files."""
    get_temp_dir()  # That of multiprocessing is removed after this one, by itself.
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        yield
    tempfile.tempdir = before
