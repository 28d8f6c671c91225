"""The typed programs of this folder, under both type checkers and as programs."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import tensordict

FOLDER = Path(__file__).parent
PROGRAMS = sorted(path for path in FOLDER.glob("*.py") if path.name != "test_typing.py")
PACKAGE = Path(tensordict.__file__).parent.parent


def check(command: list[str], program: Path) -> None:
    """Assert that a checker has nothing to say of a program."""
    environment = {**os.environ, "MYPYPATH": str(PACKAGE), "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    )
    # A checker answers 1 where it found something, in the package or in the program.
    assert done.returncode in (0, 1), done.stderr
    said = [line for line in done.stdout.splitlines() if program.name in line]
    assert not said, "\n".join(said)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_runs(program):
    runpy.run_path(str(program))


@pytest.mark.skipif(not importlib.util.find_spec("mypy"), reason="needs mypy")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_mypy_strict(program, tmp_path):
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path)]
    check([*command, str(program)], program)


@pytest.fixture(scope="module")
def pyright():
    """The command that runs pyright, whose first call fetches the program itself."""
    command = [sys.executable, "-m", "pyright"]
    done = subprocess.run([*command, "--version"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("pyright cannot be fetched here")
    return [*command, "--pythonpath", sys.executable]


@pytest.mark.skipif(not importlib.util.find_spec("pyright"), reason="needs pyright")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_pyright(program, pyright):
    check([*pyright, str(program)], program)
