"""Running a program in a process of its own, which a crash then is of."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

PRELUDE = """
import faulthandler, os, sys, threading
import pytest, torch
from tensordict import LazyStackedTensorDict, TensorDict
faulthandler.enable()
"""


def check_separately(
    program: str, folder: Path, timeout: float = 200, *, overwrites_freed: bool = False
) -> None:
    """Run a program, and fail with what it said where it raises, crashes or hangs.

    Where Python objects that were freed are overwritten, whoever reads them is noticed.
    """
    path = os.pathsep.join(str(Path(each).resolve()) for each in sys.path if each)
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=path)
    if overwrites_freed:
        environment["PYTHONMALLOC"] = "debug"
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program)],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
