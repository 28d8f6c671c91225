"""Arguments and results of ``map`` that make no sense are named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tensordict import TensorDict
from tensordict.parallel import MapError, WorkerPool


def _rows() -> TensorDict:
    return TensorDict(a=torch.arange(6), batch_size=[6])


BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {"backend": "serial"},
    "threads": {"backend": "threads", "num_workers": 2},
    "fork": {"num_workers": 2, "mp_start_method": "fork"},
}


@pytest.mark.parametrize("backend", [*BACKENDS, "executor"])
@pytest.mark.parametrize("result", [3, "text", {"a": 1}, (1, 2)])
def test_a_result_that_cannot_be_joined_is_named_with_its_row(
    backend: str, result: Any
) -> None:
    message = rf"the function returned {type(result).__name__} for row 4\b"
    function = lambda row: result if int(row["a"]) == 4 else row  # noqa: E731
    with ThreadPoolExecutor(1) as executor, pytest.raises(TypeError, match=message):
        options = BACKENDS.get(backend) or {"pool": executor}
        _rows().map(function, chunksize=0, **options)


def test_a_result_that_cannot_be_joined_is_an_error_of_its_chunk() -> None:
    function = lambda rows: 3 if 2 in rows["a"] else rows  # noqa: E731
    options = {"chunksize": 2, **BACKENDS["fork"]}
    left = _rows().map(function, on_error="skip", **options)
    assert left["a"].tolist() == [0, 1, 4, 5]
    with pytest.raises(MapError, match="returned int for rows 2 to 3"):
        _rows().map(function, on_error="collect", **options)


@pytest.mark.parametrize("out", ["collection", "memory-mapped", "path"])
def test_rows_of_a_target_are_as_they_were(out: str, tmp_path: Any) -> None:
    target: Any = tmp_path / "out"
    if out != "path":
        target = _rows()
    if out == "memory-mapped":
        target = target.memmap_(tmp_path / "out")
    with pytest.raises(TypeError, match="the function returned int for row 0"):
        _rows().map(lambda _: 3, chunksize=1, out=target, **BACKENDS["fork"])
    if out == "path":
        assert not target.exists()
    else:
        assert target["a"].tolist() == list(range(6))


@pytest.mark.parametrize("method", ["map", "map_iter"])
@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ({"chunksize": -1}, ValueError),
        ({"chunksize": 1.5}, TypeError),
        ({"num_chunks": -1}, ValueError),
        ({"num_chunks": 0}, ValueError),
        ({"num_chunks": 1.5}, TypeError),
    ],
)
def test_a_number_that_makes_no_sense_is_named(
    method: str, argument: dict[str, Any], error: type[Exception]
) -> None:
    (name,) = argument
    with pytest.raises(error, match=f"^{name}"):
        list(getattr(_rows(), method)(lambda rows: rows, backend="serial", **argument))


class Unreadable:
    """A function that pickle takes, and that cannot be made again."""

    def __call__(self, part):
        return part

    def __reduce__(self):
        return exec, ("raise OSError('not here')",)


def test_a_worker_that_cannot_read_its_job_says_so_once(capfd):
    # Tasks of `map_iter` are sent before the worker answers, and it never begins with them.
    td = TensorDict(a=torch.arange(8), batch_size=[8])
    with WorkerPool(1, "forkserver") as pool:
        for _ in range(3):
            with pytest.raises(OSError, match="not here"):
                list(td.map_iter(Unreadable(), 0, chunksize=0, pool=pool))
        rows = list(td.map_iter(abs, 0, chunksize=0, pool=pool))
    assert [int(row["a"]) for row in rows] == [*range(8)]
    assert capfd.readouterr().err == ""
