"""Times of Arrow as Python values that keep their nanoseconds, and back."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["NanosecondTime", "array_of", "times_of"]


class NanosecondTime(dt.time):
    """A time of day with the nanoseconds that :class:`datetime.time` lacks.

    Args:
        count: the nanoseconds since midnight.

    Examples:
        >>> NanosecondTime(3_661_123_456_789)
        NanosecondTime('01:01:01.123456789')
        >>> NanosecondTime(1) == NanosecondTime(2), NanosecondTime(1) > dt.time(0)
        (False, True)
    """

    count: int
    """The nanoseconds since midnight."""

    def __new__(cls, count: int) -> Self:
        """Make a time from the nanoseconds since midnight."""
        seconds, rest = divmod(count, 10**9)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        time = super().__new__(cls, hour, minute, second, rest // 1000)
        time.count = count
        return time

    @property
    def nanosecond(self) -> int:
        """The nanoseconds after the microsecond, 0 to 999."""
        return self.count % 1000

    def __eq__(self, other: object) -> bool:
        """Return whether two times are the same, to the nanosecond."""
        return super().__eq__(other) and getattr(other, "nanosecond", 0) == (
            self.nanosecond
        )

    def __ne__(self, other: object) -> bool:
        """Return whether two times differ by at least a nanosecond."""
        return not self == other

    def __lt__(self, other: dt.time) -> bool:
        """Return whether this time is before another."""
        if super().__eq__(other):
            return self.nanosecond < getattr(other, "nanosecond", 0)
        return super().__lt__(other)

    def __gt__(self, other: dt.time) -> bool:
        """Return whether this time is after another."""
        return not self <= other

    def __le__(self, other: dt.time) -> bool:
        """Return whether this time is before another, or equal."""
        return self < other or self == other

    def __ge__(self, other: dt.time) -> bool:
        """Return whether this time is after another, or equal."""
        return not self < other

    def __hash__(self) -> int:
        """Return the hash, which equals that of an equal ``datetime.time``."""
        return hash(self.count) if self.nanosecond else super().__hash__()

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Pickle the nanoseconds since midnight."""
        return type(self), (self.count,)

    def replace(self, *args: Any, **kwargs: Any) -> dt.time:  # type: ignore[override]
        """Return a ``datetime.time`` with replaced fields, without the nanoseconds."""
        fields = self.hour, self.minute, self.second, self.microsecond
        return dt.time(*fields).replace(*args, **kwargs)

    def isoformat(self, timespec: str = "auto") -> str:
        """Return the time as text, with nine digits after the second by default."""
        if timespec != "auto":
            return super().isoformat(timespec)
        return f"{super().isoformat('microseconds')}{self.nanosecond:03}"

    def __str__(self) -> str:
        """Return the text of :meth:`isoformat`."""
        return self.isoformat()

    def __repr__(self) -> str:
        """Return the text of the class and the time."""
        return f"{type(self).__name__}({self.isoformat()!r})"


def times_of(array: Any, counts: Any) -> list[Any]:
    """Return an Arrow array of times as Python values.

    Args:
        array: the times of day.
        counts: the same times as nanoseconds since midnight.

    Returns:
        A :class:`NanosecondTime` for times with nanoseconds, otherwise a
        ``datetime.time``.
    """
    return [
        time if count is None or count % 1000 == 0 else NanosecondTime(count)
        for time, count in zip(array.to_pylist(), counts.to_pylist(), strict=True)
    ]


def array_of(pa: ModuleType, values: list[Any]) -> Any:
    """Convert Python values to an Arrow array that keeps their nanoseconds.

    By default, pyarrow converts every time to microseconds.
    """
    array = pa.array(values)
    wider = _with_nanoseconds(pa, array.type)
    if wider == array.type or not any(map(_has_nanoseconds, values)):
        return array
    if pa.types.is_time(wider):
        counts = [None if value is None else _count(value) for value in values]
        return pa.array(counts, pa.int64()).cast(wider)
    return pa.array(values, wider)


def _with_nanoseconds(pa: Any, kind: Any) -> Any:
    """Return a type with nanoseconds instead of microseconds, at any depth."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    if types.is_duration(kind):
        return pa.duration("ns")
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_list(kind):
        return pa.list_(_with_nanoseconds(pa, kind.value_type))
    if types.is_struct(kind):
        fields = [field.with_type(_with_nanoseconds(pa, field.type)) for field in kind]
        return pa.struct(fields)
    return kind


def _has_nanoseconds(value: Any) -> bool:
    """Return whether a time, also in a list or dictionary, has nanoseconds."""
    if isinstance(value, dict):
        return any(map(_has_nanoseconds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nanoseconds, value))
    # `unit` is the resolution of timestamps and durations of pandas.
    return getattr(value, "unit", None) == "ns" or isinstance(value, NanosecondTime)


def _count(time: dt.time) -> int:
    """Return the nanoseconds since midnight."""
    seconds = (time.hour * 60 + time.minute) * 60 + time.second
    nanosecond = getattr(time, "nanosecond", 0)
    return (seconds * 10**6 + time.microsecond) * 1000 + int(nanosecond)
