"""Consolidated files and pickles that release 0.15.3 wrote, read back."""

import hashlib
import pickle
from pathlib import Path

import pytest
import torch

from tensordict import TensorDict, from_consolidated

HERE = Path(__file__).parent / "consolidated_0_15_3"


@pytest.fixture(autouse=True)
def unchanged():
    """Reading, and storing into what was read, changes no file."""

    def digest():
        return {p.name: hashlib.sha256(p.read_bytes()).digest() for p in HERE.iterdir()}

    before = digest()
    yield
    assert digest() == before


def check_plain(td):
    assert set(td.keys(True)) == {
        *("obs", "done", "nested"),
        *(("nested", "r"), ("nested", "none")),
    }
    assert td.batch_size == (3,)
    assert td.names == td["nested"].names == ["time"]
    assert td.device is None
    assert td["obs"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert td["nested", "r"].tolist() == [0, 1, 2]
    assert td["nested", "none"].shape == (3, 0)
    assert td["done"].tolist() == [True, False, True]
    assert td.is_consolidated()


def test_plain_file():
    td = from_consolidated(HERE / "plain")
    check_plain(td)
    assert not td.is_locked
    td.zero_()


def test_locked_file():
    td = TensorDict.from_consolidated(HERE / "locked")
    check_plain(td)
    assert td.is_locked


@pytest.mark.parametrize("name", ["plain.pkl", "plain.pt"])
def test_pickles(name):
    content = HERE / name
    td = (
        pickle.loads(content.read_bytes())
        if name.endswith("pkl")
        else torch.load(content)
    )
    check_plain(td)


def test_every_dtype():
    td = from_consolidated(HERE / "dtypes")
    assert len(list(td.keys())) == 14
    for name, value in td.items():
        dtype = getattr(torch, name)
        assert value.dtype == dtype
        assert torch.equal(value, torch.tensor([[0, 1], [0, 1]]).to(dtype))


def test_jagged_tensors():
    td = from_consolidated(HERE / "jagged")
    assert [part.tolist() for part in td["j"].unbind()] == [[0, 1], [2, 3, 4]]
    assert [part.tolist() for part in td["h"].unbind()] == [[0], [2, 3]]


def test_text_that_was_padded():
    td = from_consolidated(HERE / "again")
    assert set(td.keys()) == {"obs", "done"}
    assert td["obs"].tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("name", ["dtypes", "jagged"])
def test_saving_again_gives_the_same_bytes(name, tmp_path):
    from_consolidated(HERE / name).consolidate(tmp_path / "again", checks=False)
    assert (tmp_path / "again").read_bytes() == (HERE / name).read_bytes()
