"""Tensors that are spread over processes are saved whole."""

import pytest
import torch
import torch.distributed as dist

from tensordict import TensorDict, from_safetensors, lazy_stack, to_safetensors

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(),
    reason="this torch has no processes that talk to each other",
)

VALUES = torch.arange(6.0).view(3, 2)


@pytest.fixture(scope="module")
def sharded():
    """A tensor spread over a group of one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield distribute_tensor(VALUES, init_device_mesh("cpu", (1,)), [Shard(0)])
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["x", "x.tdz", "x.safetensors", "x.cons"])
@pytest.mark.parametrize("is_parameter", [False, True])
def test_sharded_leaves_are_gathered(name, is_parameter, sharded, tmp_path):
    leaf = torch.nn.Parameter(sharded) if is_parameter else sharded
    td = TensorDict({"n": {"a": leaf}, "b": torch.ones(3)})
    path = tmp_path / name
    if name.endswith("safetensors"):
        to_safetensors(td, path)
        loaded = from_safetensors(path)
    elif name.endswith("cons"):
        td.consolidate(path)
        loaded = TensorDict.from_consolidated(path)
    else:
        td.save(path)
        loaded = TensorDict.load(path)
    assert (loaded["n", "a"] == VALUES).all()
    assert (loaded["b"] == 1).all()


def test_sharded_leaves_become_mapped_ones(sharded, tmp_path):
    td = TensorDict(a=sharded, batch_size=[3])
    assert td.memmap_(tmp_path / "x") is td
    assert td.is_memmap()
    assert (td["a"] == VALUES).all()
    stack = lazy_stack([TensorDict(a=sharded)] * 2).memmap(tmp_path / "y")
    assert (stack["a"] == torch.stack([VALUES, VALUES])).all()
    like = TensorDict(a=sharded).memmap_like(tmp_path / "z")
    assert like["a"].shape == VALUES.shape
