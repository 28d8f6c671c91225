"""The programs in ``examples/``: each runs on small data and does what it says."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SMALL = {
    "image_dataset": "--rows 400 --epochs 4",
    "rollout_buffer": "--iterations 6 --steps 48",
    "convert_checkpoint": "--layers 3",
    "streaming_video": "--videos 8 --epochs 4",
    "ensemble": "--members 6 --steps 100",
}


@pytest.fixture
def run(monkeypatch):
    """Run the ``main`` of a program on little data, and return what it returns."""

    def run(name):
        path = FOLDER / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *SMALL[name].split()])
        spec = importlib.util.spec_from_file_location(f"example_{name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.main()

    return run


def test_every_program_is_run_here_and_is_of_readable_length():
    lengths = {p.stem: len(p.read_text().splitlines()) for p in FOLDER.glob("*.py")}
    assert set(lengths) == set(SMALL)
    assert [name for name, lines in lengths.items() if not 50 <= lines <= 160] == []


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


def test_an_ensemble_disagrees_where_there_was_no_data(run):
    inside, outside = run("ensemble")
    assert outside > 1.5 * inside
