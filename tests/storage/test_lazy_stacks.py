"""Lazy stacks in the directory layout: loads without data, and saves that go on."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    from_safetensors,
    lazy_stack,
    to_safetensors,
)
from tensordict.primitives.metatensor import MetaTensor


@pytest.fixture
def ragged():
    return lazy_stack(
        [TensorDict(a=torch.ones(n), n=TensorDict(b=torch.zeros(2))) for n in (1, 3)]
    )


def test_a_load_to_meta_has_the_shapes_of_each_member(ragged, tmp_path):
    ragged.memmap(tmp_path)
    loaded = TensorDict.load_memmap(tmp_path, device="meta")
    assert isinstance(loaded, LazyStackedTensorDict)
    assert [each["a"].shape for each in loaded] == [(1,), (3,)]
    assert all(each["n", "b"].device.type == "meta" for each in loaded)


def test_a_load_in_fake_mode_reads_nothing(ragged, tmp_path):
    ragged.memmap(tmp_path)
    with FakeTensorMode():
        loaded = TensorDict.load_memmap(tmp_path)
    assert "FakeTensor(shape=torch.Size([2, 2])" in repr(loaded)
    assert loaded.get_item_shape("a") == (2, -1)


def test_a_save_that_returns_early_gives_the_stack(ragged, tmp_path):
    future = ragged.memmap(tmp_path, num_threads=2, return_early=True)
    saved = future.result()
    assert isinstance(saved, LazyStackedTensorDict)
    assert [each["a"].tolist() for each in TensorDict.load_memmap(tmp_path)] == [
        [1.0],
        [1.0, 1.0, 1.0],
    ]


def test_shapes_and_kinds_of_entries_are_known_without_stacking(ragged):
    assert ragged.get_item_shape("a") == (2, -1)
    assert ragged.get_item_shape(("n", "b")) == (2, 2)
    assert ragged.entry_class("a") is torch.Tensor
    assert ragged.entry_class("n") is LazyStackedTensorDict
    meta = MetaTensor(ragged[0]["a"])
    assert (meta.shape, meta.dtype, meta.device.type) == ((1,), torch.float32, "cpu")


@pytest.mark.parametrize("name", [None, "t"])
def test_a_stack_without_members_in_files_of_one_buffer(tmp_path, name):
    stack = LazyStackedTensorDict(stack_dim=0, stack_dim_name=name)
    td = TensorDict(s=stack, a=torch.ones(0), batch_size=[0])
    td.consolidate(tmp_path / "x")
    to_safetensors(td, tmp_path / "x.safetensors")
    for loaded in (
        TensorDict.from_consolidated(tmp_path / "x"),
        from_safetensors(tmp_path / "x.safetensors"),
    ):
        found = loaded.get("s")
        assert isinstance(found, LazyStackedTensorDict)
        assert found.names == [name]
        found.append(TensorDict(b=torch.ones(2)))
        assert found.batch_size == (1,)
