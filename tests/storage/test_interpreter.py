"""While files are written and read, other threads of Python run."""

import threading
import time

import pytest
import torch

import tensordict
from tensordict import TensorDict, to_safetensors
from tensordict.storage import verify

NUM_BYTES = 200 << 20

SAVES = {
    "x": lambda td, path: td.memmap(path, num_threads=1),
    "x.tdz": lambda td, path: td.memmap(path, num_threads=1),
    "x.safetensors": lambda td, path: to_safetensors(td, path, num_threads=1),
    "x.consolidated": lambda td, path: td.consolidate(path),
}


def is_shared_during(work):
    """Return whether another thread had its turn in the middle of the call."""
    ticks = []
    ended = threading.Event()

    def tick():
        while not ended.wait(0.001):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    ended.set()
    thread.join()
    return any(0.1 * seconds < at - began < 0.9 * seconds for at in ticks)


@pytest.mark.parametrize("name", SAVES)
def test_others_run_while_files_are_written_and_read(name, tmp_path):
    td = TensorDict({str(part): torch.ones(NUM_BYTES // 16) for part in range(4)})
    path = tmp_path / name
    works = [lambda: SAVES[name](td, path), lambda: verify(path)]
    if name == "x":
        works.append(lambda: tensordict.load(path, out=td))
    for work in works:
        # On a busy machine the other thread may come too late for a call of milliseconds.
        assert any(is_shared_during(work) for _ in range(10))
