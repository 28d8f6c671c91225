"""Collections between processes: two of them, over gloo and a file."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, multiprocessing

from tensordict import TensorDict


def _make(value: int) -> TensorDict:
    return TensorDict(
        {"a": torch.full((2,), float(value)), "n": {"b": torch.full((2, 3), value)}},
        [2],
    )


def _work(rank: int, path: str, failures) -> None:
    try:
        distributed.init_process_group(
            "gloo", init_method=f"file://{path}", rank=rank, world_size=2
        )
        mine = _make(9)
        for source in (0, 1):
            shares = [_make(1), _make(2)] if rank == source else None
            received = mine.scatter(source, shares)
            assert (received == _make(rank + 1)).all()
            assert (mine == _make(9)).all()
        if rank == 0:
            _make(5).init_remote(dst=1)
        else:
            assert (TensorDict.from_remote_init(src=0) == _make(5)).all()
        distributed.barrier()
        distributed.destroy_process_group()
    except BaseException as error:  # noqa: BLE001 - the parent reports it
        failures.put(f"rank {rank}: {error!r}")
        raise


@pytest.mark.skipif(not distributed.is_available(), reason="torch without distributed")
def test_scatter_and_remote_init_between_two_processes(tmp_path):
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    path = str(tmp_path / "rendezvous")
    workers = [
        context.Process(target=_work, args=(rank, path, failures)) for rank in (0, 1)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        worker.kill()
    assert failures.empty(), failures.get()
    assert [worker.exitcode for worker in workers] == [0, 0]
