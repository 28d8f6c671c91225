"""Files of HDF5 and Zarr that release 0.15.3 wrote."""

import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tensordict import NonTensorStack, from_h5, from_zarr

sys.path.insert(0, str(Path(__file__).parent))
try:
    from topic_array_files import FOLDER, collection, only_zarr
finally:
    sys.path.pop(0)


@pytest.fixture
def h5():
    pytest.importorskip("h5py")
    with from_h5(FOLDER / "data.h5", batch_size=[3]) as td:
        yield td


@pytest.fixture
def zarr(tmp_path):
    pytest.importorskip("zarr")
    with zipfile.ZipFile(FOLDER / "data.zarr.zip") as packed:
        packed.extractall(tmp_path / "data.zarr")
    with from_zarr(tmp_path / "data.zarr", mode="r+", allow_pickle=True) as td:
        yield td


@pytest.fixture(params=["h5", "zarr"])
def td(request):
    return request.getfixturevalue(request.param)


def test_tensors_are_read(td):
    expected = collection()
    keys = [
        key
        for key, value in expected.items(True, True)
        if isinstance(value, torch.Tensor)
    ]
    assert len(keys) == 5
    for key in keys:
        assert td[key].dtype is expected[key].dtype
        assert torch.equal(td[key], expected[key])
        assert torch.equal(td[1:][key], expected[1:][key])


def test_values_are_read(td):
    assert td["text"] == "héllo"
    assert td["number"] == 3
    assert list(td["array"]) == [1, 2]
    assert isinstance(td.get("rows"), NonTensorStack)
    assert list(td["rows"]) == ["x", "y", "z"]
    assert list(td["counts"]) == [1, 2, 3]
    assert td[2]["rows"] == "z"


def test_what_only_zarr_holds_is_read(zarr):
    expected = only_zarr()
    assert list(zarr["mixed"]) == list(expected["mixed"])
    assert zarr["nothing"] == expected["nothing"]
    assert zarr["object"] == expected["object"]
    assert zarr.batch_size == (3,)
    assert zarr.names == ["time"]


def test_a_pickle_is_read_if_it_is_trusted(zarr):
    path = zarr.filename
    with from_zarr(path, allow_pickle=False) as td:
        assert td["text"] == "héllo"
        with pytest.raises(RuntimeError, match="Refusing to load pickled"):
            td["object"]
        assert "object" in repr(td)
    with from_zarr(path) as td, pytest.warns(FutureWarning, match="'object'"):
        assert td["object"] == (1, 2)


def test_a_list_of_all_arrays_goes_with_the_first_change(zarr):
    from json import loads

    root = Path(zarr.filename) / "zarr.json"
    assert "consolidated_metadata" in loads(root.read_text())
    zarr["new"] = torch.zeros(3)
    assert not loads(root.read_text()).get("consolidated_metadata")
    assert loads(root.read_text())["attributes"]["__tensordict__"]["names"] == ["time"]
    with from_zarr(zarr.filename) as td:
        assert "new" in td
        assert td["n"].batch_size == (3,)
