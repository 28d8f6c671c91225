"""The typed programs of this folder, under both type checkers and as programs.

The programs of ``examples/`` are checked here and run by ``tests/test_examples.py``.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
import torch

import tensordict

FOLDER = Path(__file__).parent
PROGRAMS = sorted(path for path in FOLDER.glob("*.py") if path.name != "test_typing.py")
EXAMPLES = sorted((FOLDER.parents[1] / "examples").glob("*.py"))
CHECKED = [*PROGRAMS, *EXAMPLES]
PACKAGE = Path(tensordict.__file__).parent.parent
# Pyright has no plugins: of a decorated class it knows the fields alone, and torch's
# functions are typed for tensors.
NEEDS_PLUGIN = ("decorator_form.py", "with_plugin.py")

CAUGHT = {
    "Data()": "call-arg",
    "Data(torch.zeros(3), batch_size='three')": "arg-type",
    "Data(torch.zeros(3), size=[3])": "call-arg",
    "Data(torch.zeros(3)).missing": "attr-defined",
    "Data(torch.zeros(3)).a = 'text'": "assignment",
    "Data(torch.zeros(3))[0].a.missing": "attr-defined",
}
"""Mistakes, and what mypy calls them."""

HEAD = "import torch\nfrom tensordict import TensorClass, tensorclass\n"
FORMS = {
    "wrong_class.py": "class Data(TensorClass):",
    "wrong_decorated.py": "@tensorclass\nclass Data:",
}
"""The ways to write the class whose use is mistaken, each in a file of its own."""


def run(command: list[str]) -> str:
    """Return what a checker says."""
    environment = {**os.environ, "MYPYPATH": str(PACKAGE), "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    )
    # A checker answers 1 where it found something, in the package or in the program.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def check(said: str, program: Path) -> None:
    """Assert that a checker has nothing to say of a program."""
    lines = [line for line in said.splitlines() if program.name in line]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_runs(program):
    runpy.run_path(str(program))


@pytest.fixture(scope="module")
def mypy_says(tmp_path_factory):
    """All that mypy says, in one run with the plugin."""
    if not importlib.util.find_spec("mypy"):
        pytest.skip("needs mypy")
    folder = tmp_path_factory.mktemp("mistakes")
    for name, form in FORMS.items():
        text = f"{HEAD}{form}\n    a: torch.Tensor\n" + "\n".join(CAUGHT)
        (folder / name).write_text(text)
    # An older cache lacks what the plugin does while a class is read.
    config, cache = FOLDER / "mypy.ini", tmp_path_factory.mktemp("mypy")
    command = [sys.executable, "-m", "mypy", f"--config-file={config}"]
    return run([*command, f"--cache-dir={cache}", *map(str, CHECKED), str(folder)])


@pytest.mark.parametrize("program", CHECKED, ids=lambda path: path.stem)
def test_mypy_strict(program, mypy_says):
    check(mypy_says, program)


@pytest.mark.parametrize("name", FORMS)
def test_mypy_finds_mistakes(name, mypy_says):
    first = f"{HEAD}{FORMS[name]}".count("\n") + 3
    for number, (line, code) in enumerate(CAUGHT.items(), first):
        place = f"{name}:{number}: "
        found = [each for each in mypy_says.splitlines() if place in each]
        assert len(found) == 1, (line, mypy_says)
        assert found[0].endswith(f"[{code}]"), line


@pytest.fixture(scope="module")
def pyright():
    """The command that runs pyright, whose first call fetches the program itself."""
    if not importlib.util.find_spec("pyright"):
        pytest.skip("needs pyright")
    command = [sys.executable, "-m", "pyright"]
    done = subprocess.run([*command, "--version"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("pyright cannot be fetched here")
    return [*command, "--pythonpath", sys.executable]


@pytest.fixture(scope="module")
def pyright_says(pyright):
    return run([*pyright, *map(str, CHECKED)])


@pytest.mark.parametrize(
    "program",
    [path for path in CHECKED if path.name not in NEEDS_PLUGIN],
    ids=lambda path: path.stem,
)
def test_pyright(program, pyright_says):
    check(pyright_says, program)


@pytest.fixture(scope="module")
def environment_with_torch_alone(tmp_path_factory):
    """The programs of an environment with the libraries that a user has at least."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/*/site-packages")
    for module in (torch, np):
        found = Path(module.__file__).parent
        (site / found.name).symlink_to(found)
    return folder / "bin"


def test_public_surface(pyright, environment_with_torch_alone):
    """Every name that the package offers has a type that all checkers agree on."""
    # This one asks the interpreter that it finds first, and takes none as an argument.
    path = os.pathsep.join([str(environment_with_torch_alone), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "PATH": path}
    options = ["--verifytypes", "tensordict", "--ignoreexternal"]
    command = [*pyright[:3], *options]
    said = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    ).stdout
    # The callback for Lightning derives from a class of that, which has no types.
    untyped = ("Type of metaclass unknown", "Type of base class unknown")
    errors = [
        line
        for line in said.splitlines()
        if "error:" in line and not line.endswith(untyped)
    ]
    assert not errors, "\n".join(errors)
    assert "Type completeness score: 100%" in said
