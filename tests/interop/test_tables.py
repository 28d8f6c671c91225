"""Tables of every kind: what holds for all of them.

What the release answers is in ``tests/scenarios/chapter_tables.py``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    TypedTensorDict,
    UnbatchedTensor,
    from_any,
    lazy_stack,
    tensorclass,
)

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")

KINDS = ["pandas", "polars", "csv", "json", "parquet"]
FILES = ["csv", "json", "parquet"]


@tensorclass
class Sample:
    a: Any
    n: Any
    s: Any = None


class Typed(TypedTensorDict):
    a: torch.Tensor
    s: Any


def nested(rows: int = 3) -> TensorDict:
    return TensorDict(
        a=torch.arange(rows),
        n={"b": torch.arange(rows).double() / 7, "t": [f"t{at}" for at in range(rows)]},
        s=[f"s {at}" for at in range(rows)],
        batch_size=[rows],
    )


def through(
    kind: str, td: Any, tmp_path: Any, cls: Any = TensorDict, **how: Any
) -> Any:
    """Return the collection that comes back from a table that a collection went to."""
    if kind in FILES:
        path = tmp_path / f"table.{kind}"
        getattr(td, f"to_{kind}")(path, separator=".")
        return getattr(cls, f"from_{kind}")(path, separator=".", **how)
    table = getattr(td, f"to_{kind}")(separator=".")
    return getattr(cls, f"from_{kind}")(table, separator=".", **how)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def same(found: Any, expected: Any) -> bool:
    if list(found.keys(True, True)) != list(expected.keys(True, True)):
        return False
    return bool((found == expected).all())


def test_a_table_gives_back_what_it_was_made_of(kind, tmp_path):
    td = nested()
    back = through(kind, td, tmp_path)
    assert back.batch_size == td.batch_size
    assert same(back, td)
    assert back[1]["s"] == "s 1"
    assert back["n", "b"].dtype == torch.float64


@pytest.mark.parametrize(
    "make",
    [
        lambda td: lazy_stack([*td.unbind(0)]),
        lambda td: td._get_sub_tensordict(slice(None)),
        lambda td: Sample.from_tensordict(td),
        lambda td: td.memmap(),
        lambda td: TensorDictParams(td, no_convert=True),
        lambda td: td.lock_(),
        lambda td: td.exclude("n", "s").to_lazystack(0),
    ],
    ids=["lazy", "view", "tensorclass", "mapped", "params", "locked", "lazy-numbers"],
)
def test_every_collection_becomes_a_table(kind, make, tmp_path):
    td = make(nested())
    back = through(kind, td, tmp_path)
    assert back["a"].tolist() == [0, 1, 2]
    if "s" in td.keys():
        assert back["s"] == ["s 0", "s 1", "s 2"]
        assert back["n", "t"] == ["t0", "t1", "t2"]


def test_fields_and_declared_keys_are_filled(kind, tmp_path):
    back = through(kind, nested(), tmp_path, Sample)
    assert type(back) is Sample
    assert back.n["t"] == ["t0", "t1", "t2"]
    assert back[2].s == "s 2"
    typed = through(kind, nested().exclude("n"), tmp_path, Typed)
    assert type(typed) is Typed
    assert typed.a.tolist() == [0, 1, 2]
    assert type(through(kind, nested(), tmp_path, LazyStackedTensorDict)) is TensorDict


def test_options_of_reading(kind, tmp_path):
    td = TensorDict(a=torch.arange(3), b=torch.ones(3).double(), batch_size=[3])
    assert through(kind, td, tmp_path, dtype=torch.float32)["a"].dtype is torch.float32
    assert through(kind, td, tmp_path, batch_size=[]).batch_size == ()
    assert through(kind, td, tmp_path, device="cpu").device == torch.device("cpu")
    auto = through(kind, td, tmp_path, auto_batch_size=True, batch_dims=1)
    assert auto.batch_size == (3,)
    with pytest.warns(FutureWarning, match="ignores batch_dims=0"):
        through(kind, td, tmp_path, batch_dims=0)
    with pytest.raises(TypeError, match="Conflicting batch sizes"):
        through(kind, td, tmp_path, auto_batch_size=True, batch_size=[3])
    with pytest.raises(ValueError, match="nulls must be one of"):
        through(kind, td, tmp_path, nulls="drop")
    with pytest.raises(ValueError, match="got a mask_key but nulls=None"):
        through(kind, td, tmp_path, mask_key="m")
    with pytest.raises(TypeError, match=r"dtype must be a torch\.dtype"):
        through(kind, td, tmp_path, dtype="float32")


def with_nulls(kind: str, tmp_path: Any, **how: Any) -> TensorDict:
    """A table with a null in each column."""
    made = {
        "i": pa.array([2**53 + 1, None]),
        "f": pa.array([0.5, None]),
        "b": pa.array([True, None]),
        "s": pa.array(["x", None]),
    }
    table = pa.table({name: made[name] for name in how.pop("names", made)})
    if kind == "pandas":
        return TensorDict.from_pandas(
            table.to_pandas(types_mapper=pd.ArrowDtype), **how
        )
    if kind == "polars":
        return TensorDict.from_polars(pl.DataFrame(table), **how)
    path = tmp_path / f"nulls.{kind}"
    if kind == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, path)
        return TensorDict.from_parquet(path, **how)
    frame = pl.DataFrame(table)
    if kind == "csv":
        frame.write_csv(path)
        return TensorDict.from_csv(path, skip_blank_lines=False, **how)
    frame.write_json(path)
    return TensorDict.from_json(path, **how)


def test_nulls_are_an_error_where_the_caller_says_so(kind, tmp_path):
    for name in "ifbs":
        with pytest.raises(ValueError, match=f"{name}.*has 1 null"):
            with_nulls(kind, tmp_path, names=[name], nulls="raise")


def test_nulls_are_filled(kind, tmp_path):
    td = with_nulls(kind, tmp_path, nulls="fill")
    assert td["i"].tolist() == [2**53 + 1, 0]
    assert td["f"][0] == 0.5
    assert td["f"][1].isnan()
    assert td["b"].tolist() == [True, False]
    assert td["s"] == ["x", None]
    assert "_mask" not in td


def test_nulls_have_masks(kind, tmp_path):
    td = with_nulls(kind, tmp_path, nulls="mask", mask_key=("m", "k"))
    assert td["i"].tolist() == [2**53 + 1, 0]
    for name in "ifbs":
        assert td["m", "k", name].tolist() == [True, False]


def test_nulls_by_default(kind, tmp_path):
    td = with_nulls(kind, tmp_path, names=["f", "b", "s"])
    assert td["f"][1].isnan()
    assert td["b"] == [True, None]
    assert td["s"] == ["x", None]
    with pytest.raises(ValueError, match=r"'i' has 1 null.*beyond 2\*\*53"):
        with_nulls(kind, tmp_path, names=["i"])
    with pytest.raises(ValueError, match=r"'f' has 1 missing.*int64 does not hold"):
        with_nulls(kind, tmp_path, names=["f"], dtype=torch.int64)
    filled = with_nulls(kind, tmp_path, names=["f"], nulls="fill", dtype=torch.int64)
    assert filled["f"].tolist() == [0, 0]


def test_the_key_of_the_masks_may_not_be_a_column(kind, tmp_path):
    with pytest.raises(ValueError, match="under the key 'f'"):
        with_nulls(kind, tmp_path, names=["f"], nulls="mask", mask_key="f")


def test_a_name_that_is_a_prefix_is_refused(kind, tmp_path):
    td = TensorDict({"a": torch.ones(2), "a.b": torch.ones(2)}, batch_size=[2])
    with pytest.raises(ValueError, match="Key conflict: 'a'"):
        through(kind, td, tmp_path)


def test_two_entries_of_one_column_are_refused(kind, tmp_path):
    td = TensorDict({"a": {"b": torch.ones(2)}, "a.b": torch.ones(2)}, batch_size=[2])
    with pytest.raises(ValueError, match=r"several columns of the names \['a.b'\]"):
        through(kind, td, tmp_path)


def test_dots_in_names_stay_without_a_separator(kind, tmp_path):
    td = TensorDict({"b.c": torch.ones(2).double(), "a": torch.arange(2)}, [2])
    if kind in FILES:
        getattr(td, f"to_{kind}")(tmp_path / "t")
        back = getattr(TensorDict, f"from_{kind}")(tmp_path / "t")
    else:
        back = getattr(TensorDict, f"from_{kind}")(getattr(td, f"to_{kind}")())
    assert list(back.keys()) == ["b.c", "a"]
    assert same(back, td)


def test_nested_entries_need_a_separator(kind, tmp_path):
    arguments = (tmp_path / "t",) if kind in FILES else ()
    with pytest.raises(ValueError, match=rf"at key 'n'.*to_{kind}\(separator='.'\)"):
        getattr(nested(), f"to_{kind}")(*arguments)
    assert not list(tmp_path.iterdir())


def test_more_batch_dims_are_refused(kind, tmp_path):
    td = TensorDict(a=torch.ones(2, 3), batch_size=[2, 3])
    with pytest.raises(ValueError, match="one batch dimension|Cannot convert tensor"):
        through(kind, td, tmp_path)
    texts = TensorDict(a=NonTensorData("x", batch_size=[2, 3]), batch_size=[2, 3])
    with pytest.raises(ValueError, match="one batch dimension"):
        through(kind, texts, tmp_path)


def test_non_tensor_data_is_no_table(kind, tmp_path):
    for value in (NonTensorData("x", batch_size=[2]), NonTensorStack("x", "y")):
        with pytest.raises(TypeError, match="is non-tensor data"):
            through(kind, value, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.float8_e5m2])
def test_a_dtype_that_the_format_lacks_is_named(kind, dtype, tmp_path):
    td = TensorDict(x=torch.ones(2).to(dtype), batch_size=[2])
    if (kind, dtype) == ("pandas", torch.complex64):
        assert through(kind, td, tmp_path)["x"].dtype is dtype
        return
    expected = str(dtype).partition(".")[2]
    with pytest.raises((TypeError, NotImplementedError), match=rf"'x'.*{expected}"):
        through(kind, td, tmp_path)
    assert not list(tmp_path.iterdir())


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.float32,
    torch.float64,
]


@pytest.mark.parametrize("kind", ["pandas", "polars", "parquet"])
@pytest.mark.parametrize("rows", [0, 3])
def test_dtypes_stay(kind, rows, tmp_path):
    leaves = {
        str(dtype)[6:]: torch.tensor([0, 1, 1][:rows]).to(dtype) for dtype in DTYPES
    }
    td = TensorDict(leaves, batch_size=[rows])
    back = through(kind, td, tmp_path)
    assert [leaf.dtype for leaf in back.values()] == DTYPES
    assert [leaf.tolist() for leaf in back.values()] == [
        leaf.tolist() for leaf in td.values()
    ]


def test_large_integers_are_exact(kind, tmp_path):
    td = TensorDict(
        i=torch.tensor([2**63 - 1, -(2**63)]),
        u=torch.tensor([2**64 - 1, 2**63 + 1], dtype=torch.uint64),
        batch_size=[2],
    )
    back = through(kind, td, tmp_path)
    assert back["i"].tolist() == [2**63 - 1, -(2**63)]
    assert back["u"].tolist() == [2**64 - 1, 2**63 + 1]


def test_floats_are_exact(kind, tmp_path):
    torch.manual_seed(0)
    values = torch.randn(200, dtype=torch.float64) * 10 ** torch.randint(
        -300, 300, (200,)
    )
    values[:3] = torch.tensor([1e-320, 0.1, float("nan")])
    td = TensorDict(d=values, f=values.float().nan_to_num(), batch_size=[200])
    if kind == "json":
        td["f"] = td["f"].clamp(-1e30, 1e30)
    back = through(kind, td, tmp_path)
    assert torch.equal(back["d"].nan_to_num(7), values.nan_to_num(7))
    assert torch.equal(back["f"].float(), td["f"])


@pytest.mark.parametrize("kind", ["polars", "json", "parquet"])
def test_dims_of_features_stay(kind, tmp_path):
    td = TensorDict(
        a=torch.arange(12.0).view(2, 3, 2).double(),
        b=torch.arange(4).view(2, 2).t(),
        c=torch.tensor([[True], [False]]),
        batch_size=[2],
    )
    assert same(through(kind, td, tmp_path), td)


def test_texts_that_look_like_something_else(kind, tmp_path):
    td = TensorDict(
        zip=["007", "08"],
        day=["2024-01-01", "2024-01-02"],
        na=["NA", "x"],
        null=["null", "nan"],
        plus=["+1", "2"],
        mixed=["1", "x"],
        quotes=['a,"b"', "ä\n\r c"],
        batch_size=[2],
    )
    if kind == "csv":
        with pytest.raises(
            ValueError, match="entry 'null' of texts which read as numb"
        ):
            td.to_csv(tmp_path / "t")
        td["null"] = ["null", "x"]
    back = through(kind, td, tmp_path)
    for key, values in td.items():
        assert back[key] == values.tolist(), key


def test_bytes_and_other_values(kind, tmp_path):
    import datetime as dt
    import decimal

    values = {
        "bytes": [b"\0x", b"y"],
        "decimal": [decimal.Decimal("1.10"), decimal.Decimal("20.00")],
        "duration": [dt.timedelta(1, 2, 3), dt.timedelta(0)],
        "ragged": [[1, 2], [3]],
    }
    for key, column in values.items():
        td = TensorDict(batch_size=[2])
        td[key] = NonTensorStack(*column)
        if kind == "csv" or (kind == "json" and key != "ragged"):
            with pytest.raises(TypeError, match=f"'{key}'"):
                through(kind, td, tmp_path)
            assert not list(tmp_path.iterdir())
            continue
        back = through(kind, td, tmp_path)[key]
        if kind == "polars" and key == "ragged":
            assert [row.tolist() for row in back.unbind()] == column
        else:
            assert back == column


def test_rows_of_dates_stay_dates_in_parquet(tmp_path):
    import datetime as dt

    times = [dt.datetime(2024, 1, 2, 3), dt.datetime(2025, 1, 1)]  # noqa: DTZ001
    zone = [time.replace(tzinfo=dt.UTC) for time in times]
    td = TensorDict(
        t=NonTensorStack(*times),
        z=NonTensorStack(*zone),
        d=NonTensorStack(*(time.date() for time in times)),
        x=NonTensorStack(1, 2),
        batch_size=[2],
    )
    td.to_parquet(tmp_path / "t")
    back = TensorDict.from_parquet(tmp_path / "t")
    assert back["t"] == times
    assert back["z"] == zone
    assert back["d"] == [time.date() for time in times]
    assert back.get("x").tolist() == [1, 2]
    assert isinstance(back.get("x"), NonTensorStack)


def test_dictionaries_with_different_keys_are_refused(tmp_path):
    td = TensorDict(x=NonTensorStack({"a": 1}, {"b": 2}), batch_size=[2])
    with pytest.raises(ValueError, match="'x' are dictionaries with different keys"):
        td.to_parquet(tmp_path / "t")


def test_no_rows_and_no_columns(kind, tmp_path):
    td = TensorDict(a=torch.zeros(0), s=[], batch_size=[0])
    back = through(kind, td.select("a"), tmp_path)
    assert back.batch_size == (0,)
    if kind != "json":
        # A file without records has no names.
        assert list(back.keys()) == ["a"]
    empty = TensorDict(batch_size=[3])
    if kind == "pandas":
        assert through(kind, empty, tmp_path).batch_size == (3,)


# Files ---------------------------------------------------------------------------------


@pytest.fixture(params=FILES)
def file_kind(request):
    return request.param


def write(kind: str, td: Any, path: Any, **how: Any) -> None:
    getattr(td, f"to_{kind}")(path, **how)


def read(kind: str, path: Any, **how: Any) -> Any:
    return getattr(TensorDict, f"from_{kind}")(path, **how)


def test_a_failed_write_leaves_the_file_as_it_was(file_kind, tmp_path):
    path = tmp_path / "table"
    write(file_kind, TensorDict(a=torch.arange(2), batch_size=[2]), path)
    before = path.read_bytes()
    wrong = TensorDict(a=torch.ones(2, dtype=torch.bfloat16), batch_size=[2])
    with pytest.raises(TypeError):
        write(file_kind, wrong, path)
    with pytest.raises(TypeError):
        write(
            file_kind, TensorDict(a=torch.arange(3), batch_size=[3]), path, nonsense=1
        )
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_breaks_in_the_middle(file_kind, tmp_path, monkeypatch):
    path = tmp_path / "table"
    write(file_kind, TensorDict(a=torch.arange(2), batch_size=[2]), path)
    before = path.read_bytes()

    def broken(*_: Any, **__: Any) -> None:
        # Some bytes are there by then.
        next(tmp_path.glob(".table.*")).joinpath("table").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    def broken_pieces(*_: Any) -> Any:
        yield b"[{"
        broken()

    from pyarrow import parquet

    monkeypatch.setattr(parquet, "write_table", broken)
    monkeypatch.setattr(pd.DataFrame, "to_csv", broken)
    monkeypatch.setattr("tensordict.interop.tables.json.records", broken_pieces)
    with pytest.raises(OSError, match="No space"):
        write(file_kind, TensorDict(a=torch.arange(3), batch_size=[3]), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_modes_of_a_file_stay(file_kind, tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"")
    target.chmod(0o640)
    link.symlink_to(target)
    write(file_kind, TensorDict(a=torch.arange(2), batch_size=[2]), link)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert read(file_kind, target)["a"].tolist() == [0, 1]


def test_a_folder_that_is_not_there(file_kind, tmp_path):
    with pytest.raises(FileNotFoundError, match="non-existent directory: '.*missing'"):
        write(file_kind, nested().select("a"), tmp_path / "missing" / "table")


def test_files_that_are_not_there_or_damaged(file_kind, tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        read(file_kind, tmp_path / "missing")
    (tmp_path / "half").write_text("[{" if file_kind == "json" else "")
    with pytest.raises(ValueError):  # noqa: PT011 - the text is the library's
        read(file_kind, tmp_path / "half")


def test_open_files(file_kind):
    import io

    td = TensorDict(a=torch.arange(2), s=["x", "007"], batch_size=[2])
    file = io.BytesIO()
    write(file_kind, td, file)
    file.seek(0)
    assert same(read(file_kind, file), td)
    if file_kind != "parquet":
        text = io.StringIO()
        write(file_kind, td, text)
        text.seek(0)
        assert same(read(file_kind, text), td)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zip"])
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_compressed_files(kind, suffix, tmp_path):
    path = tmp_path / f"table.{kind}.{suffix}"
    td = TensorDict(a=torch.arange(2), s=["x", "007"], batch_size=[2])
    write(kind, td, path)
    assert same(read(kind, path), td)
    begins = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ", "zip": b"PK"}
    assert path.read_bytes().startswith(begins[suffix])


def test_without_the_library_the_error_says_what_to_install(
    kind, monkeypatch, tmp_path
):
    for name in ("pandas", "pyarrow", "pyarrow.parquet", "polars", "pyarrow.csv"):
        monkeypatch.setitem(sys.modules, name, None)
    td = nested()
    arguments: list[Any] = [tmp_path / "t"] if kind in FILES else []
    if kind != "json":
        with pytest.raises(ImportError, match=f"to_{kind} needs .*pip install"):
            getattr(td, f"to_{kind}")(*arguments, separator=".")
        with pytest.raises(ImportError, match=f"from_{kind} needs .*pip install"):
            getattr(TensorDict, f"from_{kind}")(*(arguments or [None]))
    else:
        assert same(through("json", td, tmp_path), td)


def test_arrays_of_values_and_rows_without_a_batch(kind, tmp_path):
    td = TensorDict(a=torch.arange(3), b="x")
    back = through(kind, td, tmp_path)
    assert back.batch_size == (3,)
    assert back["b"] == ["x", "x", "x"]
    with pytest.raises(ValueError, match="must be of the same length"):
        through(kind, TensorDict(a=torch.arange(3), b=torch.ones(2)), tmp_path)
    with pytest.raises(ValueError, match="scalar values"):
        through(kind, TensorDict(a=torch.ones(())), tmp_path)
    array = TensorDict(a=NonTensorData(np.ones(2), batch_size=[2]), batch_size=[2])
    if kind == "pandas":
        assert [row.tolist() for row in array.to_pandas()["a"]] == [[1.0, 1.0]] * 2


def test_a_leaf_without_rows_is_named(kind, tmp_path):
    leaf = UnbatchedTensor(torch.ones(5))
    td = TensorDict(a=torch.arange(2), u=leaf, batch_size=[2])
    with pytest.raises(ValueError, match=r"'u' of shape .*no value for each of the 2"):
        through(kind, td, tmp_path)


def test_a_layout_that_no_table_has_is_named(kind, tmp_path):
    td = TensorDict(a=torch.eye(2).to_sparse(), batch_size=[2])
    with pytest.raises(TypeError, match="'a' .* has the layout torch.sparse_coo"):
        through(kind, td, tmp_path)


def test_members_that_differ_in_shape(kind, tmp_path):
    members = [
        TensorDict(x=torch.arange(2), n={"s": "a"}),
        TensorDict(x=torch.arange(3)),
    ]
    members[1]["n", "s"] = "b"
    stack = lazy_stack(members)
    if kind in ("pandas", "csv"):
        with pytest.raises(RuntimeError, match="under the key 'x'"):
            through(kind, stack, tmp_path)
        return
    back = through(kind, stack, tmp_path)
    rows = back["x"] if kind == "json" else [row.tolist() for row in back["x"].unbind()]
    assert rows == [[0, 1], [0, 1, 2]]
    assert back["n", "s"] == ["a", "b"]


# Frames anywhere ----------------------------------------------------------------------


@pytest.fixture(params=["pandas", "polars"])
def frame(request):
    library = pytest.importorskip(request.param)
    return library.DataFrame({"a": [1, 2], "b": [1.0, 2.0], "t": ["x", "y"]})


def test_from_any_of_a_frame_is_a_collection(frame):
    for make in (TensorDict.from_any, from_any):
        td = make(frame)
        assert type(td) is TensorDict
        assert td.batch_size == (2,)
        assert (td["a"].tolist(), td["b"].tolist()) == ([1, 2], [1.0, 2.0])
        assert list(td["t"]) == ["x", "y"]
    assert TensorDict.from_any(frame, device="cpu").device.type == "cpu"
    assert TensorDict.from_any(frame, batch_size=[]).batch_size == ()
    assert TensorDict.from_any(frame, auto_batch_size=True).batch_size == (2,)


def test_a_frame_inside_is_a_nested_collection(frame):
    td = TensorDict.from_any({"x": frame, "y": torch.ones(2), "z": {"f": frame}})
    assert td.batch_size == ()
    assert td["x"].batch_size == td["z", "f"].batch_size == (2,)
    assert td["x", "a"].tolist() == td["z", "f", "a"].tolist() == [1, 2]
    auto = TensorDict.from_any({"x": frame, "y": torch.ones(2)}, auto_batch_size=True)
    assert auto.batch_size == (2,)
    assert TensorDict.from_any((frame, 3))["0", "b"].tolist() == [1.0, 2.0]
    assert TensorDict.from_dict({"x": frame})["x", "a"].tolist() == [1, 2]
    # Set as it is, it is a value.
    assert TensorDict(x=frame)["x"] is frame
