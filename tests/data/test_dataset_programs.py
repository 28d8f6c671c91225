"""Programs as users write them around a dataset: from files to batches, over kills."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, random_split

from tensordict import TensorDict, append_memmap
from tensordict.data import BatchLoader, DatasetReader, DatasetWriter, Mixture

if TYPE_CHECKING:
    from pathlib import Path

fork = multiprocessing.get_context("fork")
TIMEOUT_S = 120


def in_process(function: Any, *arguments: Any) -> int | None:
    process = fork.Process(target=function, args=arguments)
    process.start()
    process.join(TIMEOUT_S)
    process.kill()
    return process.exitcode


def train(data: Any, folder: Path, dies_after: int) -> None:
    """Note the labels of each batch, and save where the loader is."""
    loader = BatchLoader(data, 3, shuffle=True, seed=1)
    for step, batch in enumerate(loader, 1):
        with (folder / "labels").open("a") as file:
            file.write(json.dumps(batch["label"].tolist()) + "\n")
        torch.save(loader.state_dict(), folder / "state")
        if step == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)


def test_images_become_batches_of_a_training_that_is_killed(tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for at in range(7):
            image = images.new("RGB", (5 + at, 6), (number, at, 0))
            image.save(tmp_path / "images" / name / f"{at}.png")
    path = tmp_path / "data"
    assert DatasetWriter.from_folder(path, tmp_path / "images", size=(4, 4)) == 14
    data = TensorDict.load_memmap(path)
    assert data["image"].shape == (14, 3, 4, 4)
    assert in_process(train, data, tmp_path, 2) == -signal.SIGKILL
    loader = BatchLoader(data, 3, shuffle=True, seed=1)
    loader.load_state_dict(torch.load(tmp_path / "state"))
    rest = [batch["label"].tolist() for batch in loader]
    seen = map(json.loads, (tmp_path / "labels").read_text().splitlines())
    whole = BatchLoader(data, 3, shuffle=True, seed=1)
    assert [*seen, *rest] == [batch["label"].tolist() for batch in whole]


def test_texts_and_their_tokens_stay_together(tmp_path: Path) -> None:
    texts = ["two words", "one", "", "ünï cödé of four"]
    with DatasetWriter(tmp_path) as writer:
        for number in range(12):
            tokens = [len(word) for word in texts[number % 4].split()]
            row = {"text": texts[number % 4], "number": number}
            writer.append({**row, "tokens": torch.tensor(tokens, dtype=torch.int32)})
    data = TensorDict.load_memmap(tmp_path)
    seen = []
    loader = BatchLoader(data, 5, shuffle=True, ragged="padded", padding_value=-1)
    for batch in loader:
        for number, text, tokens in zip(
            batch["number"].tolist(), batch["text"], batch["tokens"], strict=True
        ):
            assert text == texts[number % 4]
            assert tokens[tokens >= 0].tolist() == [len(word) for word in text.split()]
            seen.append(number)
    assert sorted(seen) == list(range(12))
    batches = DataLoader(data, batch_size=4, collate_fn=lambda rows: rows)
    assert [[row["text"] for row in batch] for batch in batches] == [texts] * 3


def test_a_mixture_goes_on_from_a_state_in_json(tmp_path: Path) -> None:
    for name, rows in (("few", 10), ("many", 40)):
        td = TensorDict(rows=torch.full((rows,), rows), batch_size=[rows])
        td.memmap(tmp_path / name)
    sources = [TensorDict.load_memmap(tmp_path / name) for name in ("few", "many")]
    mixture = Mixture(sources, [1, 1], num_rows=60)
    loader = BatchLoader(mixture, 8, shuffle=True, seed=3)
    whole = [sorted(batch["rows"].tolist()) for batch in loader]
    assert sum(map(sum, whole)) == 30 * 10 + 30 * 40
    loader.set_epoch(0)
    batches = iter(loader)
    first = [sorted(next(batches)["rows"].tolist()) for _ in range(3)]
    other = BatchLoader(mixture, 8, shuffle=True, seed=0)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert first + [sorted(batch["rows"].tolist()) for batch in other] == whole


def test_parts_for_training_and_validation(tmp_path: Path) -> None:
    TensorDict(y=torch.arange(20), batch_size=[20]).memmap(tmp_path / "data")
    data = TensorDict.load_memmap(tmp_path / "data")
    chance = torch.Generator().manual_seed(0)
    training, validation = random_split(data, [15, 5], chance)
    seen = [batch["y"] for batch in DataLoader(training, batch_size=4, shuffle=True)]
    seen += [batch["y"] for batch in DataLoader(validation, batch_size=4)]
    assert sorted(torch.cat(seen).tolist()) == list(range(20))
    loader = BatchLoader(data, 4, sampler=training.indices)
    rows = torch.cat([batch["y"] for batch in loader]).tolist()
    assert rows == list(training.indices)


def write_part(path: Path, part: int) -> None:
    with DatasetWriter(path, part=part) as writer:
        for number in range(3):
            writer.append({"part": part, "name": f"{part}-{number}"})


def test_processes_write_parts_in_two_rounds(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for num_rows, num_parts in ((9, 3), (15, 2)):
        for part in range(num_parts):
            assert in_process(write_part, path, part) == 0
        assert DatasetWriter.join(path) == num_rows
    data = TensorDict.load_memmap(path)
    assert data["part"].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [0] * 3 + [1] * 3
    assert list(data["name"])[-1] == "1-2"


def test_a_loader_reads_on_while_the_dataset_grows(tmp_path: Path) -> None:
    rows = TensorDict(y=torch.arange(4), n={"z": torch.zeros(4)}, batch_size=[4])
    path = tmp_path / "data"
    with DatasetWriter(path) as writer:
        writer.extend(rows)
    reader = DatasetReader(path)
    batches = iter(BatchLoader(reader.data, 2, prefetch=0))
    next(batches)
    append_memmap(path, rows)
    assert [batch["y"].tolist() for batch in batches] == [[2, 3]]
    assert (reader.refresh(), reader.refresh(), len(reader)) == (True, False, 8)
    found = torch.cat([batch["y"] for batch in BatchLoader(reader.data, 3)])
    assert found.tolist() == [0, 1, 2, 3] * 2
