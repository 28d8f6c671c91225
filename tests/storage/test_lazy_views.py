"""A view of the lazy mode as files: its source, and the operation."""

from __future__ import annotations

import json

import pytest
import torch

from tensordict import TensorDict, set_lazy_legacy

pytestmark = pytest.mark.filterwarnings("ignore:The legacy lazy mode")


@pytest.fixture
def whole():
    return TensorDict(
        {"a": torch.arange(6).view(2, 3), "n": {"b": torch.ones(2, 3)}}, [2, 3]
    )


@pytest.fixture
def view(whole):
    with set_lazy_legacy(True):
        return whole.view(-1)


def test_a_saved_view_is_one_of_the_mapped_source(view, whole, tmp_path):
    saved = view.memmap(tmp_path)
    assert type(saved) is type(view)
    assert saved.is_memmap()
    assert saved.saved_path == tmp_path
    assert saved["a"].tolist() == [0, 1, 2, 3, 4, 5]
    assert not whole.is_memmap()


def test_a_view_is_mapped_with_its_source(view, whole, tmp_path):
    assert view.memmap_(tmp_path) is view
    assert whole.is_memmap()
    view.set_("a", torch.zeros(6, dtype=torch.long))
    assert TensorDict.load_memmap(tmp_path / "_source")["a"].sum() == 0


def test_writes_to_a_loaded_view_reach_the_source_file(view, tmp_path):
    view.memmap(tmp_path)
    TensorDict.load_memmap(tmp_path).set_("a", torch.ones(6, dtype=torch.long))
    assert TensorDict.load_memmap(tmp_path)["a"].tolist() == [1] * 6


def test_a_view_takes_what_was_saved_of_one(view, whole, tmp_path):
    view.memmap(tmp_path)
    whole["a"].zero_()
    view.load_memmap_(tmp_path)
    assert whole["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_memmap_like_of_a_view_has_files_of_its_own_shape(view, tmp_path):
    made = view.memmap_like(tmp_path)
    assert type(made) is TensorDict
    assert made["a"].shape == (6,)
    assert TensorDict.load_memmap(tmp_path).batch_size == (6,)


def test_a_view_that_is_nested_keeps_its_kind(view, tmp_path):
    TensorDict({"v": view}, [6]).memmap(tmp_path)
    loaded = TensorDict.load_memmap(tmp_path)
    assert type(loaded["v"]) is type(view)
    assert loaded["v", "n", "b"].shape == (6,)


@pytest.mark.parametrize(
    "change",
    [
        {"custom_op": "apply_"},
        {"custom_op_kwargs": {"size": ["6"]}},
        {"custom_op_kwargs": {"size": [6], "dim": 0}},
        {"custom_op_kwargs": None},
    ],
)
def test_an_operation_that_is_none_of_a_view_is_refused(view, tmp_path, change):
    view.memmap(tmp_path)
    path = tmp_path / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=r"meta\.json has no valid operation"):
        TensorDict.load_memmap(tmp_path)
