"""Workers end when the process that started them is killed, whatever they are doing."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from separate_process import SERVER, check_freshly
from tensordict import TensorDict
from tensordict.data import BatchLoader, StreamDataLoader
from tensordict.parallel import WorkerPool

LARGE = 250_000
"""The elements of a result that no socket takes before it is read."""


def _rows() -> TensorDict:
    return TensorDict(i=torch.arange(400), batch_size=[400])


def _large(_: TensorDict) -> TensorDict:
    return TensorDict(x=torch.zeros(LARGE))


def _of_other_shapes(row: TensorDict) -> TensorDict:
    return TensorDict(x=torch.zeros(LARGE + int(row["i"])))


def _text(_: TensorDict) -> TensorDict:
    return TensorDict(x="a" * 4 * LARGE)


def _items(_: str) -> Any:
    while True:
        yield {"x": torch.zeros(10)}


STARTS: dict[str, Any] = {
    "large": lambda: _rows().map_iter(_large, 0, 2, chunksize=0),
    "other shapes": lambda: _rows().map_iter(_of_other_shapes, 0, 2, chunksize=0),
    "texts": lambda: _rows().map_iter(_text, 0, 2, chunksize=0),
    "pool": lambda: _rows().map_iter(
        _large, 0, pool=WorkerPool(2, "fork"), chunksize=0
    ),
    "loader": lambda: iter(
        BatchLoader(
            _rows(),
            2,
            transform=_large,
            workers=2,
            backend="processes",
            mp_start_method="fork",
        )
    ),
    "streams": lambda: iter(
        StreamDataLoader(["a"] * 4, _items, batch_size=2, num_workers=2)
    ),
}


def _be_killed(name: str, connection: Any) -> None:
    # The server starts daemons, which may not have children.
    multiprocessing.current_process()._config["daemon"] = False
    torch.set_num_threads(1)
    results = STARTS[name]()
    # The second process begins when the first has not done all after a moment.
    while len(multiprocessing.active_children()) < 2:
        next(results)
    workers = [process.pid for process in multiprocessing.active_children()]
    connection.send(workers)
    connection.recv()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("name", STARTS)
def test_workers_end_with_a_parent_that_is_killed(name: str) -> None:
    here, there = SERVER.Pipe()
    process = SERVER.Process(target=_be_killed, args=(name, there))
    process.start()
    there.close()
    workers = here.recv()
    assert len(workers) == 2
    poll = select.poll()
    waiting = {os.pidfd_open(worker): worker for worker in workers}
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    here.send(None)
    try:
        while waiting:
            ended = poll.poll(20_000)
            assert ended, f"the workers {list(waiting.values())} stay"
            for descriptor, _ in ended:
                poll.unregister(descriptor)
                os.close(descriptor)
                del waiting[descriptor]
    finally:
        for worker in waiting.values():
            os.kill(worker, signal.SIGKILL)
    process.join()


UNFINISHED = """
import signal
import torch
from tensordict import TensorDict
from tensordict.parallel import WorkerPool
# A handler that workers inherit, by which a normal end would wait for them for ever.
signal.signal(signal.SIGTERM, lambda *_: None)
td = TensorDict(i=torch.arange(100), batch_size=[100])
def large(_):
    return TensorDict(x=torch.zeros(250_000))
first = td.map_iter(large, 0, 2, chunksize=0, mp_start_method="fork")
second = td.map_iter(large, 0, pool=WorkerPool(1, "fork"), chunksize=0)
next(first), next(second)
torch.kept = second
"""


def test_an_unfinished_call_says_nothing_at_the_end_of_a_program(
    tmp_path: Path,
) -> None:
    path = os.pathsep.join(str(Path(each).resolve()) for each in sys.path if each)
    said = tmp_path / "stderr"
    with said.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", UNFINISHED],
            env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=path),
            stderr=file,
            start_new_session=True,
        )
    try:
        assert process.wait(60) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert said.read_text() == ""


WITHOUT_A_FILE = """
import torch
from tensordict import TensorDict, tensorclass
@tensorclass
class Rows:
    i: torch.Tensor
def one(rows):
    return 1
def plus_one(rows):
    return rows + one(rows)
class Plus:
    def __call__(self, rows):
        return plus_one(rows)
made = Rows(i=torch.arange(4), batch_size=[4])
for function in (plus_one, Plus()):
    answer = made.map(function, num_workers=1, mp_start_method="forkserver")
    assert type(answer) is Rows, type(answer)
    assert answer.i.tolist() == [1, 2, 3, 4]
print("all of it")
"""


def test_what_a_program_without_a_file_defines_reaches_its_workers() -> None:
    # A notebook or a prompt: workers that are not forked have nothing to import it from.
    assert check_freshly(WITHOUT_A_FILE) == "all of it\n"
