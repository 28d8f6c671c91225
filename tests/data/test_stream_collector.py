"""Streams into windows: the clock, the bounds, threads, ends and failures."""

import asyncio
import threading

import pytest
import torch

from tensordict import LazyStackedTensorDict, TensorDict
from tensordict.data import StreamCollector
from virtual_clock import run_on_virtual_clock


async def count(queue, frequency, stop=None):
    i = 0
    while stop is None or i < stop:
        await asyncio.sleep(1 / frequency)
        await queue.put(i)
        i += 1


def of_frequency(frequency, stop=None):
    return lambda queue: count(queue, frequency, stop)


def collect(streams, num_windows, window_s=1.0, *, densify=True, layout=None, **kwargs):
    async def main():
        async with StreamCollector(streams, window_s, **kwargs) as collector:
            found = await collector.collect(
                num_windows, densify=densify, layout=layout or torch.strided
            )
        return found, collector

    return run_on_virtual_clock(main())


# --- Windows --------------------------------------------------------------------------


def test_windows_hold_every_value_once_in_order():
    data, _ = collect({"a": of_frequency(7), "b": of_frequency(3)}, 10)
    assert data.batch_size == torch.Size([10])
    for key, rate in (("a", 7), ("b", 3)):
        values = data[key].values()
        assert torch.equal(values, torch.arange(len(values)))
        assert abs(len(values) - 10 * rate) <= rate


def test_windows_do_not_drift_with_a_late_consumer():
    async def main():
        sizes = []
        async with StreamCollector({"a": of_frequency(100)}, 1.0) as collector:
            for _ in range(20):
                sizes.append(len((await anext(collector))["a"]))
                await asyncio.sleep(0.7)  # less than a window: nothing may pile up
        return sizes, asyncio.get_running_loop().time()

    sizes, now_s = run_on_virtual_clock(main())
    assert now_s < 20 + 0.8
    # A sleep of the clock ends a millisecond late, so not all hundred come.
    assert set(sizes) <= {90, 91, 92}


def test_windows_that_ended_while_nobody_looked_are_told_apart():
    async def main():
        async with StreamCollector({"a": of_frequency(10)}, 1.0) as collector:
            await asyncio.sleep(5.5)
            return [len((await anext(collector))["a"]) for _ in range(5)]

    sizes = run_on_virtual_clock(main())
    assert all(9 <= size <= 10 for size in sizes)


def test_iteration_ends_with_the_producers():
    async def main():
        async with StreamCollector({"a": of_frequency(4, stop=10)}, 1.0) as collector:
            return [bucket["a"].tolist() async for bucket in collector]

    buckets = run_on_virtual_clock(main())
    assert sum(buckets, []) == list(range(10))
    assert len(buckets) == 3


def test_collect_gives_fewer_windows_where_the_producers_end():
    data, _ = collect({"a": of_frequency(4, stop=10)}, 100)
    assert data.batch_size == torch.Size([3])
    assert data["a"].values().tolist() == list(range(10))


def test_an_async_iterable_is_a_stream():
    async def numbers():
        for i in range(3):
            await asyncio.sleep(0.1)
            yield torch.full((2,), i)

    data, _ = collect({("n", "a"): numbers()}, 1, layout=torch.jagged)
    assert data["n", "a"].values().tolist() == [[0, 0], [1, 1], [2, 2]]


# --- What comes out -------------------------------------------------------------------


def test_an_empty_window_keeps_the_dtype_and_shape_of_its_stream():
    async def late(queue):
        await asyncio.sleep(2.5)
        await queue.put(torch.ones(3, dtype=torch.int16))
        await asyncio.sleep(100)

    async def main():
        async with StreamCollector({"a": late}, 1.0) as collector:
            return [await anext(collector) for _ in range(4)]

    buckets = run_on_virtual_clock(main())
    assert [len(bucket["a"]) for bucket in buckets] == [0, 0, 1, 0]
    assert buckets[3]["a"].dtype == torch.int16
    assert buckets[3]["a"].shape == torch.Size([0, 3])


def test_densify_takes_no_dtype_from_empty_windows():
    async def late(queue):
        await asyncio.sleep(2.5)
        await queue.put(7)
        await asyncio.sleep(100)

    for densify in (True, False):
        data, _ = collect({"a": late}, 4, densify=densify)
        dense = data if densify else data.densify()
        assert dense["a"].dtype == torch.int64
        assert dense["a"].values().tolist() == [7]


def test_a_declared_dtype_holds_from_the_first_window_on():
    async def never(queue):
        await asyncio.sleep(100)

    data, _ = collect({"a": never}, 2, dtypes={"a": torch.float64})
    assert data["a"].dtype == torch.float64


def test_a_fraction_is_not_cut_to_the_whole_numbers_before_it():
    async def mixed(queue):
        await queue.put(1)
        await asyncio.sleep(1)
        await queue.put(2.5)
        await asyncio.sleep(1)

    async def main():
        async with StreamCollector({"a": mixed}, 1.0) as collector:
            return [bucket["a"] async for bucket in collector]

    first, second = run_on_virtual_clock(main())[:2]
    assert first.dtype == torch.int64
    assert second.tolist() == [2.5]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("features", [(), (2,), (2, 3)])
def test_densify_copies_nothing_and_gives_each_window(layout, features):
    async def rows(queue):
        for i in range(9):
            await queue.put(torch.full(features, i))
            await asyncio.sleep(0.3)

    stack, _ = collect({"a": rows}, 5, densify=False)
    assert isinstance(stack, LazyStackedTensorDict)
    dense = stack.densify(layout=layout)["a"]
    assert dense.layout == layout
    assert dense.values().data_ptr() == stack[0]["a"].data_ptr()
    for window, member in zip(dense.unbind(), stack.unbind(0), strict=True):
        assert torch.equal(window, member["a"])


def test_densify_of_changed_members_shows_the_change():
    stack, _ = collect({"a": of_frequency(5)}, 3, densify=False)
    stack[1].set("a", torch.tensor([-1]))
    assert stack.densify(layout=torch.jagged)["a"].unbind()[1].tolist() == [-1]
    stack.append(TensorDict(a=torch.tensor([-2, -3])))
    assert len(stack.densify(layout=torch.jagged)["a"].unbind()) == 4
    stack[0].set("b", torch.ones(2))
    assert stack.densify(layout=torch.jagged)["b"].values().tolist() == [1, 1]


# --- Bounds ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when_full", "kept"),
    [("drop_oldest", [6, 7, 8, 9]), ("drop_newest", [0, 1, 2, 3])],
)
def test_a_full_stream_drops_and_counts(when_full, kept):
    async def burst(queue):
        for i in range(10):
            await queue.put(i)
        await asyncio.sleep(100)

    data, collector = collect({"a": burst}, 1, capacity=4, when_full=when_full)
    assert data["a"].values().tolist() == kept
    assert collector.num_dropped == {"a": 6}


def test_a_full_stream_blocks_its_producer_and_loses_nothing():
    async def burst(queue):
        for i in range(10):
            await queue.put(i)

    async def main():
        async with StreamCollector({"a": burst}, 1.0, capacity=4) as collector:
            return [bucket["a"].tolist() async for bucket in collector]

    assert run_on_virtual_clock(main()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_capacity_bounds_a_window_and_not_what_is_collected():
    data, collector = collect(
        {"a": of_frequency(8)}, 10, capacity=9, when_full="drop_newest"
    )
    assert collector.num_dropped == {"a": 0}
    assert data["a"].values().tolist() == list(range(len(data["a"].values())))


def test_a_cancelled_collect_loses_nothing():
    async def main():
        streams = {"a": of_frequency(8)}
        async with StreamCollector(streams, 1.0, capacity=9) as collector:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(collector.collect(10), 4.5)
            return await collector.collect(6)

    values = run_on_virtual_clock(main())["a"].values().tolist()
    assert values == list(range(len(values)))
    assert len(values) > 40


# --- Threads --------------------------------------------------------------------------


def test_pushes_from_threads():
    async def main():
        collector = StreamCollector({"a": None, "b": None}, 0.01, capacity=50)

        def push_all(key):
            for i in range(500):
                collector.push(key, i)

        threads = [threading.Thread(target=push_all, args=(key,)) for key in "ab"]
        async with collector:
            for thread in threads:
                thread.start()
            found = {"a": [], "b": []}
            async for bucket in collector:
                for key, values in found.items():
                    values.extend(bucket[key].tolist())
                if min(map(len, found.values())) == 500:
                    break
        for thread in threads:
            thread.join()
        return found

    found = asyncio.run(main())
    assert found == {"a": list(range(500)), "b": list(range(500))}


def test_a_push_that_finds_no_room_in_time_says_so():
    collector = StreamCollector({"a": None}, 1.0, capacity=1)
    collector.push("a", 1)
    with pytest.raises(TimeoutError, match="'a' already holds 1 values"):
        collector.push("a", 2, timeout_s=0)


def test_a_push_on_the_loops_own_thread_does_not_wait_for_itself():
    async def main():
        async with StreamCollector({"a": None}, 1.0, capacity=1) as collector:
            collector.push("a", 1)
            with pytest.raises(RuntimeError, match=r"await put\(\)"):
                collector.push("a", 2)

    run_on_virtual_clock(main())


def test_closing_lets_go_of_a_thread_that_waits_for_room():
    caught = []

    async def main():
        async with StreamCollector({"a": None}, 100.0, capacity=1) as collector:
            collector.push("a", 1)

            def push():
                try:
                    collector.push("a", 2)
                except RuntimeError as error:
                    caught.append(error)

            thread = threading.Thread(target=push)
            thread.start()
        thread.join()

    asyncio.run(main())
    assert "closed" in str(caught[0])


# --- Ends and failures ----------------------------------------------------------------


def test_producers_have_ended_when_the_block_is_left():
    ended = []

    async def stream(queue):
        try:
            await count(queue, 10)
        finally:
            await asyncio.sleep(0.5)
            ended.append(True)

    collect({"a": stream}, 1)
    assert ended == [True]


def test_the_failure_of_a_producer_is_told_once_and_loses_nothing():
    async def fails(queue):
        await queue.put(1)
        await asyncio.sleep(0.5)
        raise ZeroDivisionError

    async def main():
        streams = {"a": fails, "b": of_frequency(4)}
        async with StreamCollector(streams, 1.0) as collector:
            with pytest.raises(RuntimeError, match="'a'") as caught:
                await anext(collector)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            return await anext(collector)

    bucket = run_on_virtual_clock(main())
    assert bucket["a"].tolist() == [1]
    assert bucket["b"].tolist() == [0, 1, 2]


def test_a_failure_nobody_waited_for_is_told_at_the_end():
    async def fails(queue):
        raise ZeroDivisionError

    async def main():
        async with StreamCollector({"a": fails}, 1.0):
            await asyncio.sleep(0.1)

    with pytest.raises(RuntimeError, match="'a'"):
        run_on_virtual_clock(main())


def test_two_consumers_are_refused():
    async def main():
        async with StreamCollector({"a": None}, 1.0) as collector:
            first = asyncio.ensure_future(anext(collector))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task"):
                await anext(collector)
            await first

    run_on_virtual_clock(main())


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: StreamCollector({}, 1), ValueError, "at least one"),
        (lambda: StreamCollector({"a": None}, 0), ValueError, "window_s"),
        (lambda: StreamCollector({"a": None}, 1, capacity=0), ValueError, "capacity"),
        (
            lambda: StreamCollector({"a": None}, 1, when_full="x"),
            ValueError,
            "when_full",
        ),
        (
            lambda: StreamCollector({"a": 1}, 1),
            TypeError,
            "the producer of stream 'a' is int",
        ),
        (
            lambda: StreamCollector({"a": None}, 1).push("b", 1),
            KeyError,
            "no stream 'b'",
        ),
        (lambda: StreamCollector({"a": None}, 1).push("a", "x"), TypeError, "type str"),
        (
            lambda: StreamCollector({"a": None}, 1, dtypes={"b": torch.int8}),
            KeyError,
            "no stream 'b'",
        ),
    ],
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_values_of_different_shapes_name_the_stream():
    async def ragged(queue):
        await queue.put(torch.zeros(2))
        await queue.put(torch.zeros(3))

    with pytest.raises(
        ValueError, match=r"'a' have different shapes, \(2,\) and \(3,\)"
    ):
        collect({"a": ragged}, 1)
