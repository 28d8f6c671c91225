"""MDS: datasets that MosaicML's streaming writes and reads."""

import json
import sys

import numpy as np
import pytest
import torch

from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    from_mds,
    lazy_stack,
    tensorclass,
    to_mds,
)

streaming = pytest.importorskip("streaming")

# Streaming leaves it to the collector to close the files that it unpacks.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CARRIED = (
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
)
REFUSED = (torch.bfloat16, torch.complex64, torch.float8_e4m3fn)


@tensorclass
class Pet:
    age: torch.Tensor
    name: str


def columns_of(folder):
    shard = json.loads((folder / "index.json").read_text())["shards"][0]
    return dict(zip(shard["column_names"], shard["column_encodings"], strict=True))


@pytest.mark.parametrize("dtype", CARRIED, ids=str)
def test_dtypes_come_back(dtype, tmp_path):
    td = TensorDict(
        {
            "scalar": torch.tensor([3, 5]).to(dtype),
            "array": torch.arange(12).view(2, 3, 2).to(dtype),
        },
        [2],
    )
    td.to_mds(out=str(tmp_path / "d"))
    found = from_mds(tmp_path / "d")
    assert found.batch_size == (2,)
    for key, value in td.items():
        assert found[key].dtype == dtype
        assert torch.equal(found[key], value)


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
@pytest.mark.parametrize("shape", [(2,), (2, 3)])
def test_other_dtypes_are_refused_by_name(dtype, shape, tmp_path):
    td = TensorDict(
        n={"a": torch.zeros(shape).to(dtype)}, b=torch.zeros(2), batch_size=[2]
    )
    with pytest.raises(TypeError, match=f"{dtype}.*'n', 'a'"):
        to_mds(td, out=str(tmp_path / "d"))
    assert not (tmp_path / "d").exists()


def test_truth_values_are_numbers_and_arrays_of_them_refused(tmp_path):
    done = torch.tensor([True, False])
    TensorDict(a=done, batch_size=[2]).to_mds(out=str(tmp_path / "d"))
    assert torch.equal(from_mds(tmp_path / "d")["a"], done.long())
    td = TensorDict(a=done[:, None], batch_size=[2])
    with pytest.raises(TypeError, match=r"torch.bool at 'a'.*in arrays.*pkl"):
        td.to_mds(out=str(tmp_path / "e"))
    td.to_mds(out=str(tmp_path / "e"), columns={"a": "pkl"})
    with pytest.raises(ValueError, match="unsafe"):
        from_mds(tmp_path / "e")
    found = from_mds(tmp_path / "e", allow_unsafe_types=True)
    assert torch.equal(found["a"], done[:, None])


def test_values_come_back_row_by_row(tmp_path):
    td = TensorDict(
        {
            "text": NonTensorStack("007", "Fidö"),
            "bytes": NonTensorStack(b"\x00", b""),
            "list": NonTensorStack([1, {"a": None}], []),
            "same": NonTensorData("all", batch_size=[2]),
            "array": NonTensorStack(np.arange(3), np.arange(3) + 1),
        },
        [2],
    )
    td.to_mds(out=str(tmp_path / "d"))
    found = from_mds(tmp_path / "d")
    for key in ("text", "bytes", "list"):
        assert list(found[key]) == list(td[key])
    assert list(found["same"]) == ["all", "all"]
    assert torch.equal(found["array"], torch.tensor([[0, 1, 2], [1, 2, 3]]))


@pytest.mark.parametrize(
    "values",
    [
        ("x", None),
        (1, "x"),
        (1, 2.5),
        ((1,), (2,)),
        ({1}, {2}),
        ([(1,)], [2]),
        ([{1: 2}], []),
        (None, None),
        (np.array([True]), np.array([False])),
    ],
    ids=str,
)
def test_values_that_mds_would_change_are_refused(values, tmp_path):
    td = TensorDict(
        n={"v": NonTensorStack(*map(NonTensorData, values))}, batch_size=[2]
    )
    with pytest.raises(TypeError, match=r"\('n', 'v'\)"):
        td.to_mds(out=str(tmp_path / "d"))
    assert list(tmp_path.iterdir()) == []


def test_nested_keys_are_joined_by_dots(tmp_path):
    td = TensorDict(
        n={"a": torch.ones(2), "m": {"b": torch.zeros(2, 1)}}, batch_size=[2]
    )
    td.to_mds(out=str(tmp_path / "d"))
    assert columns_of(tmp_path / "d") == {"n.a": "float32", "n.m.b": "ndarray"}
    assert (from_mds(tmp_path / "d") == td).all()
    flat = from_mds(tmp_path / "d", separator=None, columns=["n.a"])
    assert list(flat.keys()) == ["n.a"]
    dotted = TensorDict(n={"a.b": torch.ones(2)}, batch_size=[2])
    with pytest.raises(ValueError, match="'a.b'"):
        dotted.to_mds(out=str(tmp_path / "e"))


def ragged():
    return lazy_stack([TensorDict(a=torch.arange(n), s=f"row {n}") for n in (2, 3)])


@pytest.mark.parametrize(
    "td",
    [
        ragged(),
        lazy_stack([TensorDict(a=torch.arange(2.0)), TensorDict(a=torch.ones(2))]),
        Pet(age=torch.tensor([3, 9]), name="Rex", batch_size=[2]),
        TensorDict(a=torch.zeros(3, 2), batch_size=[3])[1:],
        TensorDict(a=torch.zeros(3, 2), batch_size=[3])._get_sub_tensordict(
            slice(1, 3)
        ),
        TensorDict(
            a=torch.zeros(2, requires_grad=True), batch_size=[2]
        ).to_tensordict(),
        TensorDict(a=torch.zeros(2, 3), batch_size=[2, 3]),
        TensorDict(a=torch.zeros(2, 2)),
    ],
    ids=["ragged", "stack", "class", "slice", "view", "grad", "two dims", "no dims"],
)
def test_all_collections(td, tmp_path):
    td.to_mds(out=str(tmp_path / "d"))
    rows = td.unbind(0) if td.batch_dims else [td]
    found = from_mds(tmp_path / "d")
    assert len(found) == len(rows)
    samples = streaming.StreamingDataset(
        local=str(tmp_path / "d"), batch_size=1, shuffle=False
    )
    for at, row in enumerate(rows):
        other = found[at]
        for key in row.keys():
            value = row.get(key)
            if isinstance(value, torch.Tensor):
                assert torch.equal(other[key], value)
                assert np.array_equal(samples[at][key], value.detach().numpy())
            else:
                value = getattr(value, "data", value)
                assert other[key] == value == samples[at][key]


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_nested_tensors(layout, tmp_path):
    rows = [torch.arange(6).view(3, 2), torch.arange(2).view(1, 2)]
    td = TensorDict(a=torch.nested.nested_tensor(rows, layout=layout), batch_size=[2])
    td.to_mds(out=str(tmp_path / "d"))
    found = from_mds(tmp_path / "d")["a"]
    assert found.layout is torch.jagged
    assert all(map(torch.equal, found.unbind(), rows))


def test_arrays_of_several_shapes_are_values(tmp_path):
    rows = [torch.zeros(2, 3), torch.ones(3, 2)]
    td = lazy_stack([TensorDict(a=row) for row in rows])
    td.to_mds(out=str(tmp_path / "d"))
    found = from_mds(tmp_path / "d")
    assert all(np.array_equal(found[at]["a"], row) for at, row in enumerate(rows))


def test_options_of_the_writer(tmp_path):
    td = TensorDict(a=torch.arange(400).view(20, 20), batch_size=[20])
    td.to_mds(
        out=str(tmp_path / "d"), compression="zstd:3", hashes=["sha1"], size_limit=1000
    )
    assert len(list((tmp_path / "d").glob("*.zstd"))) > 1
    assert (from_mds(tmp_path / "d", validate_hash="sha1") == td).all()
    pair = (str(tmp_path / "here"), str(tmp_path / "there"))
    td.to_mds(out=pair, keep_local=True)
    found = from_mds(tmp_path / "cache", remote=pair[1])
    assert (found == td).all()
    with pytest.raises(FileExistsError):
        td.to_mds(out=str(tmp_path / "d"))
    assert (from_mds(tmp_path / "d") == td).all()


def test_a_part_of_the_columns(tmp_path):
    td = TensorDict(
        a=torch.ones(2), b=torch.zeros(2, dtype=torch.bfloat16), batch_size=[2]
    )
    td.to_mds(out=str(tmp_path / "d"), columns={"a": "float32"})
    assert list(from_mds(tmp_path / "d").keys()) == ["a"]
    with pytest.raises(KeyError, match="'c'"):
        td.to_mds(out=str(tmp_path / "e"), columns={"c": "int"})
    with pytest.raises(KeyError, match="'z'"):
        from_mds(tmp_path / "d", columns=["z"])


def test_a_write_that_fails_leaves_nothing(tmp_path):
    td = TensorDict(a=torch.ones(2, 2), batch_size=[2])
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with pytest.raises(AttributeError):
            td.to_mds(out=str(tmp_path / name), columns={"a": "int"})
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_writer_of_ones_own(tmp_path):
    td = TensorDict(a=torch.arange(2), batch_size=[2])
    for finish in (None, True):
        out = str(tmp_path / str(finish))
        writer = streaming.MDSWriter(out=out, columns={"a": "int"})
        td.to_mds(out=out, writer=writer, finish_writer=False)
        td[0].to_mds(out=out, writer=writer)
        if finish is None:
            with pytest.warns(FutureWarning, match="finish_writer=True or False"):
                td.to_mds(out=out, writer=writer)
        else:
            td.to_mds(out=out, writer=writer, finish_writer=finish)
        assert from_mds(out)["a"].tolist() == [0, 1, 0, 0, 1]


def test_what_is_refused(tmp_path):
    out = str(tmp_path / "d")
    with pytest.raises(ValueError, match="row"):
        TensorDict(a=torch.zeros(0), batch_size=[0]).to_mds(out=out)
    with pytest.raises(ValueError, match="entry"):
        TensorDict(batch_size=[2]).to_mds(out=out)
    stack = lazy_stack([TensorDict(a=torch.zeros(1)), TensorDict(b=torch.zeros(1))])
    with pytest.raises(ValueError, match=r"\['a'\].*\['b'\]"):
        stack.to_mds(out=out)
    with pytest.raises(TypeError, match="collection"):
        to_mds({"a": 1}, out=out)
    with pytest.raises(FileNotFoundError, match="index.json"):
        from_mds(out)
    with pytest.raises(ValueError, match="local="):
        from_mds()
    assert list(tmp_path.iterdir()) == []


def test_arrays_without_elements_are_refused(tmp_path):
    out = str(tmp_path / "d")
    td = TensorDict(n={"a": torch.zeros(2, 0, 3)}, batch_size=[2])
    with pytest.raises(ValueError, match=r"\(0, 3\) at \('n', 'a'\)"):
        td.to_mds(out=out)
    td = lazy_stack([TensorDict(a=torch.zeros(1)), TensorDict(a=torch.zeros(0))])
    with pytest.raises(ValueError, match=r"\(0,\) at 'a'"):
        td.to_mds(out=out)
    assert list(tmp_path.iterdir()) == []


def test_without_streaming_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "streaming", None)
    monkeypatch.setitem(sys.modules, "streaming.base", None)
    td = TensorDict(a=torch.zeros(1), batch_size=[1])
    for call in (lambda: td.to_mds(out="/nowhere"), lambda: from_mds("/nowhere")):
        with pytest.raises(ImportError, match=r"streaming.*tensordict-rs\[mds\]"):
            call()
