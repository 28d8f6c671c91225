"""Chunks are begun in their order, and none waits for a heavy one."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tensordict import TensorDict
from tensordict.parallel import WorkerPool

if TYPE_CHECKING:
    from pathlib import Path

CHUNKS = 40


def _rows() -> TensorDict:
    return TensorDict(a=torch.arange(CHUNKS), batch_size=[CHUNKS])


@pytest.mark.parametrize("backend", ["fork", "threads", "pool"])
def test_a_chunk_is_begun_before_those_behind_it(backend: str, tmp_path: Path) -> None:
    is_in_threads = backend == "threads"
    fork = multiprocessing.get_context("fork")
    barrier: Any = threading.Barrier(2) if is_in_threads else fork.Barrier(2)
    begun = threading.local()
    path = tmp_path / "order"
    path.touch()

    def note(row: TensorDict) -> TensorDict:
        with path.open("ab", buffering=0) as file:
            file.write(bytes([int(row["a"])]))
        if not hasattr(begun, "is_first"):
            begun.is_first = False
            barrier.wait(60)
        return row

    options: dict[str, Any] = {"num_workers": 2}
    if backend == "threads":
        options["backend"] = "threads"
    else:
        options["mp_start_method"] = "fork"
    _call(note, backend, options)
    order = list(path.read_bytes())
    assert sorted(order) == list(range(CHUNKS))
    # The other worker may have taken the one before, and not have noted it yet.
    assert all(chunk <= place + 1 for place, chunk in enumerate(order))


def _call(note: Any, backend: str, options: dict[str, Any]) -> None:
    if backend != "pool":
        _rows().map(note, chunksize=0, **options)
        return
    # Its processes are forked at the call, with the barrier, which is not sent.
    _NOTE.append(note)
    try:
        with WorkerPool(2, "fork") as pool:
            _rows().map(_noted, chunksize=0, pool=pool)
    finally:
        _NOTE.clear()


_NOTE: list[Any] = []


def _noted(row: TensorDict) -> TensorDict:
    result: TensorDict = _NOTE[0](row)
    return result


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, ThreadPool])
def test_others_go_on_beside_a_heavy_chunk(executor: Any) -> None:
    lock = threading.Lock()
    others: list[int] = []
    is_done = threading.Event()

    def heavy(row: TensorDict) -> TensorDict:
        number = int(row["a"])
        if number == 0:
            assert is_done.wait(20), f"only {others} were begun"
            return row
        with lock:
            others.append(number)
            if len(others) == CHUNKS - 1:
                is_done.set()
        return row

    with executor(2) as pool:
        result = _rows().map(heavy, chunksize=0, pool=pool)
    assert result["a"].tolist() == list(range(CHUNKS))


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, ThreadPool])
def test_results_that_are_not_taken_hold_others_up(executor: Any) -> None:
    begun: list[int] = []

    def note(row: TensorDict) -> int:
        begun.append(int(row["a"]))
        return begun[-1]

    with executor(2) as pool:
        results = _rows().map_iter(note, chunksize=0, pool=pool)
        for number in range(CHUNKS):
            assert next(results) == number
            # Two for each worker, beside those that were taken.
            assert len(begun) <= number + 1 + 4
        assert list(results) == []
