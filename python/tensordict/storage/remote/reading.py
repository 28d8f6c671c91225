"""Read many ranges of many objects at once, into memory that the caller has.

Up to 16 ranges are single requests with ``If-Match``: the store refuses another version of the
object. More ranges go to ``get_ranges``, whose calls take a third of the CPU time and have no
condition. So one range of each object is a single request after all calls have returned: if
the tag is still the tag of the metadata, the object had this tag during the calls. If the tag
is not known, another single request before the calls asks for it.

The latency of a store decides how many calls run at the same time. A near server is as busy
with ten concurrent requests as with hundreds, and each connection costs CPU time on both sides.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tensordict.storage.remote.errors import explained
from tensordict.storage.remote.latency import latency_of, timed
from tensordict.storage.remote.objects import MSG_SHORT, PiecedObject
from tensordict.storage.remote.options import obstore
from tensordict.storage.remote.place import Found
from tensordict.storage.remote.runtime import check_process, run
from tensordict.storage.remote.segments import Segments, spans_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from tensordict.storage.remote.objects import RemoteObject
    from tensordict.storage.remote.segments import Span

__all__ = ["count_bytes", "read_all", "read_plain", "read_range"]

CONCURRENCY: Final = 32
"""The most requests at a time, or tens of requests of a few ranges each."""

_ALONE: Final = 16
"""So many ranges of an object are asked for one by one."""

_TOGETHER: Final = 10
"""The ranges of one call, which is how many ``obstore`` asks for at a time."""

_LARGE: Final = 1 << 20
"""A range of so many bytes is asked for alone."""

_CALL: Final = 32 << 20
"""About the most bytes of one call of many ranges."""

_FEW: Final = 4
"""The most requests that are made one by one beside calls to a store that is near."""

_NEAR_S: Final = 2e-3
"""One call at a time keeps a store busy that answers within this time."""

_FEWEST: Final = 3
"""An object may need a first request, a call and a last request. Fewer ranges are single
requests."""

_slots: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def read_all(wanted: Sequence[Segments]) -> None:
    """Read all segments into their memory, and wait for it.

    Raises:
        FileNotFoundError: an object is missing.
        OSError: an object cannot be read.
        PermissionError: it may not be.
        RuntimeError: an object is another version than that which was described, or too
            short.
    """
    spread = [part for each in wanted for part in each.object.spread(each)]
    plain = [each for each in spread if each.object.cache is None]
    for each in spread:
        if each.object.cache is not None:
            plain += each.object.cache.read(each)
    read_plain(plain)


def read_plain(wanted: Sequence[Segments]) -> None:
    """Read all segments from their stores, whether or not there is a cache."""
    check_process()
    by_object: dict[int, list[Span]] = {}
    for each in wanted:
        spans = list(spans_of(each))
        if spans:
            by_object.setdefault(id(each.object), []).extend(spans)
            each.object.require(max(span.stop for span in spans))
    if not by_object:
        return
    plan = _Plan([], [], [], [])
    few = sum(map(len, by_object.values())) <= _ALONE
    for spans in by_object.values():
        plan.add(spans[0].segments.object, spans, few)
    run(_all(plan))


class _Plan(NamedTuple):
    """The requests of a read, by the order in which they are made."""

    first: list[Coroutine[Any, Any, None]]
    """Requests that tell the tags of objects: calls begin when these have returned."""
    alone: list[Coroutine[Any, Any, None]]
    many: list[tuple[RemoteObject, list[Span]]]
    """The spans of calls of many ranges."""
    last: list[Coroutine[Any, Any, None]]
    """Requests that show that no object has changed during its calls."""

    def add(self, source: RemoteObject, spans: list[Span], few: bool) -> None:
        """Deal the spans of an object to requests: to single ones if the read has few."""
        single = [span for span in spans if few or span.size >= _LARGE]
        others = [span for span in spans if not few and span.size < _LARGE]
        if len(others) < _FEWEST:
            single += others
        else:
            if not source.is_known:
                self.first.append(_read_one(source, others.pop(0)))
            self.last.append(_read_one(source, others.pop()))
            self.many.append((source, others))
        self.alone.extend(_read_one(source, span) for span in single)


def _num_calls(many: list[tuple[RemoteObject, list[Span]]]) -> int:
    """Return how many calls at a time hide the latency of the stores."""
    found = (latency_of(source.place.store, 1.0) for source, _ in many)
    latency = max(found, default=0.0)
    # A busy server is late, too: of a small latency the most part may be of its queue.
    return min(CONCURRENCY, max(1, round((latency / _NEAR_S) ** 2)))


def _num_turns(many: list[tuple[RemoteObject, list[Span]]], num_calls: int) -> int:
    """Return how many calls run at a time: more if calls have few ranges."""
    num_spans = sum(len(spans) for _, spans in many)
    mean = min(_TOGETHER, num_spans / max(1, len(many)))
    return min(CONCURRENCY, round(num_calls * _TOGETHER / max(1, mean)))


def _calls_of(
    many: list[tuple[RemoteObject, list[Span]]],
) -> list[tuple[RemoteObject, list[Span]]]:
    """Deal the spans of each object to calls of about the same number."""
    calls = []
    num_calls = _num_calls(many)
    total = sum(len(spans) for _, spans in many)
    for source, spans in many:
        parts = max(1, round(num_calls * len(spans) / total))
        parts = min(parts, -(-len(spans) // _TOGETHER))
        parts = max(parts, -(-sum(span.size for span in spans) // _CALL))
        step = -(-len(spans) // parts)
        calls += [(source, spans[at : at + step]) for at in range(0, len(spans), step)]
    return calls


def read_range(source: RemoteObject, start: int, stop: int) -> bytes:
    """Read bytes of an object; those behind its end are left out."""
    if isinstance(source, PiecedObject):
        return _read_pieces(source, start, min(stop, source.size or 0))
    with_if = {} if source.e_tag is None else {"if_match": source.e_tag}
    place = source.place
    options = {"range": (start, stop), **with_if}
    try:
        store = place.store
        with timed(store):
            answer = obstore(place).get(store, place.root, options=options)
        source.check(Found.of(answer.meta))
        return bytes(answer.bytes())
    except Exception as error:
        raise _named(error, source, start, stop) from error


def _read_pieces(source: PiecedObject, start: int, stop: int) -> bytes:
    out = np.empty(max(0, stop - start), np.uint8)
    here = np.zeros(1, np.int64)
    if len(out):
        read_all([Segments(source, here + start, here + len(out), out, here)])
    return out.tobytes()


def count_bytes(wanted: Sequence[Segments]) -> int:
    """Count the bytes that are asked for."""
    return int(sum(each.lengths.sum() for each in wanted))


async def _all(plan: _Plan) -> None:
    """Make the requests of a plan, of which some run at a time."""
    loop = asyncio.get_running_loop()
    slots = _slots.setdefault(loop, asyncio.Semaphore(CONCURRENCY))
    num_calls = _num_calls(plan.many)
    calls = [_read_some(*call) for call in _calls_of(plan.many)]
    # Single requests tell the latency. Concurrent ones would add to it.
    few = asyncio.Semaphore(max(_FEW, num_calls) if calls else CONCURRENCY)
    turns = asyncio.Semaphore(_num_turns(plan.many, num_calls))
    tasks: list[asyncio.Future[None]] = []

    async def in_turn(each: Coroutine[Any, Any, None], turn: Any) -> None:
        try:
            async with turn, slots:
                await each
        finally:
            each.close()

    def begin(some: list[Coroutine[Any, Any, None]], turn: Any) -> None:
        tasks.extend(asyncio.ensure_future(in_turn(each, turn)) for each in some)

    try:
        begin(plan.first, few)
        await asyncio.gather(*tasks)
        begin(plan.alone, few)
        begin(calls, turns)
        await asyncio.gather(*tasks)
        begin(plan.last, few)
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in (*plan.first, *plan.alone, *calls, *plan.last):
            each.close()
        raise


async def _read_one(source: RemoteObject, span: Span) -> None:
    place = source.place
    options: dict[str, Any] = {"range": (span.start, span.stop)}
    if source.e_tag is not None:
        options["if_match"] = source.e_tag
    store = place.store
    try:
        with timed(store):
            answer = await obstore(place).get_async(store, place.root, options=options)
        source.check(Found.of(answer.meta))
        data = await answer.bytes_async()
    except Exception as error:
        raise _named(error, source, span.start, span.stop) from error
    _deliver(source, span, data)


async def _read_some(source: RemoteObject, spans: list[Span]) -> None:
    place = source.place
    starts, stops = [span.start for span in spans], [span.stop for span in spans]
    try:
        parts = await obstore(place).get_ranges_async(
            place.store, place.root, starts=starts, ends=stops, coalesce=0
        )
    except Exception as error:
        raise _named(error, source, starts[0], stops[-1]) from error
    for span, data in zip(spans, parts, strict=True):
        _deliver(source, span, data)


def _deliver(source: RemoteObject, span: Span, data: Any) -> None:
    array = np.frombuffer(memoryview(data), np.uint8)
    if len(array) < span.size:
        found = span.start + len(array)
        message = MSG_SHORT.format(url=source.place, found=found, needed=span.stop)
        raise RuntimeError(message)
    span.deliver(array)


def _named(
    error: Exception, source: RemoteObject, start: int, stop: int
) -> BaseException:
    if isinstance(error, RuntimeError):
        return error
    return explained(error, source.place, (start, stop))
