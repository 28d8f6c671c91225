"""Run the console examples of the documents: lines ``$ command``, then its output.

Output is compared if the example shows any. A command of the package runs in this
process, anything else in a shell whose ``python`` is this one. What builds or installs
is not run: of ``make`` the target has to exist, ``pip install`` and the activation of an
environment are left out.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import tensordict
from tensordict import cli

ROOT = Path(__file__).parents[1]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OF_THE_PACKAGE = re.compile(r"(?:python -m )?tensordict (?P<arguments>[^|;&<>$`]*)")
SHOWS_STATUS = "; echo $?"


def run_console(text):
    """Run the commands of a block and return what went wrong, a text for each."""
    problems = []
    for example in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = example.partition("\n")
        status, output = run(command)
        if status:
            problems.append(f"status {status} of {command!r}:\n{output}\n")
        elif expected and not doctest.OutputChecker().check_output(
            expected, output, FLAGS
        ):
            problems.append(f"{command}\nExpected:\n{expected}Got:\n{output}\n")
    return problems


def run(command):
    """The status of a command, and its output."""
    if command.startswith(("pip install ", ". .venv/bin/activate")):
        return 0, ""
    if command.startswith("make "):
        return in_a_shell(f"make --dry-run {command.removeprefix('make ')}", ROOT)
    command = command.partition("  #")[0].rstrip()
    only = command.removesuffix(SHOWS_STATUS)
    if found := OF_THE_PACKAGE.fullmatch(only):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = cli.main(shlex.split(found["arguments"]))
        if only != command:
            return 0, f"{output.getvalue()}{status}\n"
        # Another package may have the name, depending on where the tests run.
        return 0 if "doctor" in command else status, output.getvalue()
    return in_a_shell(command, Path.cwd())


def in_a_shell(command, folder):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    package = str(Path(tensordict.__file__).parents[1])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": package},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout
