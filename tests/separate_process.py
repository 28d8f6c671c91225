"""Running a program in a process of its own, which a crash then is of.

The process is forked from a server that has torch and the package imported, which takes
seconds elsewhere. Tests of what an import of the package or the end of an interpreter does
have a second server: it has torch alone, and its children end as interpreters do.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import types
from collections.abc import Mapping
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any, NamedTuple

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "tensordict",
        "torch.distributed.fsdp",
        "torch._dynamo",
        "torch.distributed.checkpoint.state_dict",
        "pytest",
    ]
)


def start_server() -> None:
    """Start the server before a test does whose program has fewer modules imported.

    A process has one server, which the first user starts with the modules of its choice.
    """
    forkserver.ensure_running()


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


def serve() -> None:
    """Fork a child for each program that is asked for on the standard input, in turn."""
    import torch  # noqa: F401

    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with open(requests) as lines, open(answers, "w", buffering=1) as report:
        while line := lines.readline():
            request = json.loads(line)
            child = os.fork()
            if not child:
                environment = request.pop("environment")
                for name in [
                    each for each, text in environment.items() if text is None
                ]:
                    os.environ.pop(name, None)
                    del environment[name]
                os.environ.update(environment)
                break
            report.write(f"{child}\n")
            report.write(f"{os.waitpid(child, 0)[1]}\n")
        else:
            return
    # In the child, which from here on is the interpreter of a program.
    _execute(**request)


@functools.cache
def _server_with_torch_alone() -> subprocess.Popen[str]:
    path = os.pathsep.join(str(Path(each).resolve()) for each in sys.path if each)
    server = subprocess.Popen(
        [sys.executable, "-c", "import separate_process as it; it.serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=path),
    )
    atexit.register(server.communicate)
    return server


def run_freshly(
    program: str,
    *arguments: object,
    environment: Mapping[str, str | None] | None = None,
    timeout: float = 100,
) -> Ended:
    """Run a program in an interpreter that has imported torch, and not the package.

    Args:
        program: its text.
        *arguments: those of the program, in ``sys.argv``.
        environment: variables that it has besides, or, if None, does not have.
        timeout: the seconds after which it is killed.
    """
    server = _server_with_torch_alone()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as outputs:
        files = [os.path.join(outputs, name) for name in ("stdout", "stderr")]
        request = {
            "program": textwrap.dedent(program),
            "arguments": [*map(str, arguments)],
            "folder": outputs,
            "files": files,
            "environment": dict(environment or {}),
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        child = int(server.stdout.readline())
        if not select.select([server.stdout], [], [], timeout)[0]:
            os.kill(child, signal.SIGKILL)
        status = int(server.stdout.readline())
        said = [Path(file).read_text() for file in files if os.path.exists(file)]
        return Ended(os.waitstatus_to_exitcode(status), *said)


def check_freshly(program: str, *arguments: object, **options: Any) -> str:
    """Run a program as `run_freshly` does, and return the output of a successful one."""
    done = run_freshly(program, *arguments, **options)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    return done.stdout


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
