"""Rows and windows that are copied out of a collection."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorDict,
    lazy_stack,
    tensorclass,
)
from tensordict.data import gather, gather_slices

NUM_ROWS = 50


@tensorclass
class Sample:
    a: torch.Tensor
    text: str


def plain_rows():
    return TensorDict(
        a=torch.arange(NUM_ROWS * 6, dtype=torch.uint8).view(NUM_ROWS, 2, 3),
        n=TensorDict(
            b=torch.randn(NUM_ROWS, 4), flag=torch.arange(NUM_ROWS) % 3 == 0
        ).auto_batch_size_(1),
        text=NonTensorStack(*[str(place) for place in range(NUM_ROWS)]),
        batch_size=[NUM_ROWS],
    )


SOURCES = {
    "plain": lambda path: plain_rows(),
    "tree": lambda path: plain_rows().memmap(path / "tree"),
    "loaded": lambda path: TensorDict.load_memmap(
        (plain_rows().save(path / "save"), path / "save")[1]
    ),
    "shared": lambda path: plain_rows().exclude("text").share_memory_(),
    "lazy": lambda path: lazy_stack([plain_rows()[i].clone() for i in range(NUM_ROWS)]),
    "tensorclass": lambda path: Sample(
        a=torch.arange(NUM_ROWS * 2).view(NUM_ROWS, 2), text="x", batch_size=[NUM_ROWS]
    ),
}


@pytest.fixture(params=SOURCES)
def source(request, tmp_path):
    return SOURCES[request.param](tmp_path)


INDICES = {
    "tensor": torch.tensor([3, -1, 3, 0]),
    "int32": torch.tensor([3, -1], dtype=torch.int32),
    "two dims": torch.tensor([[3, 4], [9, -9]]),
    "none": torch.tensor([], dtype=torch.int64),
    "list": [5, 2],
    "range": range(40, 2, -3),
    "array": np.array([7, 8]),
    "mask": torch.arange(NUM_ROWS) % 7 == 2,
    "slice": slice(1, 30, 4),
}


@pytest.mark.parametrize("name", INDICES)
def test_gather_is_the_index(source, name):
    index = INDICES[name]
    rows = gather(source, index)
    positions = np.arange(NUM_ROWS)[np.asarray(index) if name == "mask" else index]
    assert rows.batch_size == torch.Size(positions.shape)
    assert type(rows) is type(source[index])
    flat = [int(position) for position in np.asarray(positions).reshape(-1)]
    members = [source[position] for position in flat]
    got = rows.reshape(-1)
    assert len(got) == len(flat)
    for place, member in enumerate(members):
        assert (got[place] == member).all()


@pytest.mark.parametrize("index", [[NUM_ROWS], [-NUM_ROWS - 1], torch.tensor([0, 99])])
def test_an_index_out_of_range_is_an_error(source, index):
    with pytest.raises(IndexError, match="out of bounds|out of range"):
        gather(source, index)


def test_out_is_used_again(source):
    out = source[:3].clone()
    places = [
        leaf.data_ptr() for leaf in out.values(True, True) if torch.is_tensor(leaf)
    ]
    for index in ([4, 5, 6], torch.tensor([-1, 0, -1])):
        assert gather(source, index, out=out) is out
        assert (out == source[index]).all()
    now = [leaf.data_ptr() for leaf in out.values(True, True) if torch.is_tensor(leaf)]
    if not isinstance(source, LazyStackedTensorDict):
        assert places == now


def test_out_of_another_size_is_an_error(source):
    out = source[:3].clone()
    with pytest.raises(RuntimeError, match="batch size"):
        gather(source, [1, 2], out=out)


def test_out_may_be_shared_and_of_another_dtype():
    source = plain_rows().exclude("text")
    out = source[:2].clone().share_memory_()
    gather(source, [8, 9], out=out)
    assert (out == source[[8, 9]]).all()
    wide = TensorDict(a=torch.zeros(2, 2, 3), batch_size=[2])
    gather(source, [8, 9], out=wide, keys=["a"])
    assert (wide["a"] == source["a"][[8, 9]]).all()


def test_keys_are_all_that_is_taken(source):
    assert set(gather(source, [1], keys=["a"]).keys()) >= {"a"}
    if "n" in source.keys():
        taken = gather(source, [1], keys=[("n", "b")])
        assert list(taken.keys(True, True)) == [("n", "b")]
    with pytest.raises(KeyError):
        gather(source, [1], keys=["absent"])


def test_the_rows_are_a_copy(source):
    rows = gather(source, slice(0, 2))
    before = source[:2].clone()
    rows.zero_()
    assert (source[:2] == before).all()


def test_windows_are_stacked(source):
    windows = gather_slices(source, [0, -5], 5, layout="stacked")
    assert windows.batch_size == (2, 5)
    assert (windows[0] == source[:5]).all()
    assert (windows[1] == source[-5:]).all()
    with pytest.raises(ValueError, match="different lengths"):
        gather_slices(source, [0, 1], [2, 3], layout="stacked")


def test_windows_are_padded(source):
    starts, lengths = torch.tensor([4, 20, NUM_ROWS]), torch.tensor([1, 3, 0])
    # A tensorclass has only the fields that it declares.
    mask = None if isinstance(source, Sample) else "is_row"
    windows = gather_slices(source, starts, lengths, padding_value=1, mask=mask)
    assert windows.batch_size == (3, 3)
    is_row = torch.arange(3) < lengths.unsqueeze(1)
    assert mask is None or (windows.pop(mask) == is_row).all()
    assert (windows[0, :1] == source[4:5]).all()
    assert (windows[1] == source[20:23]).all()
    padded = windows.get("a")
    padded = padded if isinstance(padded, torch.Tensor) else padded.as_tensor()
    assert (padded[~is_row] == 1).all()


def test_windows_are_jagged(source):
    windows = gather_slices(source, [4, 20], [1, 3], layout="jagged", keys=["a"])
    assert windows.batch_size == (2,)
    leaf = windows.get("a")
    assert leaf.layout is torch.jagged
    assert (leaf[0] == source[4:5].get("a")).all()
    assert (leaf[1] == source[20:23].get("a")).all()


def test_windows_without_tensors_are_not_jagged():
    with pytest.raises(ValueError, match="'text'"):
        gather_slices(plain_rows(), [0], [2], layout="jagged")


@pytest.mark.parametrize(
    ("starts", "lengths", "error"),
    [
        ([NUM_ROWS - 1], 2, IndexError),
        ([-NUM_ROWS - 1], 1, IndexError),
        ([0, 1], [1], ValueError),
        ([0], -1, ValueError),
        (0, 1, ValueError),
    ],
)
def test_windows_that_there_are_not_are_errors(source, starts, lengths, error):
    with pytest.raises(error):
        gather_slices(source, starts, lengths)


def test_no_windows_are_an_empty_batch(source):
    assert gather_slices(source, [], [], layout="padded").batch_size == (0, 0)


def test_layouts_are_named():
    with pytest.raises(ValueError, match="not 'ragged'"):
        gather_slices(plain_rows(), [0], 1, layout="ragged")
    with pytest.raises(ValueError, match="mask"):
        gather_slices(plain_rows(), [0], 1, layout="stacked", mask="mask")
