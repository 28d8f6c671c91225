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


class Ticking:
    """Counts the milliseconds in which another thread had its turn."""

    def __enter__(self):
        self.ticks = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.tick)
        self.began = time.monotonic()
        self.thread.start()
        return self

    def tick(self):
        while not self.ended.wait(0.001):
            self.ticks += 1

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.began
        self.ended.set()
        self.thread.join()


@pytest.mark.parametrize("name", SAVES)
def test_others_run_while_files_are_written_and_read(name, tmp_path):
    td = TensorDict({str(part): torch.ones(NUM_BYTES // 16) for part in range(4)})
    path = tmp_path / name
    works = [lambda: SAVES[name](td, path), lambda: verify(path)]
    if name == "x":
        works.append(lambda: tensordict.load(path, out=td))
    for work in works:
        with Ticking() as ticking:
            work()
        # Held by this thread, the lock would be given away after it: there would be no tick.
        assert ticking.ticks > 3 + 20 * ticking.seconds, ticking.seconds
