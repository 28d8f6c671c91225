"""Processes that workers run in read rows for themselves, however they were started."""

import multiprocessing
import os
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch.utils.data import DataLoader

import tensordict
from object_stores import http_server
from tensordict import TensorDict
from tensordict.data import BatchLoader
from tensordict.storage.remote import place_of

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def url(tmp_path):
    """A save behind HTTP, of which the metadata is read already."""
    TensorDict(a=torch.arange(20.0), batch_size=[20]).memmap(tmp_path / "data")
    server = http_server(tmp_path)
    yield f"{server.endpoint}/data"
    server.stop()


def same(td):
    return td


def in_a_fork(function, *args):
    """Call a function in a child of this process, and return what it sends."""
    here, there = FORK.Pipe()

    def work():
        try:
            there.send(function(*args))
        except BaseException as error:  # noqa: BLE001 - it is sent
            there.send(error)

    process = FORK.Process(target=work)
    process.start()
    assert here.poll(60)
    found = here.recv()
    process.join()
    return found


def test_forked_workers_of_torch_read_for_themselves(url):
    remote = tensordict.load(url)
    loader = DataLoader(
        remote,
        batch_size=5,
        num_workers=2,
        collate_fn=torch.stack,
        multiprocessing_context="fork",
    )
    for _ in range(2):
        assert torch.cat([batch["a"] for batch in loader]).tolist() == list(range(20))
    assert remote[[3]]["a"].tolist() == [3.0]


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_workers_of_a_loader_take_a_url(backend, url):
    loader = BatchLoader(url, 5, workers=2, backend=backend, transform=same)
    assert torch.cat([batch["a"] for batch in loader]).tolist() == list(range(20))


def test_rows_are_mapped_in_processes(url):
    found = tensordict.load(url).map(same, dim=0, chunksize=5, num_workers=2)
    assert found["a"].tolist() == list(range(20))


def test_a_remote_collection_goes_to_a_process_that_is_spawned(url):
    sent = pickle.loads(ForkingPickler.dumps(tensordict.load(url)))
    assert sent[[4, 2]]["a"].tolist() == [4.0, 2.0]


def test_a_child_has_a_store_of_its_own_for_one_that_was_given(url):
    from obstore.store import HTTPStore

    remote = tensordict.load(HTTPStore(url, client_options={"allow_http": True}))
    assert in_a_fork(lambda: remote[[3, 1]]["a"].tolist()) == [3.0, 1.0]
    # So has the child of a child.
    again = in_a_fork(lambda: in_a_fork(lambda: remote[[7]]["a"].tolist()))
    assert again == [7.0]


def test_a_child_reads_the_blocks_that_its_parent_kept(url, tmp_path):
    cache = tmp_path / "cache"
    remote = tensordict.load(url, cache_dir=cache)
    assert remote[[3]]["a"].tolist() == [3.0]
    assert in_a_fork(lambda: remote[[5, 3]]["a"].tolist()) == [5.0, 3.0]


def test_a_child_is_told_that_it_does_not_see_the_memory_of_its_parent(request):
    url = f"memory:///{request.node.name}"
    TensorDict(a=torch.arange(4), batch_size=[4]).memmap(url)
    remote = tensordict.load(url)
    found = in_a_fork(lambda: remote[[1]])
    assert isinstance(found, RuntimeError)
    assert "memory://" in str(found)


def test_where_no_library_is_loaded_again_a_child_is_refused(url, monkeypatch):
    remote = tensordict.load(url)

    def none(*args):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", none)
    found = in_a_fork(lambda: remote[[1]])
    assert isinstance(found, RuntimeError)
    assert "Function not implemented" in str(found)
    assert "spawn" in str(found)
    assert place_of(url).get("meta.json")
