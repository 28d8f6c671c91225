"""Several ranks whose steps live in an object store."""

import pytest
import torch

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
