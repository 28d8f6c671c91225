"""Limits of the process: few descriptors, little address space, SIGINT."""

import errno
import os
import resource

import pytest
import torch

import tensordict
from separate_process import run_separately
from tensordict import TensorDict, to_safetensors


def make():
    return TensorDict({f"k{number}": torch.full((4,), number) for number in range(50)})


SAVES = {
    "tree": lambda td, path: td.memmap(path / "x"),
    "archive": lambda td, path: td.memmap(path / "x.tdz"),
    "safetensors": lambda td, path: to_safetensors(td, path / "x.safetensors"),
    "shards": lambda td, path: to_safetensors(td, path / "x.safetensors", shards=4),
    "consolidated": lambda td, path: td.consolidate(path / "x"),
}


def load(path):
    name = next(name for name in os.listdir(path) if not name.endswith("5.safetensors"))
    is_shard = "-of-" in name
    return tensordict.load(path / ("x.safetensors" if is_shard else name))


@pytest.mark.parametrize("kind", SAVES)
def test_few_descriptors(kind, tmp_path):
    SAVES[kind](make(), tmp_path)
    before = sorted(os.listdir(tmp_path))
    new = make() + 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Numbers that are free below ones in use would count twice: they are taken first.
    highest = max(map(int, os.listdir("/proc/self/fd")))
    fillers = [os.dup(0)]
    while fillers[-1] <= highest:
        fillers.append(os.dup(0))
    first = fillers.pop()
    os.close(first)
    num_open = len(os.listdir("/proc/self/fd"))
    failed = []
    try:
        for more in range(12):
            resource.setrlimit(resource.RLIMIT_NOFILE, (first + more, hard))
            try:
                SAVES[kind](new, tmp_path)
            except OSError as error:
                failed.append(error.errno)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            expected = [make(), new] if len(failed) == more + 1 else [new]
            loaded = load(tmp_path)
            assert any((loaded == td).all() for td in expected)
            del loaded
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        num_left = len(os.listdir("/proc/self/fd"))
        for filler in fillers:
            os.close(filler)
    assert 0 < len(failed) < 12
    assert set(failed) == {errno.EMFILE}
    assert num_left == num_open
    if kind != "shards":  # its files get names of their own
        assert sorted(os.listdir(tmp_path)) == before


LITTLE_MEMORY = """
import resource, sys, tensordict
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (8 << 20), resource.RLIM_INFINITY))
try:
    tensordict.load(sys.argv[1])
except OSError as error:
    assert error.errno == 12, error
    assert sys.argv[1] in str(error), error
    print("refused")
"""


@pytest.mark.parametrize("name", ["x", "x.tdz", "x.safetensors"])
def test_little_address_space(name, tmp_path):
    leaves = {str(number): torch.ones(1 << 20) for number in range(8)}
    TensorDict(leaves).save(tmp_path / name)
    done = run_separately(LITTLE_MEMORY, tmp_path / name)
    assert done.stdout == "refused\n", done.stderr


NO_MEMORY_TO_LOAD = """
import resource, sys, tensordict, torch
from tensordict import TensorDict
td = TensorDict(a=torch.zeros(16 << 20))
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (16 << 20), resource.RLIM_INFINITY))
try:
    td.save(sys.argv[1], compression="deflate", num_threads=1)
except OSError as error:
    assert error.errno == 12, error
    assert "'a.memmap'" in str(error), error
    assert error.filename == sys.argv[1], error
    assert error.__notes__ == [f"the archive {sys.argv[1]!r} is written"]
    print("refused")
"""


def test_little_memory_for_what_a_compressed_archive_holds(tmp_path):
    path = tmp_path / "x.tdz"
    done = run_separately(NO_MEMORY_TO_LOAD, path)
    assert done.stdout == "refused\n", done.stderr
    loaded = tensordict.load(path, verify=True)
    assert loaded["a"].shape == (16 << 20,)
    assert not loaded["a"].any()


INTERRUPTED = """
import os, signal, sys, threading
from tensordict import cli
from tensordict.storage import checksums as checks

def verify(*_):
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
checks.verify = verify
sys.exit(cli.main(sys.argv[1:]))
"""


def test_an_interrupted_command(tmp_path):
    make().save(tmp_path / "x")
    done = run_separately(INTERRUPTED, "convert", tmp_path / "x", tmp_path / "y")
    assert done.returncode == 130
    assert done.stderr.endswith("tensordict convert: interrupted\n")
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["x"]
