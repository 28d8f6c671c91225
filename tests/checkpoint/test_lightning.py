"""A training of Lightning that goes on from any step is the one that was not stopped."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict import TensorDict
from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint.steps import step_name
from tensordict.data import BatchLoader

pytestmark = [
    # Lightning warns of itself.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(280),
]

EPOCHS, BATCHES = 3, 4
STEPS = EPOCHS * BATCHES


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import Lightning where its tests run: each worker collects them, in seconds."""
    lightning = pytest.importorskip("lightning.pytorch")
    trained = importlib.import_module("lightning_classes")
    globals().update(lightning=lightning, trained=trained)


lightning: Any = None
trained: Any = None


def drawn() -> Any:
    return torch.utils.data.RandomSampler(
        range(16), generator=torch.Generator().manual_seed(3)
    )


def weights() -> Any:
    return torch.utils.data.WeightedRandomSampler([1.0] * 16, 16)


LOADERS: dict[str, Any] = {
    "shuffle": lambda td: BatchLoader(td, 4, shuffle=True, seed=1),
    "generator": lambda td: BatchLoader(td, 4, sampler=drawn()),
    "weights": lambda td: BatchLoader(td, 4, sampler=weights(), prefetch=0, seed=1),
    "no seed": lambda td: BatchLoader(td, 4, shuffle=True),
}


def fit(
    kind: str, callbacks: list[Any], *, path: Any = None, **options: Any
) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = trained.Module()
    trainer = lightning.Trainer(
        **{"max_epochs": EPOCHS, "num_sanity_val_steps": 1, **options},
        accelerator="cpu",
        logger=False,
        enable_checkpointing=any(
            isinstance(each, lightning.callbacks.ModelCheckpoint) for each in callbacks
        ),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    td = TensorDict(x=torch.arange(16), batch_size=[16])
    validation = BatchLoader(td[:2], 2)
    trainer.fit(module, LOADERS[kind](td), validation, ckpt_path=path)
    return module, trainer


def saves(folder: Path, every: int = 1) -> Any:
    from tensordict.checkpoint.callbacks.lightning import LightningCheckpoint

    checkpointer = Checkpointer(folder, durable=False, keep=None)
    return LightningCheckpoint(checkpointer, every_n_steps=every)


def behind(log: list[Any], step: int, interval: bool) -> list[Any]:
    """Return the log that follows the save of a step in a training that was not stopped."""
    ends_epoch = step % BATCHES == 0
    awaited = ends_epoch or (interval and step % 2 == 0)
    last = "on_train_epoch_end" if ends_epoch else "on_validation_end"
    for at, (found, what, _) in enumerate(log):
        if (awaited and (found, what) == (step, last)) or (
            not awaited and (found, what) == (step - 1, "batch")
        ):
            return log[at + 1 :]
    raise AssertionError(step)


@pytest.mark.parametrize("interval", [False, True])
@pytest.mark.parametrize("kind", LOADERS)
def test_each_step_goes_on_as_if_nothing_was(
    kind: str, interval: bool, tmp_path: Path
) -> None:
    options = {"val_check_interval": 0.5} if interval else {}
    whole, _ = fit(kind, [saves(tmp_path / "whole")], **options)
    batches = [entry for entry in whole.log_of if entry[1] == "batch"]
    assert len(batches) == STEPS
    steps = Checkpointer(tmp_path / "whole").steps()
    assert steps == list(range(1, STEPS + 1))
    for step in steps if kind == "shuffle" else (3, 4, 6, 8):
        folder = tmp_path / f"from-{step}"
        shutil.copytree(tmp_path / "whole" / step_name(step), folder / step_name(step))
        resumed, trainer = fit(kind, [saves(folder)], **options)
        assert resumed.log_of == behind(whole.log_of, step, interval)
        assert trainer.global_step == STEPS
        assert resumed.loaded[1] == ["net.0.bias", "net.0.weight"]


@pytest.mark.parametrize("step", [2, 4, 5, 8])
def test_a_training_that_was_killed_goes_on(step: int, tmp_path: Path) -> None:
    whole, _ = fit("shuffle", [saves(tmp_path / "whole")])
    with pytest.raises(trained.KilledError):
        fit("shuffle", [saves(tmp_path / "run"), trained.Killer(step)])
    latest = Checkpointer(tmp_path / "run").latest()
    # The step itself is saved by the hooks behind, and counts as not done.
    assert latest in (step - 1, None)
    resumed, _ = fit("shuffle", [saves(tmp_path / "run")])
    assert resumed.log_of == behind(whole.log_of, step - 1, False)


@pytest.mark.parametrize(
    "stop", [{"max_steps": 6}, {"max_epochs": 2}, {"max_steps": 8}]
)
@pytest.mark.parametrize("every", [1, 5])
def test_a_fit_that_ended_is_continued(stop: Any, every: int, tmp_path: Path) -> None:
    whole, _ = fit("generator", [saves(tmp_path / "whole")])
    first, _ = fit("generator", [saves(tmp_path / "run", every)], **stop)
    rest, _ = fit("generator", [saves(tmp_path / "run", every)])
    first_batches = [entry for entry in first.log_of if entry[1] == "batch"]
    batches = [entry for entry in whole.log_of if entry[1] == "batch"]
    assert first_batches + [entry for entry in rest.log_of if entry[1] == "batch"] == (
        batches
    )
    ends = [entry for entry in rest.log_of if entry[1] == "on_train_epoch_end"]
    assert ends == [
        entry
        for entry in whole.log_of
        if entry[1] == "on_train_epoch_end" and entry[0] > len(first_batches)
    ]
    # With a limit on the steps the loop does not end an epoch once more.
    again, _ = fit("generator", [saves(tmp_path / "whole")], max_steps=STEPS)
    assert again.log_of == []


@pytest.mark.parametrize("step", [3, 8, 10])
def test_a_training_that_was_asked_to_end_goes_on(step: int, tmp_path: Path) -> None:
    whole, _ = fit("generator", [saves(tmp_path / "whole")])
    callback = saves(tmp_path / "run", 100)
    _, first = fit("generator", [callback, trained.Asked(step, callback.checkpointer)])
    assert first.global_step == step
    assert callback.checkpointer.steps() == [step]
    resumed, _ = fit("generator", [saves(tmp_path / "run", 100)])
    assert resumed.log_of == behind(whole.log_of, step, False)


def test_the_sampler_of_lightning_is_taken_as_dealt() -> None:
    from lightning.fabric.utilities.distributed import DistributedSamplerWrapper

    td = TensorDict(x=torch.arange(16), batch_size=[16])
    found = []
    for rank in range(2):
        sampler = DistributedSamplerWrapper(drawn(), num_replicas=2, rank=rank)
        loader = BatchLoader(td, 4, sampler=sampler)
        first = [batch["x"].tolist() for batch in loader]
        other = BatchLoader(
            td,
            4,
            sampler=DistributedSamplerWrapper(drawn(), num_replicas=2, rank=rank),
        )
        other.load_state_dict(loader.state_dict())
        assert [batch["x"].tolist() for batch in other] == [
            batch["x"].tolist() for batch in loader
        ]
        found += [row for rows in first for row in rows]
    assert sorted(found) == list(range(16))


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("when", ["steps", "epochs"])
def test_checkpoints_of_lightning_go_on(kind: str, when: str, tmp_path: Path) -> None:
    options: Any = {"every_n_train_steps": 1}
    if when == "epochs":
        options = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
    callback = lightning.callbacks.ModelCheckpoint(
        tmp_path, "{step}", save_top_k=-1, **options
    )
    whole, _ = fit(kind, [callback])
    expected = [entry for entry in whole.log_of if entry[1] == "batch"]
    steps = {"steps": (2, 4, 7, 8), "epochs": (4, 8)}[when]
    for step in steps:
        other = lightning.callbacks.ModelCheckpoint(tmp_path / "other")
        path = str(tmp_path / f"step={step}.ckpt")
        resumed, trainer = fit(kind, [other], path=path)
        found = [entry for entry in resumed.log_of if entry[1] == "batch"]
        assert [entry[2][:2] for entry in found] == [
            entry[2][:2] for entry in expected[step:]
        ]
        assert trainer.global_step == STEPS
        if when == "epochs":
            assert [entry[1] for entry in resumed.log_of] == [
                entry[1] for entry in behind(whole.log_of, step, False)
            ]


# States and metrics beside the module ----------------------------------------------------


def test_metrics_are_those_of_the_step(tmp_path: Path) -> None:
    fit("shuffle", [saves(tmp_path, 2)])
    checkpointer = Checkpointer(tmp_path)
    assert checkpointer.best("val/loss") == 8
    metrics = {step: checkpointer.restore(step).metrics for step in (2, 4, 6, 8)}
    assert metrics[4]["val/loss"] == 2.5
    assert metrics[8]["val/loss"] == 1.5
    assert "val/loss" not in metrics[2]
    assert "val/loss" not in metrics[6]
    assert all("loss" in found for found in metrics.values())


def test_the_best_step_is_the_one_that_was_evaluated(tmp_path: Path) -> None:
    fit("shuffle", [saves(tmp_path, 2)], val_check_interval=2)
    assert Checkpointer(tmp_path).best("val/loss") == 6


def test_other_callbacks_go_on(tmp_path: Path) -> None:
    def stopper() -> Any:
        return lightning.callbacks.EarlyStopping("val/loss", patience=2)

    options = {"val_check_interval": 2, "max_epochs": 10}
    stopped, whole = fit(
        "shuffle", [saves(tmp_path / "whole", 2), stopper()], **options
    )
    assert whole.global_step == 10
    for stop in (6, 8):
        fit(
            "shuffle",
            [saves(tmp_path / f"{stop}"), stopper()],
            max_steps=stop,
            **options,
        )
        resumed, trainer = fit(
            "shuffle", [saves(tmp_path / f"{stop}"), stopper()], **options
        )
        assert trainer.global_step == 10
