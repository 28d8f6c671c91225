"""Batches from workers of a ``DataLoader`` that are kept: none of them takes a descriptor."""

import multiprocessing
import os
import resource

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tensordict import TensorDict, lazy_stack, tensorclass

FORK = multiprocessing.get_context("fork")


@tensorclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor


def _dense(at):
    x, y = torch.full((2,), at), torch.ones(2, 3)
    return TensorDict(x=x, n={"y": y}, empty=torch.ones(2, 0), batch_size=[2])


def _jagged(at):
    rows = [torch.full((length,), at) for length in (1, 2)]
    return TensorDict(x=torch.nested.nested_tensor(rows, layout=torch.jagged))


MAKERS = {
    "dense": _dense,
    "consolidated": lambda at: _dense(at).consolidate(),
    "tensorclass": lambda at: Sample(torch.full((2,), at), torch.ones(2)),
    "lazy stack": lambda at: lazy_stack(
        [TensorDict(x=torch.full((length,), at)) for length in (1, 2)]
    ),
    "jagged": _jagged,
    "parameters": lambda at: TensorDict(
        x=torch.nn.Parameter(torch.full((2,), 1.0 * at))
    ),
    "in a dict": lambda at: {"td": _dense(at), "at": at},
}


class Rows(Dataset):
    def __init__(self, make, count):
        self.make = make
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        return self.make(at)


def _same(batch):
    return batch


def _batches(kind, count, **options):
    return DataLoader(
        Rows(MAKERS[kind], count),
        batch_size=None,
        num_workers=1,
        collate_fn=_same,
        multiprocessing_context="fork",
        timeout=60,
        **options,
    )


def _first(batch):
    td = batch["td"] if isinstance(batch, dict) else batch
    if hasattr(td, "tensordicts"):
        return torch.cat([each["x"] for each in td.tensordicts])
    x = td.get("x")
    return x.values() if x.is_nested else x


def _count_descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_more_batches_are_kept_than_descriptors_are_allowed():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        kept = list(_batches("dense", 300))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [batch["x"].tolist() for batch in kept] == [[at, at] for at in range(300)]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_kept_batch_takes_no_descriptor(kind):
    loader = iter(_batches(kind, 12))
    kept = [next(loader)]
    before = _count_descriptors()
    kept += [next(loader) for _ in range(10)]
    assert _count_descriptors() <= before
    for at, batch in enumerate(kept):
        assert (_first(batch) == at).all()
    assert next(loader) is not None


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
def test_a_thread_that_pins_may_receive_them():
    kept = list(_batches("dense", 3, pin_memory=True))
    assert [int(batch["x"][0]) for batch in kept] == [0, 1, 2]


def _answer(ours, theirs):
    batch = theirs.recv()
    batch["x"] += 1
    theirs.send(batch["x"].tolist())
    theirs.recv()


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_batch_is_sent_on_and_both_see_what_is_written(is_plain):
    batch = next(iter(_batches("dense", 1)))
    array, view = batch["x"].numpy(), batch["x"][1:]
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_answer, args=(ours, theirs))
    process.start()
    ours.send({"x": batch["x"]} if is_plain else batch)
    assert ours.poll(60)
    assert ours.recv() == [1, 1]
    ours.send("done")
    process.join()
    assert process.exitcode == 0
    assert batch["x"].tolist() == [1, 1]
    assert view.tolist() == [1]
    assert batch["x"].is_shared()
    # An array sees the memory from before torch has moved it, which stays valid.
    assert np.isin(array, [0, 1]).all()


def test_what_a_map_writes_to_a_batch_is_seen():
    batch = next(iter(_batches("dense", 1)))
    batch.map(_add, dim=0, num_workers=1, chunksize=1, mp_start_method="fork")
    assert batch["x"].tolist() == [1, 1]


def _add(rows):
    rows["x"] += 1
    return rows


def test_writes_to_a_batch_are_seen_by_its_worker():
    x = torch.zeros(2, dtype=torch.long).share_memory_()
    MAKERS["shared"] = lambda at: TensorDict(x=x[at % 2 :][:1])
    try:
        loader = iter(_batches("shared", 8))
    finally:
        del MAKERS["shared"]
    first, second = next(loader), next(loader)
    first["x"] += 5
    assert x.tolist() == [5, 0]
    third = next(loader)
    assert third["x"].tolist() == [5]
    memories = {
        each["x"].untyped_storage().data_ptr() for each in (first, second, third)
    }
    assert len(memories) == 1
    # The one that was moved to be sent on is not taken for what the worker sends next.
    first.share_memory_()
    x += 1
    assert [int(each["x"][0]) for each in (first, *loader)] == [5, 1, 6, 1, 6, 1]


def test_a_collection_that_is_shared_stays_so():
    shared = _dense(3).share_memory_()
    MAKERS["shared"] = lambda at: shared
    try:
        batch = next(iter(_batches("shared", 1)))
    finally:
        del MAKERS["shared"]
    assert batch.is_shared()
    assert batch["x"].is_shared()


def test_the_other_way_of_torch_to_share():
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        kept = list(_batches("dense", 3))
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    assert [int(batch["x"][0]) for batch in kept] == [0, 1, 2]
