"""Tables: what is special to pandas, polars, Arrow, CSV and JSON."""

from __future__ import annotations

import datetime as dt
import io
import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict import (
    NonTensorStack,
    TensorDict,
    from_arrow,
    from_csv,
    from_json,
    from_pandas,
    from_parquet,
    from_polars,
    tensorclass,
    to_arrow,
)
from tensordict.interop.tables import csv

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")


@tensorclass
class Sample:
    a: torch.Tensor
    s: str


# pandas --------------------------------------------------------------------------------


def frame(**columns):
    return pd.DataFrame(columns)


def test_a_frame_and_its_collection_share_no_memory():
    df = frame(a=[1, 2], b=pd.array([3, 4], dtype="Int64"), c=[0.5, 1.5])
    td = from_pandas(df)
    td.zero_()
    assert df["a"].tolist() == [1, 2]
    assert df["b"].tolist() == [3, 4]
    td = TensorDict(a=torch.arange(2), batch_size=[2])
    made = td.to_pandas()
    made.loc[0, "a"] = 9
    assert td["a"].tolist() == [0, 1]


def test_columns_of_arrow_in_a_frame():
    kinds = {
        "i": (pa.int32(), [1, 2]),
        "fixed": (pa.list_(pa.int64(), 2), [[1, 2], [3, 4]]),
        "lists": (pa.list_(pa.int64()), [[1], [2, 3]]),
        "struct": (pa.struct({"x": pa.int64()}), [{"x": 1}, {"x": 2}]),
        "text": (pa.string(), ["x", "y"]),
        "time": (pa.timestamp("s"), [dt.datetime(1970, 1, 1)] * 2),  # noqa: DTZ001
    }
    td = from_pandas(
        frame(**{k: pd.array(v, dtype=pd.ArrowDtype(t)) for k, (t, v) in kinds.items()})
    )
    assert td["i"].dtype is torch.int32
    assert td["fixed"].tolist() == [[1, 2], [3, 4]]
    assert [row.tolist() for row in td["lists"].unbind()] == [[1], [2, 3]]
    assert td["struct", "x"].tolist() == [1, 2]
    assert td["text"] == ["x", "y"]
    assert td["time"].tolist() == [0, 0]


def test_kinds_of_categories():
    categories = {
        "text": pd.Categorical(["x", "y", "x"]),
        "missing": pd.Categorical([10, None, 20]),
        "bool": pd.Categorical([True, False, True]),
        "none": pd.Categorical([None, None, None]),
    }
    td = from_pandas(frame(**categories))
    assert td["text"] == ["x", "y", "x"]
    assert td["missing"].nan_to_num(0).tolist() == [10, 0, 20]
    assert list(td["bool"]) == [True, False, True]
    assert td["none"] == [None, None, None]
    filled = from_pandas(frame(**categories), nulls="mask")
    assert filled["missing"].tolist() == [10, 0, 20]
    assert filled["_mask", "missing"].tolist() == [True, False, True]


def test_levels_of_an_index():
    index = pd.MultiIndex.from_tuples([(1, "x"), (2, "y")], names=["i", None])
    td = from_pandas(pd.DataFrame({"a": [1, 2]}, index=index))
    assert list(td.keys()) == ["a", "i"]
    index = pd.Index([1, 2], name="a")
    with pytest.raises(ValueError, match=r"several columns of the names \['a'\]"):
        from_pandas(pd.DataFrame({"a": [1, 2]}, index=index))


def test_other_columns_of_pandas():
    td = from_pandas(
        frame(
            sparse=pd.arrays.SparseArray([0, 1]),
            period=pd.period_range("2020-01", periods=2, freq="M"),
            endian=np.array([1, 2], dtype=">i4"),
            mixed=["x", 1],
            time=pd.to_timedelta([1, 2], unit="ns"),
        )
    )
    assert td["sparse"].tolist() == [0, 1]
    assert str(td[1]["period"]) == "2020-02"
    assert td["endian"].tolist() == [1, 2]
    assert td["mixed"] == ["x", 1]
    assert td[1]["time"].value == 2


def test_missing_timestamps_with_masks():
    times = pd.to_datetime(["1970-01-01 00:00:01", None])
    td = from_pandas(frame(t=times), nulls="mask")
    assert td["t"].tolist() == [10**9, 0]
    assert td["_mask", "t"].tolist() == [True, False]


def test_nan_of_a_frame_is_missing_where_nulls_are_told():
    df = frame(a=[1.0, float("nan")])
    assert from_pandas(df)["a"][1].isnan()
    with pytest.raises(ValueError, match="'a' has 1 null"):
        from_pandas(df, nulls="raise")
    assert from_pandas(df, nulls="mask")["_mask", "a"].tolist() == [True, False]


def test_columns_of_values_in_a_frame():
    td = TensorDict(
        a=NonTensorStack(2**53 + 1, None),
        b=NonTensorStack(1, 2),
        c=NonTensorStack({"x": 1}, {"y": 2}),
        d=NonTensorStack([1, 2], [3, 4]),
        batch_size=[2],
    )
    df = td.to_pandas()
    assert df["a"].tolist() == [2**53 + 1, None]
    assert df["b"].dtype == np.int64
    assert df["c"].tolist() == [{"x": 1}, {"y": 2}]
    assert df["d"].tolist() == [[1, 2], [3, 4]]


# Arrow ---------------------------------------------------------------------------------


def collection():
    return TensorDict(
        a=torch.arange(3), n={"b": torch.ones(3, 2)}, s=["x", "y", "z"], batch_size=[3]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: collection(),
        lambda: TensorDict.lazy_stack([*collection().unbind(0)]),
        lambda: Sample(a=torch.arange(3), s=["x", "y", "z"], batch_size=[3]),
        lambda: collection()._get_sub_tensordict(slice(None)),
    ],
    ids=["dense", "lazy", "tensorclass", "view"],
)
def test_the_stream_of_a_collection(make):
    td = make()
    table = pa.table(td)
    assert table.column("a").to_pylist() == [0, 1, 2]
    assert pl.from_arrow(td).struct.unnest()["s"].to_list() == ["x", "y", "z"]
    assert from_arrow(td)["a"].tolist() == [0, 1, 2]


def test_the_stream_shares_memory():
    td = TensorDict(a=torch.arange(3), batch_size=[3])
    column = pa.table(td).column("a").chunk(0)
    assert column.buffers()[1].address == td["a"].data_ptr()
    back = from_arrow(td, copy=False)
    assert back["a"].data_ptr() == td["a"].data_ptr()


def test_the_stream_of_two_batch_dims():
    with pytest.raises(ValueError, match="one batch dimension"):
        pa.table(TensorDict(a=torch.ones(2, 3), batch_size=[2, 3]))


def test_memory_that_may_not_be_written_is_copied(tmp_path):
    path = tmp_path / "table.arrow"
    table = pa.table({"a": pa.array(range(10), pa.int64())})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    with pa.memory_map(str(path)) as mapped:
        opened = pa.ipc.open_file(mapped).read_all()
        td = from_arrow(opened)
        # Writing to the mapping would end the process.
        td["a"].zero_()
        assert opened.column("a").to_pylist() == list(range(10))
        address = opened.column("a").chunk(0).buffers()[1].address
        assert from_arrow(opened, copy=False)["a"].data_ptr() == address


@pytest.mark.parametrize("shape", [(2, 0), (2, 0, 3), (0, 3), (0, 0)])
def test_dims_without_elements(shape, tmp_path):
    td = TensorDict(a=torch.zeros(shape), batch_size=shape[:1])
    assert from_arrow(to_arrow(td))["a"].shape == shape
    if 0 in shape[1:]:
        with pytest.raises(ValueError, match="'a' of shape"):
            td.to_polars()
    else:
        assert from_polars(td.to_polars())["a"].shape == shape


def test_slices_of_columns():
    table = pa.table(
        {
            "i": pa.array([1, None, 3, 4]),
            "b": pa.array([True, False, True, False]),
            "f": pa.array([[1, 2], None, [5, 6], [7, 8]], pa.list_(pa.int64(), 2)),
            "d": pa.array(["x", "y", None, "x"]).dictionary_encode(),
        }
    )
    td = from_arrow(table.slice(1, 2), nulls="mask")
    assert td["i"].tolist() == [0, 3]
    assert td["b"].tolist() == [False, True]
    assert td["f"].tolist() == [[0, 0], [5, 6]]
    assert td["d"] == ["y", None]
    assert td["_mask", "d"].tolist() == [True, False]


# polars --------------------------------------------------------------------------------


def test_columns_of_polars():
    df = pl.DataFrame(
        {
            "i": [1, 2],
            "lists": [[1], [2, 3]],
            "array": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int16, 2)),
            "struct": [{"x": 1}, {"x": 2}],
            "cat": pl.Series(["u", "v"], dtype=pl.Categorical),
            "time": [dt.datetime(2024, 1, 1)] * 2,  # noqa: DTZ001
            "none": [None, None],
        }
    )
    td = from_polars(df)
    assert td["array"].dtype is torch.int16
    assert [row.tolist() for row in td["lists"].unbind()] == [[1], [2, 3]]
    assert td["struct", "x"].tolist() == [1, 2]
    assert td["cat"] == ["u", "v"]
    assert td["time"] == [dt.datetime(2024, 1, 1)] * 2  # noqa: DTZ001
    assert td["none"] == [None, None]
    assert from_polars(df.lazy().select("i"))["i"].tolist() == [1, 2]


def test_jagged_leaves_of_polars():
    rows = [torch.arange(2), torch.arange(3)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    df = TensorDict(a=jagged, batch_size=[2]).to_polars()
    assert df["a"].to_list() == [[0, 1], [0, 1, 2]]


def test_what_is_no_frame_of_polars():
    with pytest.raises(TypeError, match="expects a DataFrame or LazyFrame of polars"):
        from_polars(frame(a=[1]))


# CSV -----------------------------------------------------------------------------------


def read(tmp_path, text, **how):
    path = tmp_path / "data.csv"
    path.write_bytes(text.encode())
    return from_csv(path, **how)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["007", "1"], ["007", "1"]),
        (["1", "-01"], ["1", "-01"]),
        (["+49", "1"], ["+49", "1"]),
        (["00.5", "1"], ["00.5", "1"]),
        (["2024-01-01", "NA"], ["2024-01-01", "NA"]),
        (["null", "None"], [None, None]),
        (["x", "null"], ["x", "null"]),
        (["12:05", "x"], ["12:05", "x"]),
    ],
)
def test_texts_of_csv_are_as_written(tmp_path, texts, found):
    td = read(tmp_path, "n,a\n" + "".join(f"{at},{t}\n" for at, t in enumerate(texts)))
    assert td["n"].tolist() == [0, 1]
    if found == [None, None]:
        # Nothing but missing values, which are numbers.
        assert td["a"].isnan().all()
    else:
        assert td["a"] == found


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["0", "-0", "10"], [0, 0, 10]),
        (["0.05", "1e-05", "1E+05"], [0.05, 1e-05, 1e5]),
        (["-0.5", "100", "200"], [-0.5, 100, 200]),
        (["9007199254740993", "1", "0"], [2**53 + 1, 1, 0]),
    ],
)
def test_numbers_of_csv_are_numbers(tmp_path, texts, found):
    assert read(tmp_path, "a\n" + "\n".join(texts))["a"].tolist() == found


def test_numbers_at_the_beginning_of_a_long_column_of_texts_stay_texts(tmp_path):
    td = read(tmp_path, "a\n" + "1.50\n" * 300_000 + "x\n")
    assert set(td["a"]) == {"1.50", "x"}


@pytest.mark.parametrize(("text", "is_odd"), [("a,1e-05,2024-01-01", 0), ("a,+1", 1)])
@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_odd_numbers_are_found_across_the_pieces_of_a_file(
    monkeypatch, text, is_odd, size
):
    monkeypatch.setattr(csv, "PIECE", size)
    for padding in range(4):
        content = io.BytesIO(b"x" * padding + text.encode())
        assert csv._has_odd_numbers(content) == bool(is_odd)


def test_options_of_pandas_decide_what_texts_mean(tmp_path):
    td = read(tmp_path, "a,b\n007,-\n8,2\n", na_values=["-"])
    assert td["a"].tolist() == [7, 8]
    assert td["b"].nan_to_num(0).tolist() == [0, 2]
    kept = read(tmp_path, "a\n1\n2\n", converters={"a": str})
    assert kept["a"] == ["1", "2"]


def test_empty_cells_and_short_lines(tmp_path):
    td = read(tmp_path, "a,b,c\nx,NA,1\n,y,\nz\n")
    assert td["a"] == ["x", None, "z"]
    assert td["b"] == ["NA", "y", None]
    assert td["c"].nan_to_num(0).tolist() == [1, 0, 0]


def test_an_index_of_csv_is_a_column(tmp_path):
    td = read(tmp_path, "id,a\nx,007\ny,8\n", index_col=0)
    assert td["a"] == ["007", "8"]
    assert td["id"] == ["x", "y"]


def test_csv_by_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    text = "a,b,c,d,e\n1,0.5,007,2024-01-01,NA\n2,,8,2024-01-02,x\n"
    td = read(tmp_path, text)
    assert td["a"].tolist() == [1, 2]
    assert td["b"].nan_to_num(0).tolist() == [0.5, 0]
    assert (td["c"], td["d"]) == (["007", "8"], ["2024-01-01", "2024-01-02"])
    assert td["e"] == ["NA", "x"]


def test_csv_refuses_what_it_cannot_tell_apart(tmp_path):
    path = tmp_path / "data.csv"
    digits = TensorDict(a=["1", "2"], batch_size=[2])
    with pytest.raises(ValueError, match="'a' of texts which read as numbers"):
        digits.to_csv(path)
    digits.to_csv(path, quoting=2)
    assert path.read_text() == '"a"\n"1"\n"2"\n'
    empty = TensorDict(a=["x", ""], batch_size=[2])
    with pytest.raises(ValueError, match="'a' with an empty text"):
        empty.to_csv(path)
    empty.to_csv(path, na_rep="NULL")
    assert path.read_text() == 'a\nx\n""\n'
    with pytest.raises(TypeError, match="'a' with values of several kinds"):
        TensorDict(a=NonTensorStack("x", 1), batch_size=[2]).to_csv(path)


def test_csv_is_appended_to(tmp_path):
    path = tmp_path / "data.csv"
    td = TensorDict(a=torch.arange(2), batch_size=[2])
    td.to_csv(path)
    td.to_csv(path, mode="a", header=False)
    assert from_csv(path)["a"].tolist() == [0, 1, 0, 1]
    with pytest.raises(FileExistsError):
        td.to_csv(path, mode="x")


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        min_size=1,
        max_size=5,
    )
)
def test_every_text_of_csv_is_kept_or_refused(tmp_path_factory, texts):
    path = tmp_path_factory.getbasetemp() / "texts.csv"
    td = TensorDict(a=texts, n=torch.arange(len(texts)), batch_size=[len(texts)])
    try:
        td.to_csv(path)
    except ValueError as error:
        assert "entry 'a'" in str(error)  # noqa: PT017
        return
    assert from_csv(path)["a"] == texts


# JSON ----------------------------------------------------------------------------------


def parsed(tmp_path, text, **how):
    path = tmp_path / "data.json"
    path.write_text(text, encoding="utf-8")
    return from_json(path, **how)


def every_column():
    """Rows of each kind of column, and of each kind of number."""
    numbers = [1.0, -0.0, 1e-7, 1e15, 1e16, 1e22, 5e-324, 2.0**53 + 2, 0.1]
    whole = torch.tensor([*numbers, float("nan")], dtype=torch.float64)
    torch.manual_seed(0)
    return TensorDict(
        {
            "whole": whole,
            "single": whole.float(),
            "half": torch.randn(10).half(),
            "integer": torch.randint(-(2**63), 2**63 - 1, (10,)),
            "byte": torch.arange(10, dtype=torch.uint8),
            "truth": torch.arange(10) % 2 == 0,
            "block": torch.randn(10, 2, 3),
            "empty": torch.zeros(10, 2, 0),
            'a "name"': torch.ones(10),
            "text": NonTensorStack(*[f'"é\n{at}' for at in range(10)]),
            "object": NonTensorStack(*[{"a": [at, None]} for at in range(10)]),
        },
        batch_size=[10],
    )


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("size", [3, 1 << 14])
def test_json_is_the_same_without_pyarrow(monkeypatch, lines, size):
    monkeypatch.setattr("tensordict.interop.tables.json_texts.ROWS", size)
    found = []
    for _ in range(2):
        written = io.StringIO()
        every_column().to_json(written, lines=lines)
        text = written.getvalue()
        rows = map(json.loads, text.splitlines()) if lines else json.loads(text)
        # Integers, floating point and the sign of zero are told apart.
        found.append([repr(row) for row in rows])
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert found[0] == found[1]
    assert len(found[0]) == 10
    assert "'whole': -0.0" in found[0][1]
    assert "'whole': None" in found[0][9]


def test_numbers_of_json_keep_their_values(tmp_path):
    td = parsed(
        tmp_path,
        '[{"i":9007199254740993,"m":1,"b":true,"huge":99999999999999999999999,"x":1},'
        '{"i":-1,"m":0.5,"b":false,"huge":1,"x":true}]',
    )
    assert td["i"].tolist() == [2**53 + 1, -1]
    assert td["m"].tolist() == [1, 0.5]
    assert td["b"].dtype is torch.bool
    assert td.get("huge").tolist() == [99999999999999999999999, 1]
    assert td.get("x").tolist() == [1, True]


def test_lists_of_json(tmp_path):
    td = parsed(
        tmp_path,
        '[{"a":[[1,2],[3,4]],"r":[1],"t":["x"],"m":[1,0.5],"e":[],"b":[true]},'
        '{"a":[[5,6],[7,8]],"r":[1,2],"t":["y"],"m":[2,3],"e":[],"b":[false]}]',
    )
    assert td["a"].shape == (2, 2, 2)
    assert td["r"] == [[1], [1, 2]]
    assert td.get("t").tolist() == [["x"], ["y"]]
    assert td["m"].dtype is torch.float64
    assert td["e"] == [[], []]
    assert td["b"].dtype is torch.bool


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":1}', "found a single object"),
        ("[1]", "an array with int in it"),
        ('"x"', "found str"),
        ('[{"a":1,"a":2}]', "two fields of one name"),
        ('{"a":[1],"b":[1,2]}', "must be of the same length"),
    ],
)
def test_what_is_no_table_of_json(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        parsed(tmp_path, text)


def test_a_line_of_json_that_is_damaged(tmp_path):
    with pytest.raises(ValueError, match="line 2 is no record"):
        parsed(tmp_path, '{"a":1}\n{"a":\n', lines=True)


def test_options_of_pandas_for_json(tmp_path):
    td = parsed(tmp_path, '{"a":{"0":"007","1":"8"}}', orient="columns")
    assert td["a"] == ["007", "8"]
    made = TensorDict(a=torch.arange(2), s=["x", "y"], batch_size=[2])
    made.to_json(tmp_path / "out", orient="split", indent=1)
    assert json.loads((tmp_path / "out").read_text())["columns"] == ["a", "s"]


def test_json_of_values(tmp_path):
    td = TensorDict(
        a=NonTensorStack(None, 1.5),
        t=NonTensorStack(dt.date(2024, 1, 1), dt.date(2024, 1, 2)),
        d=NonTensorStack({"x": [1, None]}, {"y": np.float32(0.5)}),
        n=torch.tensor([0.5, float("nan")]),
        batch_size=[2],
    )
    td.to_json(tmp_path / "out")
    assert json.loads((tmp_path / "out").read_text()) == [
        {"a": None, "t": "2024-01-01", "d": {"x": [1, None]}, "n": 0.5},
        {"a": 1.5, "t": "2024-01-02", "d": {"y": 0.5}, "n": None},
    ]
    with pytest.raises(TypeError, match="'s' with a value of the class set"):
        TensorDict(s=NonTensorStack({1}, {2}), batch_size=[2]).to_json(tmp_path / "o")


def test_ragged_leaves_of_json(tmp_path):
    rows = [torch.arange(2.0), torch.tensor([float("nan")])]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    TensorDict(a=jagged, batch_size=[2]).to_json(tmp_path / "out")
    assert json.loads((tmp_path / "out").read_text()) == [{"a": [0, 1]}, {"a": [None]}]


# Parquet -------------------------------------------------------------------------------


def test_columns_of_parquet_are_whole(tmp_path):
    from pyarrow import parquet

    table = pa.table(
        {"b.c": range(10), "a": range(10), "t": [str(i) for i in range(10)]}
    )
    parquet.write_table(table, tmp_path / "t", row_group_size=3)
    td = from_parquet(tmp_path / "t", columns=["a", "b.c"])
    assert list(td.keys()) == ["a", "b.c"]
    assert td["a"].tolist() == list(range(10))
    assert from_parquet(str(tmp_path / "t"))["t"] == [str(i) for i in range(10)]


def test_folders_of_parquet(tmp_path):
    from pyarrow import parquet

    parquet.write_to_dataset(
        pa.table({"a": [1, 2], "k": [7, 8]}), tmp_path / "d", ["k"]
    )
    td = from_parquet(tmp_path / "d")
    assert sorted(td["a"].tolist()) == [1, 2]


def test_jagged_leaves_of_parquet(tmp_path):
    rows = [torch.arange(2), torch.arange(3)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    TensorDict(a=jagged, batch_size=[2]).to_parquet(tmp_path / "t")
    back = from_parquet(tmp_path / "t")["a"]
    assert [row.tolist() for row in back.unbind()] == [[0, 1], [0, 1, 2]]


def test_timestamps_beyond_nanoseconds_are_named(tmp_path):
    from pyarrow import parquet

    far = pa.table({"t": pa.array([10**18], pa.timestamp("us"))})
    parquet.write_table(far, tmp_path / "t")
    with pytest.raises(ValueError, match="column t has a timestamp that int64"):
        from_parquet(tmp_path / "t")
