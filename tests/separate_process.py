"""Running a program in a process of its own, which a crash then is of.

The process is forked from a server that has torch and the package imported, which takes
seconds elsewhere. Tests of what an import or the end of an interpreter does need another.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import types
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload(["tensordict", "torch.distributed.tensor", "pytest"])

PRELUDE = """
import faulthandler, os, sys, threading
import pytest, torch
from tensordict import LazyStackedTensorDict, TensorDict
faulthandler.enable()
"""


class Ended(NamedTuple):
    """The status of a process that ended, and its output."""

    returncode: int
    stdout: str
    stderr: str


def _execute(program: str, arguments: list[str], folder: str, files: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    for descriptor, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    os.chdir(folder)
    sys.argv = ["-c", *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(program, vars(main))


def run_separately(
    program: str, *arguments: object, folder: Path | None = None, timeout: float = 200
) -> Ended:
    """Run a program in a fork of the server.

    Raises:
        TimeoutError: the program did not end in time, and was killed.
    """
    with tempfile.TemporaryDirectory() as outputs:
        files = [os.path.join(outputs, name) for name in ("stdout", "stderr")]
        process = SERVER.Process(
            target=_execute,
            args=(program, [*map(str, arguments)], str(folder or outputs), files),
        )
        process.start()
        process.join(timeout)
        is_late = process.exitcode is None
        process.kill()
        process.join()
        said = [
            Path(file).read_text() if os.path.exists(file) else "" for file in files
        ]
        if is_late:
            raise TimeoutError(said[1][-3000:])
        return Ended(process.exitcode, *said)


def check_separately(
    program: str, folder: Path, timeout: float = 200, *, overwrites_freed: bool = False
) -> None:
    """Run a program, and fail with what it said where it raises, crashes or hangs.

    Where Python objects that were freed are overwritten, whoever reads them is noticed.
    """
    program = PRELUDE + textwrap.dedent(program)
    if not overwrites_freed:
        done = run_separately(program, folder=folder, timeout=timeout)
        assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
        return
    path = os.pathsep.join(str(Path(each).resolve()) for each in sys.path if each)
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**environment, "PYTHONMALLOC": "debug"},
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
