"""Writers and checkpointers that are killed: no half save is seen, no old step is lost."""

import os
import random
import time

import pytest
import torch

from ranks import Ranks
from separate_process import SERVER
from tensordict import TensorDict
from tensordict.checkpoint import Checkpointer
from tensordict.data import DatasetWriter
from tensordict.storage.remote import growing, place_of
from tensordict.storage.remote.fetching import download_folder
from tensordict.storage.remote.leftovers import find_leftovers, remove_leftovers
from tensordict.storage.remote.manifests import SWITCH

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


def write_rows(url, options, part=None):
    torch.set_num_threads(1)
    growing.OBJECT_BYTES = 1 << 14
    with DatasetWriter(url, storage_options=options, part=part) as writer:
        while True:
            start = len(writer)
            for number in range(start, start + 7):
                writer.append(
                    {
                        "a": torch.full((500,), number),
                        "s": str(number),
                        "n": {"r": torch.full((number % 4,), float(number))},
                    }
                )
            writer.flush()


def checked_rows(url, options):
    """Return how many rows there are, all of which are right."""
    place = place_of(url, options)
    if not place.exists(SWITCH):
        return 0
    found = TensorDict.load_memmap(place)
    count = found.batch_size[0]
    assert count % 7 == 0
    got = found[:]
    numbers = torch.arange(count)
    assert torch.equal(got["a"], numbers[:, None].expand(-1, 500))
    assert list(got["s"]) == list(map(str, range(count)))
    for number in range(count):
        row = got[number]["n", "r"]
        assert row.tolist() == [float(number)] * (number % 4)
    return count


def begin(rank, url, options):
    """Do what takes seconds before the first step."""
    return place_of(url, options).exists("nothing")


def model_of(step):
    """Return a model whose parameters two ranks divide."""
    model = torch.nn.ParameterList()
    for _ in range(4):
        model.append(torch.full((1500,), float(step)))
    return model


def save_steps_of_ranks(rank, url, options, first, staging):
    with Checkpointer(
        url,
        keep=2,
        dedupe=True,
        background=True,
        storage_options=options,
        staging=staging,
        durable=False,
    ) as checkpointer:
        step = first
        while True:
            checkpointer.save(step, model=model_of(step), epoch=step)
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


def test_a_writer_of_rows_that_is_killed_leaves_whole_flushes(s3, tmp_path):
    chance = random.Random(3)
    url = f"s3://bucket/{tmp_path.name}"
    before = 0
    for _ in range(KILLS):
        killed(write_rows, url, s3.options(), seconds=chance.uniform(0.3, 1.5))
        count = checked_rows(url, s3.options())
        assert count >= before
        before = count
    assert before
    place = place_of(url, s3.options())
    remove_leftovers(place, find_leftovers(place))
    assert checked_rows(url, s3.options()) == before
    with DatasetWriter(place) as writer:
        assert len(writer) == before
    assert not find_leftovers(place, older_than=0.0)


@pytest.mark.filterwarnings("ignore")
def test_ranks_that_are_killed_lose_no_step(s3, tmp_path):
    chance = random.Random(4)
    url = f"s3://bucket/{tmp_path.name}"
    before: list[int] = []
    for kill in range(KILLS):
        folder = tmp_path / str(kill)
        folder.mkdir()
        ranks = Ranks(2, folder, 20)
        first = max(before, default=-1) + 1
        ranks.all(begin, url, s3.options())
        call = save_steps_of_ranks, (url, s3.options(), first, tmp_path / "staging")
        for connection in ranks.connections:
            connection.send(call)
        time.sleep(chance.uniform(0.5, 3.0))
        for process in chance.sample(ranks.processes, 2):
            # The other one goes on for a moment.
            process.kill()
            time.sleep(chance.choice([0.0, 0.05]))
        for process in ranks.processes:
            process.join()
        with Checkpointer(
            url, storage_options=s3.options(), staging=tmp_path / "reader"
        ) as checkpointer:
            steps = checkpointer.steps()
            assert len(steps) >= min(2, len(before))
            assert max(steps, default=-1) >= max(before, default=-1)
            for step in steps:
                model = model_of(-1)
                assert checkpointer.restore(step, model=model)["epoch"] == step
                assert all((value == step).all() for value in model)
            before = steps
    assert before
