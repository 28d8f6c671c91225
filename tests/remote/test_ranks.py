"""Several ranks whose steps live in an object store."""

import os

import pytest
import torch

from object_stores import Proxy, bytes_read
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
    return found.step, found.get("rank"), sorted(values)


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
        before = bytes_read(proxy)
        shown = Checkpointer(url, storage_options=s3.options(proxy.endpoint)).load()
        weight = shown["model", "weight"]
        whole = torch.arange(2400 * 1000.0).reshape(2400, 1000) + 1.0
        # Rows of two ranks, and of their border.
        rows = [0, 599, 600, 2399]
        assert torch.equal(weight[rows], whole[rows])
        assert bytes_read(proxy) - before < 4 * 17_000 + 4000 * len(rows)
        assert torch.equal(shown["model"].to_tensordict()["weight"], whole)
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


def save_noting(rank, url, options, staging, background, fault, is_mirror=False):
    """Save a step; return the objects that this rank put, and the error it got."""
    from tensordict.checkpoint import mirror
    from tensordict.storage.remote import publishing

    put = []
    upload = publishing.upload_file

    def noting(place, file, name="", **how):
        if fault is not None and rank == 1:
            if fault == "dies":
                os._exit(1)
            raise OSError(5, "the network is down")
        put.append(name.rpartition("/")[2])
        return upload(place, file, name, **how)

    mirror.upload_file = publishing.upload_file = noting
    where = {"directory": url, "staging": staging}
    if is_mirror:
        where = {"directory": staging, "mirror": url}
    checkpointer = Checkpointer(
        **where,
        storage_options=options,
        background=background,
        rank_timeout=60.0,
    )
    error = ""
    try:
        checkpointer.save(5, model=model_of(5), epoch=rank)
        checkpointer.wait()
    except (OSError, RuntimeError) as found:
        error = str(found)
    mirror.upload_file = publishing.upload_file = upload
    return sorted(put), error, checkpointer.steps()


@pytest.mark.parametrize(
    ("background", "is_mirror"), [(False, False), (True, False), (True, True)]
)
def test_each_rank_brings_its_part_up(s3, tmp_path, background, is_mirror):
    ranks = Ranks(WORLD, tmp_path, 20)
    url = f"s3://bucket/{tmp_path.name}"
    try:
        saved = ranks.all(
            save_noting,
            url,
            s3.options(),
            tmp_path / "x",
            background,
            None,
            is_mirror,
        )
        assert [(error, steps) for _, error, steps in saved] == [("", [5])] * WORLD
        assert all(
            f"rank-{rank:05}" in name for rank in (1,) for name in saved[rank][0]
        )
        assert "rank-00001.json" in saved[1][0]
        assert "model-rank-00001.safetensors" in saved[1][0]
        assert "model-rank-00000.safetensors" in saved[0][0]
        assert not any("rank-00001" in name for name in saved[0][0])
        found = ranks.all(restore, url, s3.options(), tmp_path / "y", None)
        assert [each[0] for each in found] == [5] * WORLD
    finally:
        ranks.close()


@pytest.mark.parametrize(
    ("fault", "background"), [("fails", False), ("dies", False), ("dies", True)]
)
def test_a_rank_that_cannot_bring_its_part_up_is_named(s3, tmp_path, background, fault):
    ranks = Ranks(3, tmp_path, 20)
    url = f"s3://bucket/{tmp_path.name}"
    arguments = url, s3.options(), tmp_path / "x", background, fault
    try:
        saved = ranks.try_all(save_noting, *arguments)
    finally:
        ranks.close()
    for rank in (0, 1, 2):
        if fault == "dies" and rank == 1:
            assert saved[1] is None
            continue
        _, error, steps = saved[rank]
        assert steps == []
        assert "rank 1" in error or "network is down" in error, error
    place = place_of(url, s3.options())
    assert not [found for found in place.list() if found.name.endswith("meta.json")]


def save_apart(rank, url, options, staging):
    from tensordict.checkpoint import distributed

    distributed.SEEN_WITHIN = 0.2
    own = f"{staging}-{rank}"
    checkpointer = Checkpointer(url, storage_options=options, staging=own)
    with pytest.raises((OSError, RuntimeError), match="staging=folder"):
        checkpointer.save(1, model=model_of(1.0))
    return checkpointer.steps()


def test_ranks_that_do_not_share_the_staging_folder_say_so(s3, tmp_path):
    ranks = Ranks(WORLD, tmp_path, 20)
    url = f"s3://bucket/{tmp_path.name}"
    try:
        assert ranks.all(save_apart, url, s3.options(), tmp_path / "x") == [[], []]
    finally:
        ranks.close()
