"""Values in shared memory, seen by processes that are forked and served.

One child for each start method does all that is asked of it, for each way of sharing.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from tensordict import NonTensorData, TensorDict

PATIENCE_S = 60
LENGTH = 5_000

WAYS = {
    "share_memory_": lambda td, path: td.share_memory_(),
    "memmap": lambda td, path: td.memmap(share_non_tensor=True),
    "memmap to files": lambda td, path: td.memmap(path, share_non_tensor=True),
    "memmap_": lambda td, path: td.memmap_(path, share_non_tensor=True),
    "memmap_like": lambda td, path: td.memmap_like(path, share_non_tensor=True),
}


def shared(folder):
    """A collection for each way of sharing it."""
    made = {}
    for number, (way, share) in enumerate(WAYS.items()):
        td = TensorDict(
            number=torch.zeros(2),
            text="old",
            column=["a", "b"],
            nested=TensorDict(any=NonTensorData({"k": (1, {2})})),
            batch_size=[2],
        )
        made[way] = share(td, folder / str(number))
    return made


def values(td):
    return td["text"], list(td["column"]), td["nested", "any"]


def child(tds, connection):
    """Write what is asked for, and answer with the values; or write until killed."""
    while (writes := connection.recv()) is not None:
        if writes == "without end":
            write_without_end(tds)
        for key, value in writes:
            for td in tds.values():
                td.set_(key, value)
        connection.send({way: values(td) for way, td in tds.items()})


def write_without_end(tds):
    for number in itertools.count():
        for td in tds.values():
            td.set_("text", NonTensorData([number] * LENGTH))


@pytest.fixture(params=["fork", "forkserver"])
def started(request, tmp_path):
    """The collections, their child, and what asks it to write."""
    context = multiprocessing.get_context(request.param)
    tds = shared(tmp_path)
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(tds, theirs), daemon=True)
    process.start()
    theirs.close()

    def ask(writes, is_answered=True):
        ours.send(writes)
        if is_answered:
            assert ours.poll(PATIENCE_S)
            return ours.recv()
        return None

    yield tds, process, ask
    if process.is_alive():
        process.kill()
    process.join()
    ours.close()


def files_of_values():
    """The files without a name that this process has values in."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "tensordict-values" in os.readlink(f"/proc/self/fd/{number}"):
                found.add(os.stat(f"/proc/self/fd/{number}").st_ino)
    return found


def holders_of(files):
    """The processes that have one of some files open, or mapped."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # Nothing can be read of a process that ends, or of another user's.
        with contextlib.suppress(OSError):
            maps = (process / "maps").read_text().splitlines()
            mapped = [line for line in maps if "tensordict-values" in line]
            inodes = {int(line.split()[4]) for line in mapped}
            for number in (process / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    inodes.add(number.stat().st_ino)
            if inodes & files:
                found.append(process.name)
    return found


def is_whole(value):
    return len(value) == LENGTH and len(set(value)) == 1


def test_values_are_shared_until_nobody_holds_them(started):
    tds, process, ask = started
    files = files_of_values()
    assert len(files) == len(WAYS)
    before = ("old", ["a", "b"], {"k": (1, {2})})
    assert ask([]) == dict.fromkeys(WAYS, before)

    # Writes of the child are seen here, and writes here by the child.
    written = ("new", [("A",), None], {5: "five"})
    keys = "text", "column", ("nested", "any")
    writes = list(zip(keys, (*written[:2], NonTensorData(written[2])), strict=True))
    assert ask(writes) == dict.fromkeys(WAYS, written)
    assert {way: values(td) for way, td in tds.items()} == dict.fromkeys(WAYS, written)
    for way, td in tds.items():
        td.set_("text", way)
    assert {way: seen[0] for way, seen in ask([]).items()} == {way: way for way in WAYS}

    # Values outgrow what they were given, in either process.
    for number in range(1, 4):
        ask([("text", f"{number}" * 500_000)])
        assert all(td["text"] == f"{number}" * 500_000 for td in tds.values())
    for td in tds.values():
        td.set_("text", "grown" * 300_000)
    assert all(seen[0] == "grown" * 300_000 for seen in ask([]).values())

    # The child has them still when this process has not, and then nobody.
    del td
    tds.clear()
    assert holders_of(files) == [str(process.pid)]
    assert all(seen[1] == written[1] for seen in ask([]).values())
    ask(None, is_answered=False)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    assert holders_of(files) == []


def test_readers_and_the_death_of_a_writer(started, tmp_path):
    tds, process, ask = started
    for td in tds.values():
        td.set_("text", NonTensorData([-1] * LENGTH))
    ask("without end", is_answered=False)
    seen = {way: set() for way in tds}
    patience = time.monotonic() + PATIENCE_S
    while any(len(found) < 4 for found in seen.values()):
        assert time.monotonic() < patience
        for way, td in tds.items():
            value = td["text"]
            # Never half of one and half of another.
            assert is_whole(value)
            seen[way].add(value[0])
    os.kill(process.pid, signal.SIGKILL)
    process.join(PATIENCE_S)
    for way, td in tds.items():
        assert is_whole(td["text"])
        # It is the last one that was written or the one before, and no lock is left.
        assert td["text"][0] >= max(seen[way])
        td.set_("text", way)
        assert td["text"] == way
    folders = sorted(tmp_path.iterdir())
    texts = [
        TensorDict.load_memmap(folder, allow_pickle=True)["text"] for folder in folders
    ]
    assert texts == ["memmap to files", "memmap_", "memmap_like"]
