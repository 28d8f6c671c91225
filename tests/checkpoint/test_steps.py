"""The folder of a checkpointer: which steps are there, which go, and what survives."""

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from separate_process import SERVER
from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint.steps import Step, retired


def value(checkpointer: Checkpointer, step: int | None = None) -> Any:
    return checkpointer.restore(step)["x"]


def make(path: Path, **options: Any) -> Checkpointer:
    return Checkpointer(path / "run", durable=False, **options)


def test_the_last_steps_are_kept(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, keep=2, keep_every=10)
    for step in (5, 10, 15, 20, 25, 30, 35):
        checkpointer.save(step, x=step)
    assert checkpointer.steps() == [10, 20, 30, 35]
    assert checkpointer.latest() == 35
    assert sorted(os.listdir(tmp_path / "run")) == [
        "step-10",
        "step-20",
        "step-30",
        "step-35",
    ]
    everything = make(tmp_path / "all", keep=None)
    for step in range(5):
        everything.save(step, x=step)
    assert everything.steps() == [0, 1, 2, 3, 4]


def test_a_run_that_went_back_keeps_its_own(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, keep=2)
    for step in (100, 200, 300):
        checkpointer.save(step, x=("old", step))
    again = make(tmp_path, keep=2)
    assert again.restore(200)["x"] == ("old", 200)
    again.save(210, x=("new", 210))
    assert again.steps() == [300, 210]
    assert again.latest() == 210
    again.save(220, x=("new", 220))
    assert again.steps() == [210, 220]
    again.save(210, x=("newer", 210))
    assert again.steps() == [220, 210]
    assert value(again) == ("newer", 210)


def save_what_is_told(folder: str, connection: Any) -> None:
    checkpointer = Checkpointer(folder, keep=1, durable=False)
    while (step := connection.recv()) is not None:
        checkpointer.save(step, x=step)
        connection.send(checkpointer.steps())


def test_two_jobs_that_run_keep_their_own_steps(tmp_path: Path) -> None:
    here, there = SERVER.Pipe()
    arguments = str(tmp_path / "run"), there
    other = SERVER.Process(target=save_what_is_told, args=arguments, daemon=True)
    other.start()
    own = make(tmp_path, keep=1)
    own.save(1, x=1)
    for step, expected in ((10, [1, 10]), (11, [1, 11])):
        here.send(step)
        assert here.recv() == expected
    own.save(2, x=2)
    assert own.steps() == [11, 2]
    here.send(None)
    other.join()
    # Now it has ended, and the folder is that of one job again.
    own.save(3, x=3)
    assert own.steps() == [3]


def test_a_job_of_another_machine_keeps_its_steps(tmp_path: Path) -> None:
    def step(order: int, process: str) -> Step:
        return Step(order, order, {}, tmp_path / f"step-{order}", process)

    before, own, other = "a-1-7-7-0", "b-1-7-7-0", "c-1-7-7-0"
    steps = [step(0, ""), step(1, before), step(2, own), step(3, own)]
    assert retired(steps, 1, None) == steps[:3]
    # It saved after this job began, so it was running.
    steps = [
        step(0, other),
        step(1, before),
        step(2, own),
        step(3, other),
        step(4, own),
    ]
    assert retired(steps, 1, None) == [steps[1], steps[2]]
    assert retired(steps, 3, None) == []


def test_the_best_step(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, keep=None)
    assert checkpointer.best("loss") is None
    assert checkpointer.latest() is None
    for step, loss in enumerate([3.0, 1.0, float("nan"), 2.0, 1.0]):
        metrics = {"loss": torch.tensor(loss), "step": step}
        checkpointer.save(step, metrics=metrics, x=0)
    checkpointer.save(5, x=0)
    assert checkpointer.best("loss") == 1
    assert checkpointer.best("loss", "max") == 0
    with pytest.raises(KeyError, match=r"has the metric 'other': there are \['loss', "):
        checkpointer.best("other")
    assert checkpointer.restore(3).metrics == {"loss": 2.0, "step": 3.0}


def test_a_step_is_whole_when_it_is_copied_alone(tmp_path: Path) -> None:
    for dedupe in (False, True):
        checkpointer = make(tmp_path / str(dedupe), dedupe=dedupe, keep=1)
        model = nn.Linear(100, 100)
        checkpointer.save(1, model=model)
        checkpointer.save(2, model=model)
        other = tmp_path / str(dedupe) / "other"
        shutil.copytree(tmp_path / str(dedupe) / "run" / "step-2", other / "step-7")
        shutil.rmtree(tmp_path / str(dedupe) / "run")
        fresh = nn.Linear(100, 100)
        Checkpointer(other).restore(7, model=fresh)
        assert torch.equal(fresh.weight, model.weight)


def test_steps_that_are_not_there(tmp_path: Path) -> None:
    checkpointer = make(tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpointer.restore()
    assert not (tmp_path / "run").exists()
    checkpointer.save(3, x=1)
    with pytest.raises(FileNotFoundError, match=r"no step 4 in .* it has \[3\]"):
        checkpointer.load(4)
    with pytest.raises(ValueError, match="step must be an integer"):
        checkpointer.save(-1, x=1)
    with pytest.raises(ValueError, match="There is nothing to save"):
        checkpointer.save(1)
    with pytest.raises(ValueError, match="keep must be an integer"):
        make(tmp_path, keep=0)


def test_mistakes_are_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(NotADirectoryError, match="'.*file' is a file"):
        Checkpointer(file)
    with pytest.raises(NotADirectoryError, match="'.*file' is a file"):
        Checkpointer(file / "run")
    checkpointer = make(tmp_path)
    for option in ("keep", "durable", "dedupe", "rank_timeout", "handle_sigterm"):
        with pytest.raises(TypeError, match=rf"Checkpointer\(directory, {option}=3\)"):
            checkpointer.save(1, x=1, **{option: 3})
    assert not (tmp_path / "run").exists()
    assert checkpointer.best("loss") is None
    checkpointer.save(1, x=1)
    with pytest.raises(KeyError, match="has the metric 'loss': there are none"):
        checkpointer.best("loss")


def test_folders_of_nodes_are_no_store(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    for directory, options in (
        ("memory://bucket/run", {}),
        (tmp_path / "run", {"mirror": "memory://bucket/run"}),
    ):
        with pytest.raises(ValueError, match="shared=False.*'memory://bucket/run'"):
            Checkpointer(directory, shared=False, **options)
    assert not (tmp_path / "run").exists()


def test_a_training_that_went_back_restores_what_it_saved_last(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, keep=None)
    for step in (1, 2, 3, 4, 3):
        checkpointer.save(step, x=step)
    assert checkpointer.steps() == [1, 2, 4, 3]
    assert checkpointer.restore().step == checkpointer.latest() == 3


def test_what_is_no_step_is_passed_over(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, keep=1)
    run = tmp_path / "run"
    checkpointer.save(1, x=1)
    # Left by a machine that died: a step without its description, other files.
    (run / ".tdtmp" / "1-2-3-4-5" / "new").mkdir(parents=True)
    (run / "step-9").mkdir()
    (run / "step-08").mkdir()
    (run / "notes.txt").write_text("mine")
    assert checkpointer.steps() == [1]
    checkpointer.save(2, x=2)
    assert checkpointer.steps() == [2]
    assert sorted(os.listdir(run)) == ["notes.txt", "step-08", "step-2", "step-9"]
    meta = run / "step-2" / "meta.json"
    meta.write_bytes(meta.read_bytes().replace(b'"step": 2', b'"step": 3'))
    assert checkpointer.steps() == []
    with pytest.raises(RuntimeError, match="does not match its checksum"):
        checkpointer.restore(2)


def test_a_reader_beside_a_writer_sees_whole_steps(tmp_path: Path) -> None:
    writer = make(tmp_path, keep=1, shards=2)
    reader = make(tmp_path)
    writer.save(0, x={str(key): torch.full((5000,), 0) for key in range(4)}, n=0)
    stop = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                found = reader.restore(rng=False)
                leaves = found["x"].values()
                values = {int(each) for leaf in leaves for each in leaf.unique()}
                assert values == {found["n"]}
        except Exception as error:  # noqa: BLE001 (it is shown below)
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(1, 60):
        tensors = {str(key): torch.full((5000,), number) for key in range(4)}
        # Now a new step, now in the place of one.
        writer.save(number // 3, x=tensors, n=number)
    stop.set()
    thread.join()
    assert errors == []


def test_files_are_standard(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    path = make(tmp_path, shards=2).save(0, model=model, epoch=1)
    assert path is not None
    assert sorted(os.listdir(path)) == [
        "meta.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    fresh = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    for file in path.glob("*.safetensors"):
        fresh.load_state_dict(safetensors.load_file(file), strict=False)  # type: ignore[operator]
    assert torch.equal(fresh[0].weight, model[0].weight)
    assert torch.equal(fresh[1].weight, model[1].weight)
