"""Reads over a network that fails: every batch is right, or the error says what happened."""

import os
from datetime import timedelta

import pytest
import torch

import tensordict
from object_stores import Proxy, http_server
from tensordict import TensorDict
from tensordict.data import BatchLoader

REQUESTS = int(os.environ.get("TENSORDICT_REMOTE_REQUESTS", "150"))
"""The number of requests of each kind of read: 10,000 in a long run."""

ROWS = 4000

BACKOFF = {
    "init_backoff": timedelta(milliseconds=1),
    "max_backoff": timedelta(milliseconds=10),
    "base": 2,
}
PATIENT = {"retry_config": {"max_retries": 20, "backoff": BACKOFF}}
HASTY = {"retry_config": {"max_retries": 2, "backoff": BACKOFF}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    td = TensorDict(a=torch.randn(ROWS, 300), b=torch.arange(ROWS), batch_size=[ROWS])
    folder = tmp_path_factory.mktemp("flaky")
    td.memmap(folder / "data")
    server = http_server(folder)
    yield td, server
    server.stop()


@pytest.fixture
def proxy(saved):
    made = Proxy(saved[1].endpoint, rate=0.05, seed=4)
    yield made
    made.stop()


@pytest.mark.parametrize("kind", ["rows", "batches", "cache", "download"])
def test_every_batch_is_right_though_some_requests_fail(kind, saved, proxy, tmp_path):
    td, url = saved[0], f"{proxy.endpoint}/data"
    how = {"storage_options": PATIENT}
    if kind == "cache":
        # So small that blocks come again and again.
        how |= {"cache_dir": tmp_path / "cache", "cache_limit": 2 << 20}
    epoch = 0
    while len(proxy.requests) < REQUESTS:
        epoch += 1
        if kind == "download":
            copy = tensordict.load(url, download=tmp_path / str(epoch), **how)
            assert (copy == td).all()
            continue
        remote = tensordict.load(url, **how)
        if kind == "batches":
            batches = BatchLoader(remote, 40, shuffle=True, seed=epoch)
            for number, batch in enumerate(batches):
                assert (batch == td[batch["b"]]).all()
                if number == 5:
                    break
            continue
        rows = torch.randperm(ROWS)[:40]
        assert (remote[rows] == td[rows]).all()
    assert proxy.met
