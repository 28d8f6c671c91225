"""A part of a collection as files: its source, and the index."""

from __future__ import annotations

import json

import pytest
import torch

from tensordict import TensorDict

INDICES = {
    "slice": slice(1, 3),
    "stepped": (slice(None, None, 2),),
    "number": 1,
    "tensor": torch.tensor([0, 2]),
    "mask": torch.tensor([True, False, True, False]),
    "all": Ellipsis,
}


@pytest.fixture
def whole():
    return TensorDict({"a": torch.arange(8).view(4, 2), "n": {"b": torch.ones(4)}}, [4])


@pytest.mark.parametrize("name", INDICES)
def test_load_gives_the_part_that_was_saved(whole, name, tmp_path):
    part = whole._get_sub_tensordict(INDICES[name])
    saved = part.memmap(tmp_path / "save")
    loaded = TensorDict.load_memmap(tmp_path / "save")
    assert type(loaded) is type(part)
    assert saved.is_memmap()
    assert saved.saved_path == tmp_path / "save"
    assert loaded.batch_size == part.batch_size
    assert torch.equal(loaded["a"], part["a"])
    assert torch.equal(loaded["n", "b"], part["n", "b"])


def test_writes_to_a_loaded_part_reach_the_source_file(whole, tmp_path):
    whole._get_sub_tensordict(slice(1, 3)).memmap(tmp_path / "save")
    TensorDict.load_memmap(tmp_path / "save")["a"] = torch.zeros(2, 2, dtype=torch.long)
    source = TensorDict.load_memmap(tmp_path / "save" / "_source")
    assert source["a"].tolist() == [[0, 1], [0, 0], [0, 0], [6, 7]]


def test_memmap_like_of_a_part_has_files_of_its_own_shape(whole, tmp_path):
    made = whole._get_sub_tensordict(slice(1, 3)).memmap_like(tmp_path / "like")
    assert made["a"].shape == (2, 2)
    assert (tmp_path / "like" / "a.memmap").stat().st_size == 4 * 8
    assert (tmp_path / "like" / "n" / "b.memmap").stat().st_size == 2 * 4


def test_an_index_that_cannot_be_read_is_an_error_that_names_the_file(whole, tmp_path):
    whole._get_sub_tensordict(0).memmap(tmp_path / "save")
    path = tmp_path / "save" / "meta.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "index": ["nonsense", []]}))
    with pytest.raises(ValueError, match=r"meta\.json has no valid index"):
        TensorDict.load_memmap(tmp_path / "save")


def test_load_memmap_into_a_mapped_collection_takes_the_other_files(whole, tmp_path):
    (whole * 3).memmap(tmp_path / "other")
    whole.memmap_(tmp_path / "one")
    whole.load_memmap_(tmp_path / "other")
    assert whole.is_memmap()
    assert whole.is_locked
    assert whole["a"].sum() == 84
    assert TensorDict.load_memmap(tmp_path / "one")["a"].sum() == 28
