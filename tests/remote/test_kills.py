"""Writers and checkpointers that are killed: no half save is seen, no old step is lost."""

import os
import random
import time

import pytest
import torch

from separate_process import SERVER
from tensordict import TensorDict
from tensordict.checkpoint import Checkpointer
from tensordict.storage.remote import place_of
from tensordict.storage.remote.fetching import download_folder
from tensordict.storage.remote.publishing import SWITCH

KILLS = int(os.environ.get("TENSORDICT_REMOTE_KILLS", "3"))
"""The number of kills of each kind: 200 in a long run."""


def write_saves(url, options, first):
    torch.set_num_threads(1)
    number = first
    while True:
        td = TensorDict(
            {str(key): torch.full((500,), number) for key in range(4)}, batch_size=[500]
        )
        td.memmap(url, storage_options=options)
        number += 1


def save_steps(url, options, first, staging, background):
    torch.set_num_threads(1)
    frozen = torch.arange(20_000.0)
    with Checkpointer(
        url,
        keep=2,
        dedupe=True,
        background=background,
        storage_options=options,
        staging=staging,
        durable=False,
    ) as checkpointer:
        step = first
        while True:
            value = torch.full((5000,), float(step))
            checkpointer.save(
                step, value=value, twice=2 * value, frozen=frozen, epoch=step
            )
            step += 1


def killed(work, *arguments, seconds):
    process = SERVER.Process(target=work, args=arguments)
    process.start()
    time.sleep(seconds)
    process.kill()
    process.join()


def test_a_save_that_is_killed_is_not_seen(s3, tmp_path):
    chance = random.Random(1)
    url = f"s3://bucket/{tmp_path.name}"
    place = place_of(url, s3.options())
    last = -1
    for kill in range(KILLS):
        killed(
            write_saves, url, s3.options(), last + 1, seconds=chance.uniform(0.3, 1.5)
        )
        if not place.exists(SWITCH):
            assert last == -1
            continue
        target = tmp_path / str(kill)
        download_folder(place, target)
        found = TensorDict.load(target)
        numbers = {int(number) for number in found.values() for number in number}
        assert len(numbers) == 1
        assert max(numbers) >= last
        last = max(numbers)


@pytest.mark.parametrize("background", [False, True])
def test_a_checkpointer_that_is_killed_loses_no_step(s3, tmp_path, background):
    chance = random.Random(2)
    url = f"s3://bucket/{tmp_path.name}"
    before: list[int] = []
    for _ in range(KILLS):
        killed(
            save_steps,
            *(url, s3.options(), max(before, default=-1) + 1),
            *(tmp_path / "staging", background),
            seconds=chance.uniform(0.3, 1.5),
        )
        with Checkpointer(
            url, storage_options=s3.options(), staging=tmp_path / "reader"
        ) as checkpointer:
            steps = checkpointer.steps()
            assert len(steps) >= min(2, len(before))
            assert max(steps, default=-1) >= max(before, default=-1)
            for step in steps:
                found = checkpointer.restore(step)
                assert found["epoch"] == step
                assert (found["value"] == step).all()
                assert (found["twice"] == 2 * step).all()
                assert torch.equal(found["frozen"], torch.arange(20_000.0))
            before = steps
    assert before
