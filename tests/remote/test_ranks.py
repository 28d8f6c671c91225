"""Several ranks whose steps live in an object store."""

import pytest
import torch

from object_stores import Proxy
from ranks import Raised, Ranks
from tensordict.checkpoint import Checkpointer
from tensordict.storage.remote import place_of

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]

if not torch.distributed.is_available():
    pytest.skip("this torch has no ranks", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

WORLD = 2


def model_of(value):
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = torch.nn.Module()
    whole = torch.full((100, 500), float(value))
    model.weight = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
    model.small = torch.nn.Parameter(torch.full((3,), float(value)))
    return model


def save(rank, url, options, staging):
    with Checkpointer(
        url,
        keep=2,
        background=True,
        storage_options=options,
        staging=staging,
        durable=False,
    ) as checkpointer:
        for step in range(4):
            checkpointer.save(step, model=model_of(step), rank=rank)
        checkpointer.wait()
    return True


def restore(rank, url, options, staging, step):
    checkpointer = Checkpointer(url, storage_options=options, staging=staging)
    model = model_of(-1)
    found = checkpointer.restore(step, model=model)
    values = set(model.weight.to_local().flatten().tolist() + model.small.tolist())
    return found.step, found["rank"], sorted(values)


def large_model(value):
    world = torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    model = torch.nn.Module()
    whole = torch.arange(2400 * 1000.0).reshape(2400, 1000) + value
    model.weight = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
    model.bias = torch.nn.Parameter(torch.full((1000,), float(value)))
    return model


def save_large(rank, url, options, staging):
    with Checkpointer(url, storage_options=options, staging=staging) as checkpointer:
        checkpointer.save(7, model=large_model(1.0))
    return True


def restore_large(rank, url, options):
    checkpointer = Checkpointer(url, storage_options=options)
    model = large_model(0.0)
    checkpointer.restore(model=model)
    expected = large_model(1.0)
    return all(
        torch.equal(found.detach().to_local(), wanted.detach().to_local())
        if hasattr(found, "to_local")
        else torch.equal(found, wanted)
        for found, wanted in zip(model.parameters(), expected.parameters(), strict=True)
    )


def bytes_read(proxy):
    """Count the bytes of the files of tensors that were asked for."""
    count = 0
    for method, path, asked in proxy.requests:
        if method == "GET" and ".safetensors" in path and "index" not in path:
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            count += last - first + 1
    return count


def test_ranks_read_the_bytes_that_they_need(s3, tmp_path):
    url = f"s3://bucket/{tmp_path.name}"
    saving = Ranks(4, tmp_path, 20)
    try:
        saving.all(save_large, url, s3.options(), tmp_path / "staging")
    finally:
        saving.close()
    (tmp_path / "three").mkdir()
    restoring = Ranks(3, tmp_path / "three", 20)
    proxy = Proxy(s3.endpoint, rate=0.0)
    try:
        restored = restoring.all(restore_large, url, s3.options(proxy.endpoint))
        assert restored == [True] * 3
        size = 4 * (2400 * 1000 + 3 * 1000)
        assert bytes_read(proxy) <= 1.1 * size
    finally:
        restoring.close()
        proxy.stop()


def test_ranks_save_one_step_and_restore_it(s3, tmp_path):
    ranks = Ranks(WORLD, tmp_path, 20)
    try:
        url = f"s3://bucket/{tmp_path.name}"
        options, staging = s3.options(), tmp_path / "staging"
        saved = ranks.try_all(save, url, options, staging)
        assert saved == [True] * WORLD, saved
        found = ranks.try_all(restore, url, options, tmp_path / "other", None)
        assert not any(isinstance(each, Raised) for each in found), found
        assert found == [(3, rank, [3.0]) for rank in range(WORLD)]
        steps = {
            found.name.partition("/")[0] for found in place_of(url, options).list()
        }
        assert steps == {"step-2", "step-3"}
    finally:
        ranks.close()
