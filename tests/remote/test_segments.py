"""Ranges that are asked for: each byte once, neighbours together, and little more than wanted."""

import numpy as np
import pytest

from tensordict.storage.remote.objects import RemoteObject
from tensordict.storage.remote.reading import read_all
from tensordict.storage.remote.segments import GAP, PART, Segments, spans_of

pytest.importorskip("obstore")


def planned(rows, size, offset=0):
    out = np.zeros(len(rows) * size, np.uint8)
    return Segments.of_rows(None, offset, size, np.asarray(rows, np.int64), out)


def spans(rows, size):
    return [(span.start, span.stop) for span in spans_of(planned(rows, size))]


def test_neighbours_are_one_request():
    assert spans([5, 3, 4], 1000) == [(3000, 6000)]
    assert spans([0, 0, 0], 1000) == [(0, 1000)]
    assert spans([], 1000) == []
    assert spans([1, 2], 0) == []


def test_a_small_gap_is_read_through_and_a_large_one_is_not():
    assert spans([0, 2], GAP) == [(0, 3 * GAP)]
    assert spans([0, 2], GAP + 1) == [(0, GAP + 1), (2 * GAP + 2, 3 * GAP + 3)]


def test_every_other_row_is_read_through():
    assert len(spans(list(range(0, 400, 2)), 4096)) == 1


@pytest.mark.parametrize("size", [1228, 12288])
def test_rows_at_random_cost_little_more_than_themselves(size):
    rows = np.random.default_rng(0).choice(40_000, 256, replace=False)
    found = spans(rows, size)
    assert sum(stop - start for start, stop in found) <= 1.1 * 256 * size


def test_a_long_run_is_read_in_parts():
    found = spans(list(range(40)), 1 << 20)
    assert len(found) == 5
    assert all(stop - start <= PART for start, stop in found)
    assert found[0][0] == 0
    assert found[-1][1] == 40 << 20


@pytest.mark.parametrize("size", [1, 7, 1000, 70_000])
@pytest.mark.parametrize("seed", range(3))
def test_every_row_comes_to_its_place(size, seed, request):
    from tensordict.storage.remote import place_of

    random = np.random.default_rng(seed)
    content = random.integers(0, 255, (300, size), np.uint8)
    place = place_of(f"memory:///{request.node.name}")
    place.put("", b"head" + content.tobytes())
    rows = random.integers(0, 300, random.integers(1, 200))
    out = np.zeros((len(rows), size), np.uint8)
    source = RemoteObject(place)
    read_all([Segments.of_rows(source, 4, size, rows, out.reshape(-1))])
    assert (out == content[rows]).all()


@pytest.mark.parametrize(("latency", "most"), [(0.0003, 1), (0.01, 26)])
def test_a_store_that_is_far_gets_more_requests_at_a_time(
    latency, most, request, monkeypatch
):
    from tensordict.storage.remote import place_of, reading

    place = place_of(f"memory:///{request.node.name}")
    place.put("", bytes(300 * 70_000))
    monkeypatch.setattr(reading, "latency_of", lambda store, unknown: latency)
    running, seen = set(), []
    read_some = reading._read_some

    async def noted(source, spans):
        running.add(id(spans))
        seen.append(len(running))
        await read_some(source, spans)
        running.remove(id(spans))

    monkeypatch.setattr(reading, "_read_some", noted)
    rows = np.arange(0, 300, 2)[::-1]
    read_all(
        [
            Segments.of_rows(
                RemoteObject(place),
                0,
                70_000,
                rows,
                np.zeros(len(rows) * 70_000, np.uint8),
            )
        ]
    )
    assert max(seen) <= most
    # Each call makes ten requests at a time.
    assert len(seen) == min(most, -(-149 // 10))
