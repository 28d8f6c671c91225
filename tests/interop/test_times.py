"""Times of Arrow in every unit: nothing is lost, through every door."""

import datetime as dt
import pickle

import pytest

from tensordict import TensorDict, from_arrow, to_arrow
from tensordict.interop.tables.times import NanosecondTime

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pandas")

NS = 1_600_000_000_123_456_789
DAY = 3_661_123_456_789
PER_UNIT = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
TYPES = {
    **{
        f"timestamp {unit}": (pa.timestamp(unit), NS // n)
        for unit, n in PER_UNIT.items()
    },
    **{
        f"timestamp {unit} in a zone": (pa.timestamp(unit, "Europe/Berlin"), NS // n)
        for unit, n in PER_UNIT.items()
    },
    **{
        f"duration {unit}": (pa.duration(unit), DAY // n)
        for unit, n in PER_UNIT.items()
    },
    "time32 s": (pa.time32("s"), DAY // 10**9),
    "time32 ms": (pa.time32("ms"), DAY // 10**6),
    "time64 us": (pa.time64("us"), DAY // 10**3),
    "time64 ns": (pa.time64("ns"), DAY),
    "date32": (pa.date32(), 18_000),
    "date64": (pa.date64(), 18_000 * 86_400_000),
}


def table_of(name, *, has_null=False):
    kind, count = TYPES[name]
    counts = [count, count + 86_400_000 if name == "date64" else count + 1]
    counts = [counts[0], None, counts[1]] if has_null else counts
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.table({"t": pa.array(counts, width).cast(kind)})


def nanoseconds(column):
    """Each time in nanoseconds, so that columns of two units compare."""
    kind = column.type
    unit = {pa.date32(): 86_400 * 10**9, pa.date64(): 10**6}.get(kind)
    unit = unit or PER_UNIT[kind.unit]
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    counts = column.cast(width).to_pylist()
    return [None if count is None else count * unit for count in counts]


@pytest.mark.parametrize("name", TYPES)
def test_to_arrow_gives_back_what_from_arrow_took(name):
    table = table_of(name)
    td = from_arrow(table)
    back = to_arrow(td).column("t")
    assert nanoseconds(back) == nanoseconds(table.column("t"))
    assert getattr(back.type, "tz", None) == getattr(table["t"].type, "tz", None)
    # Rows, and rows put together, are the same times.
    part = to_arrow(td[1:]).column("t")
    assert nanoseconds(part) == nanoseconds(table.column("t"))[1:]


@pytest.mark.parametrize("name", TYPES)
def test_nulls_stay_beside_them(name):
    table = table_of(name, has_null=True)
    back = to_arrow(from_arrow(table, nulls="fill")).column("t")
    assert nanoseconds(back) == nanoseconds(table.column("t"))


@pytest.mark.parametrize("name", TYPES)
def test_a_file_of_parquet_keeps_them(name, tmp_path):
    from pyarrow import parquet

    path = tmp_path / "x.parquet"
    table = table_of(name)
    from_arrow(table).to_parquet(path)
    written = parquet.read_table(path).column("t")
    assert nanoseconds(written) == nanoseconds(table.column("t"))
    again = to_arrow(TensorDict.from_parquet(path)).column("t")
    assert nanoseconds(again) == nanoseconds(table.column("t"))


@pytest.mark.parametrize("name", TYPES)
def test_polars_gets_and_gives_them(name):
    pl = pytest.importorskip("polars")
    table = table_of(name)
    frame = TensorDict.from_polars(pl.from_arrow(table)).to_polars()
    back = frame.to_arrow().column("t")
    assert nanoseconds(back) == nanoseconds(table.column("t"))
    assert nanoseconds(from_arrow(table).to_polars().to_arrow().column("t")) == (
        nanoseconds(table.column("t"))
    )


@pytest.mark.parametrize("name", [name for name in TYPES if name != "time64 ns"])
def test_pandas_gets_and_gives_them(name):
    # A frame of pandas has no nanoseconds in times of day: pyarrow refuses to make one.
    table = table_of(name)
    td = TensorDict.from_pandas(table.to_pandas())
    if name.startswith("timestamp") and "zone" not in name:
        assert td["t"].tolist() == nanoseconds(table.column("t"))
        return
    back = pa.Table.from_pandas(td.to_pandas()).column("t")
    assert nanoseconds(back) == nanoseconds(table.column("t"))
    assert nanoseconds(to_arrow(td).column("t")) == nanoseconds(table.column("t"))


def test_times_inside_lists_and_structs_keep_nanoseconds():
    moment = pa.array([NS], pa.timestamp("ns"))
    lists = pa.ListArray.from_arrays([0, 1], moment)
    table = pa.table({"l": lists, "s": pa.StructArray.from_arrays([moment], ["t"])})
    back = to_arrow(from_arrow(table))
    assert back["l"].combine_chunks().values.cast(pa.int64()).to_pylist() == [NS]
    inside = back["s"].combine_chunks().field("t")
    assert inside.cast(pa.int64()).to_pylist() == [NS]


def test_a_time_of_day_with_nanoseconds_is_a_time():
    time = NanosecondTime(DAY)
    assert isinstance(time, dt.time)
    assert (time.hour, time.minute, time.second) == (1, 1, 1)
    assert (time.microsecond, time.nanosecond) == (123456, 789)
    assert time != time.replace(microsecond=0)
    assert time != dt.time(1, 1, 1, 123456)
    assert dt.time(1, 1, 1, 123456) < time < NanosecondTime(DAY + 1)
    assert NanosecondTime(DAY - 789) == dt.time(1, 1, 1, 123456)
    assert hash(NanosecondTime(DAY - 789)) == hash(dt.time(1, 1, 1, 123456))
    assert pickle.loads(pickle.dumps(time)) == time
    assert str(time) == "01:01:01.123456789"


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.filterwarnings("ignore:.*holds pickled values")
def test_a_save_keeps_them_and_is_read_without_being_trusted(name, tmp_path):
    table = table_of(name)
    from_arrow(table).memmap(tmp_path)
    back = to_arrow(TensorDict.load_memmap(tmp_path)).column("t")
    assert nanoseconds(back) == nanoseconds(table.column("t"))
