"""Datasets of xarray, both ways, with the names of dims."""

import sys

import numpy as np
import pytest
import torch

from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    from_xarray,
    lazy_stack,
    tensorclass,
    to_xarray,
)

xr = pytest.importorskip("xarray")

CARRIED = (
    *(torch.bool, torch.float16, torch.float32, torch.float64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.complex64, torch.complex128),
)


@tensorclass
class Pet:
    age: torch.Tensor
    name: str


def weather():
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), np.arange(24.0).reshape(3, 2, 4), {"units": "K"}),
            "station": ("time", np.array(["a", "b", "c"])),
            "at": ("time", np.array(["2024-01-01", "NaT", "2024-01-03"], "M8[ns]")),
        },
        coords={
            "time": ("time", np.array([10, 20, 30]), {"long": "hour"}),
            "y": [1.5, 2.5],
            "height": 2,
        },
        attrs={"source": "here"},
    )


@pytest.mark.parametrize("dtype", CARRIED, ids=str)
def test_dtypes_come_back(dtype):
    td = TensorDict(
        a=torch.tensor([0, 1]).to(dtype), b=torch.ones(2, 3).to(dtype), batch_size=[2]
    )
    dataset = to_xarray(td)
    assert dataset["b"].values.ctypes.data == td["b"].data_ptr()
    found = from_xarray(dataset)
    assert found.batch_size == (2,)
    for key, value in td.items():
        assert found[key].dtype == dtype
        assert torch.equal(found[key], value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_other_dtypes_are_refused_by_name(dtype):
    with pytest.raises(TypeError, match=rf"{dtype} at \('n', 'a'\)"):
        to_xarray(TensorDict(n={"a": torch.zeros(2).to(dtype)}))


def test_names_of_dims_are_kept():
    td = TensorDict(
        a=torch.zeros(3, 2, 4),
        b=torch.zeros(3, 2),
        batch_size=[3, 2],
        names=["time", None],
    )
    dataset = to_xarray(td, dims={"a": ["channel"]})
    assert dataset["a"].dims == ("time", "batch_1", "channel")
    found = from_xarray(dataset)
    assert found.names == ["time", None]
    assert found.batch_size == (3, 2)
    assert from_xarray(dataset.isel(time=0)[["a"]]).names == ["batch_1", "channel"]
    again = to_xarray(found)
    assert again["a"].dims == ("time", "batch_1", "channel")


def test_a_dataset_comes_back():
    td = from_xarray(weather())
    assert td.names == ["time"]
    assert td["t"].shape == (3, 2, 4)
    assert list(td["station"]) == ["a", "b", "c"]
    assert td["_coords", "time"].tolist() == [10, 20, 30]
    back = to_xarray(td)
    del back.attrs["tensordict_batch"]
    assert back.identical(weather())


def test_coordinates_follow_the_rows():
    rows = from_xarray(weather())[[2, 0]]
    back = to_xarray(rows)
    assert back["time"].values.tolist() == [30, 10]
    assert back["y"].values.tolist() == [1.5, 2.5]
    assert back["at"].values[0] == np.datetime64("2024-01-03")


def test_a_coordinate_that_does_not_fit_is_an_error():
    td = from_xarray(weather()[["t"]], batch_dims=["time", "y"])
    assert td.batch_size == (3, 2)
    with pytest.raises(ValueError, match="'y'.*_xarray"):
        to_xarray(td[:, :1])


def test_which_dims_are_those_of_the_batch():
    dataset = weather()
    assert from_xarray(dataset[["t"]]).batch_size == (3, 2, 4)
    assert from_xarray(dataset[["t"]], batch_dims=1).names == ["time"]
    assert from_xarray(dataset, batch_dims=0).batch_size == ()
    with pytest.raises(ValueError, match="batch_dims=2.*'time'"):
        from_xarray(dataset, batch_dims=2)
    with pytest.raises(ValueError, match="'y'.*'t'"):
        from_xarray(dataset, batch_dims=["y"])


def test_arrays_and_trees():
    array = weather()["t"]
    assert from_xarray(array)["t"].shape == (3, 2, 4)
    assert "data" in from_xarray(array.rename(None))
    tree = xr.DataTree.from_dict({"/a": weather(), "/b/c": weather()[["t"]]})
    td = from_xarray(tree)
    assert td["a", "t"].shape == td["b", "c", "t"].shape == (3, 2, 4)
    assert td["a"].names == ["time"]


def test_nested_collections_are_groups():
    td = TensorDict(
        {
            "a": torch.rand(3, 2),
            "n": TensorDict(b=torch.rand(3, 2, 4), batch_size=[3, 2]),
            "e": {"m": {"c": torch.ones(3)}},
        },
        [3],
        names=["row"],
    )
    tree = to_xarray(td)
    assert isinstance(tree, xr.DataTree)
    found = from_xarray(tree)
    assert (found == td).all()
    assert found.names == ["row"]
    assert found["n"].batch_size == (3, 2)
    assert found["n"].names == td["n"].names


def test_values_are_rows():
    objects = [{"k": 1}, {"k": 2}]
    td = TensorDict(
        {
            "text": NonTensorStack("007", "x"),
            "bytes": NonTensorStack(b"\x00", b"a\x00"),
            "object": NonTensorStack(*map(NonTensorData, objects)),
            "none": NonTensorStack("x", None),
            "all": NonTensorData("same", batch_size=[2]),
        },
        [2],
    )
    found = from_xarray(to_xarray(td))
    for key in ("text", "bytes", "object", "none"):
        assert list(found[key]) == list(td[key])
    assert list(found["all"]) == ["same", "same"]
    alone = TensorDict(text="x", object=NonTensorData({"k": 1}))
    assert from_xarray(to_xarray(alone))["text"] == "x"
    assert from_xarray(to_xarray(alone)).get("object").data == {"k": 1}


def test_what_is_constant_is_copied():
    values = np.arange(3)
    values.flags.writeable = False
    td = from_xarray(xr.Dataset({"a": ("x", values), "b": ("x", np.arange(3)[::-1])}))
    td["a"] += 1
    assert values.tolist() == [0, 1, 2]
    assert td["b"].tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    "td",
    [
        lazy_stack([TensorDict(age=torch.ones(2)), TensorDict(age=torch.zeros(2))]),
        Pet(age=torch.tensor([3, 9]), name="Rex", batch_size=[2]),
        TensorDict(age=torch.rand(3, 2), batch_size=[3])._get_sub_tensordict(slice(2)),
        TensorDict(age=torch.rand(2, requires_grad=True), batch_size=[2]),
    ],
    ids=["stack", "class", "view", "grad"],
)
def test_all_collections(td):
    found = from_xarray(to_xarray(td), device="cpu")
    assert torch.equal(found["age"], td.get("age"))
    assert found.batch_size == td.batch_size
    assert found.device == torch.device("cpu")


def test_what_is_refused():
    ragged = lazy_stack([TensorDict(a=torch.ones(1)), TensorDict(a=torch.ones(2))])
    with pytest.raises(RuntimeError, match="'a'"):
        to_xarray(ragged)
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    with pytest.raises(TypeError, match="'a'.*pad"):
        to_xarray(TensorDict(a=nested))
    td = TensorDict(a=torch.ones(2, 3), b=torch.ones(2, 4), batch_size=[2])
    with pytest.raises(ValueError, match="'x' of size 4 at 'b'"):
        to_xarray(td, dims={"a": ["x"], "b": ["x"]})
    with pytest.raises(ValueError, match="for 'a', which has 1"):
        to_xarray(td, dims={"a": ["x", "y"]})
    with pytest.raises(ValueError, match="'z'"):
        to_xarray(td, dims={"z": ["x"]})
    with pytest.raises(TypeError, match="got a dict"):
        from_xarray({})
    with pytest.raises(TypeError, match="collection"):
        to_xarray({})


def test_without_xarray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    for call in (lambda: to_xarray(TensorDict()), lambda: from_xarray(None)):
        with pytest.raises(ImportError, match=r"tensordict-rs\[xarray\]"):
            call()
