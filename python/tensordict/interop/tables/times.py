"""Keep the nanoseconds of Arrow's times in Python values, and give them back."""

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
        """Make one of the nanoseconds since midnight."""
        seconds, rest = divmod(count, 10**9)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        made = super().__new__(cls, hour, minute, second, rest // 1000)
        made.count = count
        return made

    @property
    def nanosecond(self) -> int:
        """The nanoseconds behind the microsecond."""
        return self.count % 1000

    def __eq__(self, other: object) -> bool:
        """Return whether two times are the same, to the nanosecond."""
        return super().__eq__(other) and getattr(other, "nanosecond", 0) == (
            self.nanosecond
        )

    def __ne__(self, other: object) -> bool:
        """Return whether two times differ, if by a nanosecond."""
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
        """Return whether this time is before another, or the same."""
        return self < other or self == other

    def __ge__(self, other: dt.time) -> bool:
        """Return whether this time is after another, or the same."""
        return not self < other

    def __hash__(self) -> int:
        """Hash it as the time that it is, to the nanosecond."""
        return hash(self.count) if self.nanosecond else super().__hash__()

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Make it again from its nanoseconds."""
        return type(self), (self.count,)

    def replace(self, *args: Any, **kwargs: Any) -> dt.time:  # type: ignore[override]
        """Replace fields: a time without nanoseconds, which no field has."""
        fields = self.hour, self.minute, self.second, self.microsecond
        return dt.time(*fields).replace(*args, **kwargs)

    def isoformat(self, timespec: str = "auto") -> str:
        """The time with nine digits behind the second, where nothing else is asked."""
        if timespec != "auto":
            return super().isoformat(timespec)
        return f"{super().isoformat('microseconds')}{self.nanosecond:03}"

    def __str__(self) -> str:
        """Return the text of :meth:`isoformat`."""
        return self.isoformat()

    def __repr__(self) -> str:
        """Show the class and the time."""
        return f"{type(self).__name__}({self.isoformat()!r})"


def times_of(array: Any, counts: Any) -> list[Any]:
    """The values of an array of times of day, whose nanoseconds ``counts`` has.

    Those without nanoseconds are as pyarrow gives them.
    """
    return [
        time if count is None or count % 1000 == 0 else NanosecondTime(count)
        for time, count in zip(array.to_pylist(), counts.to_pylist(), strict=True)
    ]


def array_of(pa: ModuleType, values: list[Any]) -> Any:
    """An array of Python values, of nanoseconds where a value has them.

    Without a type pyarrow takes microseconds for every time.
    """
    made = pa.array(values)
    wider = _with_nanoseconds(pa, made.type)
    if wider == made.type or not any(map(_has_nanoseconds, values)):
        return made
    if pa.types.is_time(wider):
        counts = [None if value is None else _count(value) for value in values]
        return pa.array(counts, pa.int64()).cast(wider)
    return pa.array(values, wider)


def _with_nanoseconds(pa: Any, kind: Any) -> Any:
    """A type with nanoseconds in place of microseconds, also in lists and structs."""
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
    """Return whether a time, or one inside a list or a dictionary, has nanoseconds."""
    if isinstance(value, dict):
        return any(map(_has_nanoseconds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nanoseconds, value))
    # `unit` is what pandas calls the resolution of its timestamps and durations.
    return getattr(value, "unit", None) == "ns" or isinstance(value, NanosecondTime)


def _count(time: dt.time) -> int:
    """The nanoseconds since midnight."""
    seconds = (time.hour * 60 + time.minute) * 60 + time.second
    nanosecond = getattr(time, "nanosecond", 0)
    return (seconds * 10**6 + time.microsecond) * 1000 + int(nanosecond)
