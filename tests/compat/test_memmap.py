"""Folders that release 0.15.3 wrote, read back."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch

from tensordict import TensorDict

HERE = Path(__file__).parent / "memmap_0_15_3"
DTYPES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 "
    "float64 complex64 complex128"
).split()


def digest(folder: Path) -> dict[str, str]:
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".tensordict-sums.json"
    )
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture(autouse=True)
def unchanged():
    """Loading changes no file."""
    before = digest(HERE)
    yield
    assert digest(HERE) == before


def load(name: str) -> TensorDict:
    return TensorDict.load_memmap(HERE / name, mode="r")


def test_plain_folder():
    td = load("plain")
    assert list(td.keys()) == ["obs", "nested", "done"]
    assert td.batch_size == (3,)
    assert td.names == ["time"]
    assert td["nested"].names == ["time"]
    assert td.device == torch.device("cpu")
    assert td["obs"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert td["nested", "r"].tolist() == [0, 1, 2]
    assert td["done"].tolist() == [True, False, True]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name):
    dtype = getattr(torch, name)
    value = load("dtypes")[name]
    assert value.dtype == dtype
    assert torch.equal(value, torch.tensor([[0, 1], [0, 1]]).to(dtype))


def test_odd_keys():
    td = load("keys")
    keys = ["a/b", "", ".", "..", "a b", "é", "a.b", 'q"\n%', "CON"]
    assert {key: td[key].item() for key in keys} == {k: i for i, k in enumerate(keys)}
    assert td["d/e", ".."].item() == 9
    assert set(td.keys()) == {*keys, "d/e"}


def test_edges():
    td = load("edges")
    assert td["empty"].shape == (0, 3)
    assert td["scalar"].item() == 1.5
    assert td["none"].is_empty()


def test_entries_that_were_added_later():
    td = load("grown")
    assert td["b"].tolist() == [[7, 7]] * 3
    assert td["n", "c"].tolist() == [2, 2, 2]


def test_legacy_layout():
    td = load("legacy")
    assert td.device is None
    assert td["x y"].tolist() == [0, -1]
    assert td["é"].tolist() == [1, -1]
    assert td["n s", "b"].tolist() == [2, -1]


@pytest.mark.parametrize("name", ["plain", "dtypes", "keys", "edges"])
def test_saving_again_gives_the_same_files(name, tmp_path):
    """Byte for byte, but for the order of keys, which the release changes on load."""
    load(name).memmap(tmp_path / "again", copy_existing=True)
    expected, found = digest(HERE / name), digest(tmp_path / "again")
    assert found == expected


def test_saving_over_a_folder_of_the_release(tmp_path):
    target = tmp_path / "td"
    shutil.copytree(HERE / "plain", target)
    TensorDict({"only": torch.ones(2)}, [2]).memmap(target)
    assert sorted(digest(target)) == ["meta.json", "only.memmap"]


WHOLE = torch.arange(6).view(2, 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("permute", WHOLE.permute(-1, 0)),
        ("squeeze", WHOLE[:, 0]),
        ("transpose", WHOLE.transpose(0, 1)),
        ("unsqueeze", WHOLE.unsqueeze(0)),
        ("view", WHOLE.view(3, 2)),
        ("twice", WHOLE.unsqueeze(0).permute(2, 0, 1)),
    ],
)
def test_views_of_the_lazy_mode(name, expected, tmp_path):
    view = load(f"views/{name}")
    assert type(view).__module__ == "tensordict._lazy"
    assert view.batch_size == expected.shape
    assert torch.equal(view["a"], expected)
    assert torch.equal(view["n", "b"], torch.ones(expected.shape))
    # A save of it is the same folder again, and so is a view for the release.
    view.memmap(tmp_path / "again", copy_existing=True)
    assert digest(tmp_path / "again") == digest(HERE / "views" / name)
