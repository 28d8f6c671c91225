"""Tables: data frames of pandas, and files of CSV, JSON and Parquet."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pytest
import torch
from scenario import scenario

from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    from_csv,
    from_json,
    from_pandas,
    from_parquet,
    lazy_stack,
    tensorclass,
)

KEPT = "the release gives the whole column to every row"


@tensorclass
class Point:
    x: Any
    y: Any


def pandas():
    return pytest.importorskip("pandas")


def arrow():
    pandas()
    return pytest.importorskip("pyarrow")


def frame(**columns):
    return pandas().DataFrame(columns)


def shown(df):
    columns = [
        (name, str(df[name].dtype), df[name].tolist()) for name in df.columns.tolist()
    ]
    return columns, list(df.index)


def csv(tmp_path, text):
    path = tmp_path / "data.csv"
    path.write_text(text)
    return path


def json(tmp_path, text):
    path = tmp_path / "data.json"
    path.write_text(text)
    return path


def parquet(tmp_path, **columns):
    pa = arrow()
    from pyarrow import parquet as files

    path = tmp_path / "data.parquet"
    files.write_table(pa.table(columns), path)
    return path


def numbers():
    return TensorDict(
        a=torch.arange(3),
        b=torch.tensor([0.1, 0.2, 0.3]),
        c=torch.tensor([True, False, True]),
        n={"d": torch.tensor([1.5, 2.5, 3.5], dtype=torch.float64)},
        batch_size=[3],
    )


# Data frames ---------------------------------------------------------------------------


@scenario
def numbers_of_a_frame():
    return TensorDict.from_pandas(frame(a=[1, 2], b=[0.5, 1.5], c=[True, False]))


@scenario
def dtypes_of_a_frame():
    columns = {
        name: np.ones(2, name)
        for name in (
            *("int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "complex64", "complex128"),
        )
    }
    return TensorDict.from_pandas(frame(**columns))


@scenario
def the_function_and_the_method():
    df = frame(a=[1, 2])
    return from_pandas(df), type(Point.from_pandas(frame(x=[1], y=[2.0]))).__name__


@scenario
def an_empty_frame_keeps_its_dtypes():
    return TensorDict.from_pandas(
        frame(a=np.zeros(0, np.int32), b=np.zeros(0, bool), c=np.zeros(0, np.float16))
    )


@scenario
def a_frame_without_columns():
    return TensorDict.from_pandas(pandas().DataFrame(index=range(3)))


@scenario
def nested_columns():
    df = pandas().DataFrame({"a.b": [1], "c": [2], "a.d.e": [3]})
    return TensorDict.from_pandas(df), TensorDict.from_pandas(df, separator=".")


@scenario
def a_leaf_that_is_a_prefix():
    df = pandas().DataFrame({"a": [1], "a.b": [2]})
    return TensorDict.from_pandas(df, separator=".")


@scenario(
    reason="the release drops the nested column",
    ours=lambda error: (
        isinstance(error, ValueError) and "Key conflict: 'a'" in str(error)
    ),
)
def a_leaf_that_is_a_prefix_and_comes_later():
    df = pandas().DataFrame({"a.b": [2], "a": [1]})
    return TensorDict.from_pandas(df, separator=".")


@scenario
def an_empty_separator():
    return TensorDict.from_pandas(frame(a=[1]), separator="")


@scenario
def names_that_are_numbers():
    return TensorDict.from_pandas(pandas().DataFrame({0: [1], 1: [2]}))


@scenario
def the_dtype_of_numbers():
    df = frame(a=[1, 2], b=[True, False], t=pandas().to_datetime(["2024", "2025"]))
    return TensorDict.from_pandas(df, dtype=torch.float32)


@scenario
def sizes_of_a_frame():
    df = frame(a=[1, 2], b=[0.5, 1.5])
    return (
        TensorDict.from_pandas(df, batch_size=[]).batch_size,
        TensorDict.from_pandas(df, batch_size=[2]).batch_size,
        TensorDict.from_pandas(df, auto_batch_size=True).batch_size,
        TensorDict.from_pandas(df, auto_batch_size=True, batch_dims=0).batch_size,
        TensorDict.from_pandas(df, batch_dims=1).batch_size,
        TensorDict.from_pandas(df, device="cpu"),
    )


@scenario(warned=True)
def batch_dims_alone():
    return TensorDict.from_pandas(frame(a=[1, 2]), batch_dims=0)


@scenario
def a_size_that_does_not_fit():
    return TensorDict.from_pandas(frame(a=[1, 2]), batch_size=[3])


@scenario
def two_sizes():
    return TensorDict.from_pandas(frame(a=[1, 2]), batch_size=[2], auto_batch_size=True)


@scenario
def what_is_no_frame():
    return TensorDict.from_pandas({"a": [1]})


@scenario
def fields_of_a_tensorclass():
    return Point.from_pandas(frame(x=[1, 2], y=[0.5, 1.5]))


@scenario(message=False)  # it has a set
def columns_that_are_no_fields():
    return Point.from_pandas(frame(x=[1], y=[2], z=[3]))


@scenario
def nullable_numbers():
    pd = pandas()
    return TensorDict.from_pandas(
        frame(
            a=pd.array([1, None], dtype="Int64"),
            b=pd.array([1, None], dtype="Float32"),
            c=pd.array([2**60 + 1, 2], dtype="Int64"),
            d=pd.array([True, False], dtype="boolean"),
            e=[float("nan"), 1.0],
        )
    )


@scenario(
    reason="the release rounds the integers",
    ours=lambda error: isinstance(error, ValueError) and "'a' has 1 null" in str(error),
)
def nullable_integers_beyond_doubles():
    pd = pandas()
    return TensorDict.from_pandas(frame(a=pd.array([2**53 + 1, None], dtype="Int64")))


@scenario(reason=KEPT, ours=lambda td: td[1]["a"] == "y")
def texts_of_a_frame():
    return TensorDict.from_pandas(frame(a=["x", "y"]))


@scenario(reason=KEPT, ours=lambda td: td[1]["a"] == b"y")
def bytes_of_a_frame():
    return TensorDict.from_pandas(frame(a=[b"x", b"y"]))


@scenario(reason=KEPT, ours=lambda td: td[1]["a"] == decimal.Decimal("2.50"))
def decimals_of_a_frame():
    values = [decimal.Decimal("1.10"), decimal.Decimal("2.50")]
    return TensorDict.from_pandas(frame(a=values))


@scenario(
    reason="the release gives numbers without a unit, all to every row",
    ours=lambda td: td[1]["a"] == dt.timedelta(seconds=2),
)
def durations_of_a_frame():
    return TensorDict.from_pandas(frame(a=pandas().to_timedelta([1, 2], unit="s")))


@scenario(reason=KEPT, ours=lambda td: td["a"] == [[1, 2], [3]])
def ragged_lists_of_a_frame():
    return TensorDict.from_pandas(frame(a=[[1, 2], [3]]))


@scenario(reason=KEPT, ours=lambda td: td["a"] == [True, None])
def nullable_truth_values_of_a_frame():
    return TensorDict.from_pandas(frame(a=pandas().array([True, None], "boolean")))


@scenario
def timestamps_of_a_frame():
    times = pandas().to_datetime(["2020-01-01", "2021-01-01"])
    return TensorDict.from_pandas(frame(a=times, b=times.as_unit("s")))


@scenario(
    reason="the release gives the least integer",
    ours=lambda error: isinstance(error, ValueError) and "1 missing" in str(error),
)
def missing_timestamps_of_a_frame():
    times = pandas().to_datetime(["2020-01-01", None])
    return TensorDict.from_pandas(frame(a=times))


@scenario(reason=KEPT, ours=lambda td: str(td[1]["a"].tzinfo) == "Europe/Paris")
def time_zones_of_a_frame():
    times = pandas().to_datetime(["2020-01-01", "2021-01-01"])
    return TensorDict.from_pandas(frame(a=times.tz_localize("Europe/Paris")))


@scenario(
    reason="the release gives the codes",
    ours=lambda td: td["a"] == ["x", "y", None] and td["b"].tolist() == [20, 10, 20],
)
def categories_of_a_frame():
    pd = pandas()
    return TensorDict.from_pandas(
        frame(a=pd.Categorical(["x", "y", None]), b=pd.Categorical([20, 10, 20]))
    )


@scenario(
    reason="the release drops the index",
    ours=lambda td: list(td.keys()) == ["a", "id"] and td["id"] == ["x", "y"],
)
def a_named_index():
    pd = pandas()
    return TensorDict.from_pandas(
        pd.DataFrame({"a": [1, 2]}, index=pd.Index(["x", "y"], name="id"))
    )


@scenario
def an_index_without_a_name():
    return TensorDict.from_pandas(pandas().DataFrame({"a": [1, 2]}, index=[5, 6]))


@scenario(
    reason="the release joins the two columns",
    ours=lambda error: isinstance(error, ValueError) and "['a']" in str(error),
)
def two_columns_of_one_name():
    return TensorDict.from_pandas(pandas().DataFrame([[1, 2]], columns=["a", "a"]))


@scenario
def a_frame_of_numbers():
    return shown(numbers().to_pandas(separator="."))


@scenario
def a_frame_of_dtypes():
    pandas()
    leaves = {
        str(dtype)[6:]: torch.ones(2).to(dtype)
        for dtype in (
            *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint64),
            *(torch.float16, torch.float64, torch.complex64),
        )
    }
    df = TensorDict(leaves, batch_size=[2]).to_pandas()
    return [(name, str(df[name].dtype)) for name in df.columns]


@scenario
def a_dtype_that_frames_lack():
    pandas()
    return TensorDict(a=torch.ones(2, dtype=torch.bfloat16), batch_size=[2]).to_pandas()


@scenario
def a_frame_without_a_separator():
    pandas()
    return numbers().to_pandas()


@scenario
def a_tensor_that_is_no_column():
    pandas()
    return TensorDict(a=torch.ones(2, 3), batch_size=[2]).to_pandas()


@scenario
def a_batch_that_is_no_column():
    pandas()
    return TensorDict(a=torch.ones(2, 3), batch_size=[2, 3]).to_pandas()


@scenario(message=False)  # it has the number of the ragged dim
def a_jagged_tensor_is_no_column():
    pandas()
    rows = [torch.ones(2), torch.ones(3)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    return TensorDict(a=jagged, batch_size=[2]).to_pandas()


@scenario
def values_of_rows_become_columns():
    pandas()
    td = TensorDict(a=["x", "y"], b="z", c=torch.ones(2), batch_size=[2])
    df = td.to_pandas()
    return df["a"].tolist(), df["b"].tolist()


@scenario
def rows_of_a_collection_without_a_batch():
    pandas()
    return shown(TensorDict(a=torch.arange(3), b=torch.zeros(3)).to_pandas())


@scenario
def a_collection_without_rows_or_a_batch():
    pandas()
    return TensorDict(a=torch.zeros(())).to_pandas()


@scenario
def lengths_that_differ():
    pandas()
    return TensorDict(a=torch.zeros(2), b=torch.zeros(3)).to_pandas()


@scenario
def frames_of_other_collections():
    pandas()
    stack = lazy_stack([TensorDict(a=torch.tensor(at)) for at in range(2)])
    view = TensorDict(a=torch.arange(4), batch_size=[4])._get_sub_tensordict(
        slice(1, 3)
    )
    point = Point(x=torch.arange(2), y=torch.ones(2), batch_size=[2])
    params = TensorDictParams(TensorDict(a=torch.zeros(2)))
    return [shown(td.to_pandas()) for td in (stack, view, point, params)]


@scenario
def a_nested_tensorclass_is_a_column():
    pandas()
    point = Point(x=torch.arange(2), y=torch.ones(2), batch_size=[2])
    td = TensorDict(p=point, batch_size=[2])
    df = td.to_pandas()
    wide = Point(x=torch.ones(2, 3), y=torch.ones(2), batch_size=[2])
    wide = TensorDict(p=wide, batch_size=[2]).to_pandas(separator=".")
    return (
        type(df["p"][0]).__name__,
        df["p"][1].x,
        shown(td.to_pandas(separator=".")),
        type(wide["p"][0]).__name__,
    )


@scenario(
    reason="the release leaves one of them out",
    ours=lambda error: isinstance(error, ValueError) and "['a.b']" in str(error),
)
def two_entries_of_one_name():
    pandas()
    td = TensorDict({"a": {"b": torch.zeros(2)}, "a.b": torch.ones(2)}, batch_size=[2])
    return td.to_pandas(separator=".")


@scenario(
    reason="the release leaves the key out",
    ours=lambda error: isinstance(error, ValueError) and "['b']" in str(error),
)
def a_key_that_some_members_lack():
    pandas()
    members = [TensorDict(a=torch.ones(()), b=1), TensorDict(a=torch.ones(()))]
    return LazyStackedTensorDict(*members).to_pandas()


# CSV -----------------------------------------------------------------------------------


@scenario
def numbers_of_csv(tmp_path):
    pandas()
    text = "a,b,c,d\n1,2.5,True,18446744073709551615\n2,0.1,False,0\n"
    path = csv(tmp_path, text)
    return from_csv(path), TensorDict.from_csv(str(path), dtype=torch.float32)


@scenario
def missing_numbers_of_csv(tmp_path):
    pandas()
    return from_csv(csv(tmp_path, "a,b,c\n1,0.5,\n,,\nNA,nan,\n"))


@scenario
def exact_numbers_of_csv(tmp_path):
    pandas()
    text = "a\n0.1\n1e-320\n1.7976931348623157e308\n123456789.123456789\n"
    return from_csv(csv(tmp_path, text))["a"].tolist()


@scenario
def options_of_csv(tmp_path):
    pandas()
    path = csv(tmp_path, "a;n.b;d\n1;2;2024-01-01\n3;4;2025-01-01\n")
    return (
        from_csv(path, sep=";", usecols=["a", "n.b"], separator="."),
        from_csv(path, sep=";", nrows=1, parse_dates=["d"]),
        from_csv(path, sep=";", skiprows=2, names=["x", "y", "z"], usecols=["x", "y"]),
    )


@scenario
def an_option_that_pandas_lacks(tmp_path):
    pandas()
    return from_csv(csv(tmp_path, "a\n1\n"), nonsense=1)


@scenario
def pieces_of_csv(tmp_path):
    pandas()
    return from_csv(csv(tmp_path, "a\n1\n"), chunksize=1)


@scenario
def a_missing_file_of_csv(tmp_path):
    pandas()
    return from_csv(tmp_path / "missing.csv")


@scenario(
    reason="the release gives numbers: 7, and nothing for NA and null",
    ours=lambda td: (
        (td["a"], td["b"], td["c"])
        == (["007", "08"], ["NA", "x"], ["null", "2024-01-01"])
    ),
)
def texts_like_numbers_of_csv(tmp_path):
    pandas()
    return from_csv(csv(tmp_path, "a,b,c\n007,NA,null\n08,x,2024-01-01\n"))


@scenario(
    reason="the release rounds the integers",
    ours=lambda td: (
        td["a"].tolist() == [2**53 + 1, 0]
        and td["_mask", "a"].tolist() == [True, False]
    ),
)
def integers_of_csv_beyond_doubles(tmp_path):
    pandas()
    path = csv(tmp_path, "a,b\n9007199254740993,1\n,2\n")
    try:
        return from_csv(path, nulls="mask")
    except TypeError:
        return from_csv(path)


@scenario
def a_file_of_csv(tmp_path):
    pandas()
    path = tmp_path / "data.csv"
    td = numbers()
    returned = td.to_csv(path, separator=".")
    td.select("a").to_csv(tmp_path / "b.csv", sep=";")
    return returned, path.read_text(), from_csv(path, separator=".")


@scenario
def csv_of_exact_numbers(tmp_path):
    pandas()
    values = torch.tensor(
        [0.1, float("nan"), float("inf"), 1e-320], dtype=torch.float64
    )
    td = TensorDict(a=values, b=values.float(), batch_size=[4])
    td.to_csv(tmp_path / "data.csv")
    return from_csv(tmp_path / "data.csv")["a"].tolist(), (
        tmp_path / "data.csv"
    ).read_text()


@scenario
def csv_of_texts(tmp_path):
    pandas()
    td = TensorDict(a=['x,"y"', "é\nb"], b=[None, "007"], batch_size=[2])
    td.to_csv(tmp_path / "data.csv")
    return (tmp_path / "data.csv").read_text()


@scenario
def csv_without_a_separator(tmp_path):
    pandas()
    return numbers().to_csv(tmp_path / "data.csv")


@scenario
def csv_of_rows_of_features(tmp_path):
    pandas()
    return TensorDict(a=torch.ones(2, 3), batch_size=[2]).to_csv(tmp_path / "data.csv")


@scenario(
    reason="the release writes the text of the objects",
    ours=lambda error: isinstance(error, TypeError) and "class bytes" in str(error),
)
def csv_of_bytes(tmp_path):
    pandas()
    td = TensorDict(a=NonTensorStack(b"x", b"y"), batch_size=[2])
    return td.to_csv(tmp_path / "data.csv")


@scenario
def csv_in_a_folder_that_is_not_there(tmp_path):
    pandas()
    try:
        numbers().select("a").to_csv(tmp_path / "missing" / "data.csv")
    except OSError:
        return "OSError"


# JSON ----------------------------------------------------------------------------------


@scenario
def numbers_of_json(tmp_path):
    pandas()
    text = '[{"a":1,"b":2.5,"c":true},{"a":2,"b":0.1,"c":false}]'
    return from_json(json(tmp_path, text)), TensorDict.from_json(
        json(tmp_path, text), dtype=torch.float32, device="cpu"
    )


@scenario
def lines_of_json(tmp_path):
    pandas()
    return from_json(json(tmp_path, '{"a":1}\n{"a":2}\n'), lines=True)


@scenario
def missing_numbers_of_json(tmp_path):
    pandas()
    return from_json(json(tmp_path, '[{"a":1,"b":null},{"b":0.5}]'))


@scenario
def exact_numbers_of_json(tmp_path):
    pandas()
    text = '[{"a":0.1,"b":18446744073709551615},{"a":123456789.123456789,"b":1}]'
    return from_json(json(tmp_path, text))


@scenario
def columns_of_json(tmp_path):
    pandas()
    return (
        from_json(json(tmp_path, '{"a":[1,2],"b":[0.5,1.5]}')),
        from_json(json(tmp_path, '{"a":{"0":1,"1":2}}')),
    )


@scenario
def nested_names_of_json(tmp_path):
    pandas()
    return from_json(json(tmp_path, '[{"a.b":1}]'), separator=".")


@scenario
def no_records_of_json(tmp_path):
    pandas()
    return from_json(json(tmp_path, "[]"))


@scenario
def half_a_file_of_json(tmp_path):
    pandas()
    try:
        from_json(json(tmp_path, "[{"))
    except ValueError:
        return "ValueError"


@scenario(
    reason="the release gives numbers",
    ours=lambda td: (td["a"], td["date"], td["c"]) == (["007"], ["2024-01-01"], ["1"]),
)
def texts_like_numbers_of_json(tmp_path):
    pandas()
    text = '[{"a":"007","date":"2024-01-01","c":"1"}]'
    return from_json(json(tmp_path, text))


@scenario(reason=KEPT, ours=lambda td: td["a"] == [{"b": 1}, {"b": 2}])
def objects_of_json(tmp_path):
    pandas()
    return from_json(json(tmp_path, '[{"a":{"b":1}},{"a":{"b":2}}]'))


@scenario(
    reason="the release gives all lists to every row",
    ours=lambda td: td["a"].tolist() == [[1, 2], [3, 4]] and td["b"] == [[1], [2, 3]],
)
def lists_of_json(tmp_path):
    pandas()
    return from_json(json(tmp_path, '[{"a":[1,2],"b":[1]},{"a":[3,4],"b":[2,3]}]'))


@scenario
def a_file_of_json(tmp_path):
    pandas()
    path = tmp_path / "data.json"
    td = numbers().exclude("b")
    td.to_json(path, separator=".")
    td.select("a").to_json(tmp_path / "lines", lines=True)
    return (
        path.read_text(),
        (tmp_path / "lines").read_text(),
        from_json(path, separator="."),
    )


@scenario(
    reason="the release rounds floating point to ten digits",
    ours=lambda texts: texts[1] == [0.1, 1e-320, 123456789.12345679],
)
def json_of_exact_numbers(tmp_path):
    pandas()
    values = torch.tensor([0.1, 1e-320, 123456789.12345679], dtype=torch.float64)
    TensorDict(a=values, batch_size=[3]).to_json(tmp_path / "a.json")
    return "a", from_json(tmp_path / "a.json")["a"].tolist()


@scenario(
    reason="the release writes null",
    ours=lambda error: isinstance(error, ValueError) and "'a'" in str(error),
)
def json_of_infinity(tmp_path):
    pandas()
    td = TensorDict(a=torch.tensor([float("inf")]), batch_size=[1])
    td.to_json(tmp_path / "a.json")


# Parquet -------------------------------------------------------------------------------


@scenario
def numbers_of_parquet(tmp_path):
    pa = arrow()
    path = parquet(
        tmp_path,
        a=[1, 2],
        b=[True, False],
        c=pa.array([2**64 - 1, 0], pa.uint64()),
        d=pa.array(np.array([1, 2], np.float16)),
        e=pa.array([0.5, 1.5], pa.float32()),
    )
    return from_parquet(path), TensorDict.from_parquet(
        path, columns=["e", "a"], dtype=torch.float64
    )


@scenario
def missing_numbers_of_parquet(tmp_path):
    pa = arrow()
    return from_parquet(
        parquet(
            tmp_path,
            a=[1, None],
            b=[0.5, None],
            c=pa.array([1, None], pa.float32()),
            d=pa.array([1, None], pa.int8()),
        )
    )


@scenario
def rows_of_features_of_parquet(tmp_path):
    pa = arrow()
    return from_parquet(
        parquet(
            tmp_path,
            a=pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
            b=pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 2, 3))),
        )
    )


@scenario
def values_of_parquet(tmp_path):
    arrow()
    values = {
        "text": ["x", None],
        "bytes": [b"x", b"y"],
        "decimal": [decimal.Decimal("1.10"), decimal.Decimal("2.50")],
        "date": [dt.date(2020, 1, 1), dt.date(2021, 1, 1)],
        "duration": [dt.timedelta(1), dt.timedelta(2)],
        "none": [None, None],
    }
    td = from_parquet(parquet(tmp_path, **values))
    return {key: td.get(key).tolist() for key in values}, td[1]["bytes"]


@scenario
def categories_of_parquet(tmp_path):
    pa = arrow()
    texts = pa.array(["x", "y", "x"]).dictionary_encode()
    return from_parquet(parquet(tmp_path, a=texts)).get("a").tolist()


@scenario
def timestamps_of_parquet(tmp_path):
    pa = arrow()
    return from_parquet(parquet(tmp_path, a=pa.array([5, 6], pa.timestamp("us"))))


@scenario(
    reason="the release forgets the time zone",
    ours=lambda td: str(td[0]["a"].tzinfo) == "Europe/Paris",
)
def time_zones_of_parquet(tmp_path):
    pa = arrow()
    times = pa.array([5, 6], pa.timestamp("us", "Europe/Paris"))
    return from_parquet(parquet(tmp_path, a=times))


@scenario(
    reason="the release gives the least integer",
    ours=lambda error: isinstance(error, ValueError) and "'a'" in str(error),
)
def missing_timestamps_of_parquet(tmp_path):
    pa = arrow()
    return from_parquet(parquet(tmp_path, a=pa.array([5, None], pa.timestamp("us"))))


@scenario(reason=KEPT, ours=lambda td: td["a"] == [True, None])
def nullable_truth_values_of_parquet(tmp_path):
    return from_parquet(parquet(tmp_path, a=[True, None]))


@scenario(
    reason="the release gives a list of tensors, and a list of dictionaries",
    ours=lambda td: td["a"].is_nested and td["b", "x"].tolist() == [1, 2],
)
def lists_and_structs_of_parquet(tmp_path):
    return from_parquet(parquet(tmp_path, a=[[1, 2], [3]], b=[{"x": 1}, {"x": 2}]))


@scenario
def options_of_parquet(tmp_path):
    path = parquet(tmp_path, a=[1, 2, 3], b=[4, 5, 6])
    return (
        from_parquet(path, filters=[("a", ">", 1)]),
        from_parquet(path, use_threads=False, batch_size=[]),
    )


@scenario
def a_missing_file_of_parquet(tmp_path):
    arrow()
    return from_parquet(tmp_path / "missing.parquet")


@scenario
def the_index_of_parquet(tmp_path):
    pd = pandas()
    arrow()
    index = pd.Index([3, 4], name="id")
    pd.DataFrame({"a": [1, 2]}, index=index).to_parquet(tmp_path / "a")
    pd.DataFrame({"a": [1, 2]}, index=[5, 6]).to_parquet(tmp_path / "b")
    return from_parquet(tmp_path / "a"), from_parquet(tmp_path / "b")


@scenario
def a_file_of_parquet(tmp_path):
    arrow()
    from pyarrow import parquet as files

    path = tmp_path / "data.parquet"
    returned = numbers().to_parquet(path, separator=".", compression="zstd")
    return (
        returned,
        files.read_table(path).to_pydict(),
        from_parquet(path, separator="."),
    )


@scenario(
    reason="the release refuses dims of features",
    ours=lambda td: td["a"].shape == (2, 3),
)
def parquet_of_rows_of_features(tmp_path):
    arrow()
    TensorDict(a=torch.ones(2, 3), batch_size=[2]).to_parquet(tmp_path / "a")
    return from_parquet(tmp_path / "a")
