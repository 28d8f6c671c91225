"""The programs in ``examples/``: each runs on small data and does what it says."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"
SMALL = {
    "image_dataset": "--rows 400 --epochs 4",
    "rollout_buffer": "--iterations 6 --steps 48",
    "convert_checkpoint": "--layers 3",
    "streaming_video": "--videos 8 --epochs 4",
    "many_ranks": "--steps 8",
    "ensemble": "--members 6 --steps 100",
    "remote_checkpoints": "--steps 40",
}


@pytest.fixture
def run(monkeypatch):
    """Run the ``main`` of a program on little data, and return what it returns."""

    def run(name):
        path = FOLDER / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *SMALL[name].split()])
        # Processes that a program starts import it by its name.
        monkeypatch.syspath_prepend(FOLDER)
        return importlib.import_module(name).main()

    yield run
    for name in SMALL:
        sys.modules.pop(name, None)


def test_every_program_is_run_here_and_is_of_readable_length():
    lengths = {p.stem: len(p.read_text().splitlines()) for p in FOLDER.glob("*.py")}
    assert set(lengths) == set(SMALL)
    assert [name for name, lines in lengths.items() if not 50 <= lines <= 180] == []


def test_the_list_of_the_folder_names_every_program():
    text = (FOLDER / "README.md").read_text()
    assert {f"{name}.py" for name in SMALL} == set(re.findall(r"\w+\.py", text))


def test_a_killed_training_on_images_goes_on_and_learns(run, capsys):
    accuracy = run("image_dataset")
    shown = capsys.readouterr().out
    assert "goes on after epoch 2" in shown
    assert (
        shown.index("epoch 2: loss") < shown.index("goes on") < shown.index("epoch 3")
    )
    assert accuracy > 0.4  # a guess is right one time in four


def test_poles_stand_longer_after_learning_from_rollouts(run):
    lengths = run("rollout_buffer")
    assert len(lengths) == 6
    assert lengths[-1] > 1.3 * lengths[0]


def test_a_converted_checkpoint_gives_the_same_logits(run, capsys):
    assert run("convert_checkpoint") < 1e-5
    assert "layers / self_attn / qkv" in capsys.readouterr().out


def test_the_next_frame_of_streamed_videos_is_learned(run, capsys):
    losses = run("streaming_video")
    assert losses[-1] < 0.8 * losses[0]
    assert "A a a" in capsys.readouterr().out


@pytest.mark.timeout(280)
def test_a_training_goes_on_after_a_rank_was_killed(run, capsys):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no ranks")
    losses = run("many_ranks")
    whole, killed, again, fewer = losses.values()
    assert list(whole) == list(range(1, 9))
    assert whole[8] < 0.9 * whole[1]
    assert 1 <= len(killed) < 8
    assert again
    assert again.keys() == fewer.keys()
    # Between them no step is missing.
    assert killed.keys() | again.keys() == whole.keys()
    assert {**killed, **again} == whole == {**again, **killed}
    for step, loss in fewer.items():
        assert loss == pytest.approx(whole[step], abs=1e-5)
    assert "was killed in step" in capsys.readouterr().out


def test_an_ensemble_disagrees_where_there_was_no_data(run):
    inside, outside = run("ensemble")
    assert outside > 1.5 * inside


def test_a_training_goes_on_from_an_object_store(run, capsys):
    pytest.importorskip("obstore")
    losses = run("remote_checkpoints")
    assert list(losses) == list(range(40))
    assert losses[39] < 0.7 * losses[0]
    out = capsys.readouterr().out
    assert "steps [29, 39] are there" in out
    # The backbone is there once: the other step leads to its object.
    assert len(re.findall(r"backbone\S*[.]safetensors$", out, re.MULTILINE)) == 1
