"""The training loops of others go on from a step with the same losses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensordict.checkpoint import Checkpointer

pytestmark = [
    # These libraries warn of themselves and of each other.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(280),
]

DATA = torch.arange(80.0).reshape(20, 4) / 80


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))


def lightning_losses(folder: Path, epochs: int) -> list[float]:
    lightning = pytest.importorskip("lightning.pytorch")
    from tensordict.checkpoint.callbacks.lightning import LightningCheckpoint

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.losses: list[float] = []

        def training_step(self, batch: Any, number: int) -> Any:
            loss = self.net(batch).square().mean()
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters())
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            return {"optimizer": optimizer, "lr_scheduler": scheduler}

    torch.manual_seed(0)
    module = Module()
    checkpointer = Checkpointer(folder, durable=False, keep=None, background=True)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LightningCheckpoint(checkpointer, every_n_steps=5)],
    )
    loader = torch.utils.data.DataLoader(DATA, batch_size=4, shuffle=True)  # type: ignore[arg-type]
    trainer.fit(module, loader)
    return module.losses


def test_lightning(tmp_path: Path) -> None:
    whole = lightning_losses(tmp_path / "whole", 4)
    first = lightning_losses(tmp_path / "run", 2)
    assert Checkpointer(tmp_path / "run").steps() == [5, 10]
    assert first + lightning_losses(tmp_path / "run", 4) == whole


def trainer_losses(
    folder: Path, steps: int, metrics: Any = None, **options: Any
) -> list[float]:
    transformers = pytest.importorskip("transformers")
    from tensordict.checkpoint.callbacks.transformers import TrainerCheckpoint

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    model = transformers.BertForSequenceClassification(config)
    rows = [
        {"input_ids": torch.randint(11, (5,)), "labels": torch.tensor(number % 2)}
        for number in range(16)
    ]
    losses: list[float] = []

    class Trainer(transformers.Trainer):  # type: ignore[name-defined,misc]
        def training_step(self, *arguments: Any, **options: Any) -> Any:
            loss = super().training_step(*arguments, **options)
            losses.append(loss.item())
            return loss

        def evaluate(self, *arguments: Any, **options: Any) -> Any:
            found = {"eval_loss": metrics[self.state.global_step]}
            self.log(dict(found))
            self.control = self.callback_handler.on_evaluate(
                self.args, self.state, self.control, found
            )
            return found

    checkpointer = Checkpointer(folder, durable=False, keep=None, background=True)
    every = options.pop("every", 3)
    callback = TrainerCheckpoint(checkpointer, every_n_steps=every)
    others = options.pop("callbacks", [])
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=steps,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        lr_scheduler_type="constant",
        seed=3,
        **options,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=[callback, *others],
    )
    trainer.train(resume_from_checkpoint=callback.latest())
    return losses


def stopping() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.EarlyStoppingCallback(early_stopping_patience=2)


METRICS = {step: abs(step - 6.5) for step in range(40)}


def test_metrics_are_those_that_the_trainer_measured_at_the_step(
    tmp_path: Path,
) -> None:
    options = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "logging_steps": 3,
        "every": 1,
    }
    trainer_losses(tmp_path / "steps", 9, METRICS, **options)
    checkpointer = Checkpointer(tmp_path / "steps")
    assert checkpointer.best("eval_loss") == 6
    found = {step: checkpointer.restore(step).metrics for step in checkpointer.steps()}
    # The trainer evaluates the last step as well.
    assert {step for step in found if "eval_loss" in found[step]} == {2, 4, 6, 8, 9}
    assert {step for step in found if "loss" in found[step]} == {3, 6, 9}
    trainer_losses(tmp_path / "epochs", 12, METRICS, eval_strategy="epoch", every=2)
    checkpointer = Checkpointer(tmp_path / "epochs")
    assert checkpointer.steps() == [2, 4, 6, 8, 10, 12]
    found = {step: checkpointer.restore(step).metrics for step in checkpointer.steps()}
    assert {step for step in found if "eval_loss" in found[step]} == {4, 8, 12}
    assert checkpointer.best("eval_loss") == 8


@pytest.mark.parametrize("stop", [6, 8])
def test_a_trainer_stops_early_where_it_would_have(tmp_path: Path, stop: int) -> None:
    def losses(folder: Path, steps: int) -> list[float]:
        return trainer_losses(
            folder,
            steps,
            METRICS,
            eval_strategy="steps",
            eval_steps=2,
            every=2,
            callbacks=[stopping()],
            metric_for_best_model="eval_loss",
            greater_is_better=False,
            restore_callback_states_from_checkpoint=True,
        )

    whole = losses(tmp_path / "whole", 40)
    assert len(whole) == 10
    first = losses(tmp_path / "run", stop)
    path = tmp_path / "run" / f"step-{stop}" / "trainer_state.json"
    state = json.loads(path.read_text())["stateful_callbacks"]
    found = state["EarlyStoppingCallback"]["attributes"]
    assert found["early_stopping_patience_counter"] == (stop - 6) // 2
    assert first + losses(tmp_path / "run", 40) == whole


@pytest.fixture(scope="module")
def whole_losses(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a training that nothing ended."""
    return trainer_losses(tmp_path_factory.mktemp("whole"), 12)


@pytest.mark.parametrize("steps", [6, 8])
def test_trainer_of_hugging_face(
    tmp_path: Path, steps: int, whole_losses: list[float]
) -> None:
    transformers = pytest.importorskip("transformers")
    trainer_losses(tmp_path / "run", steps)
    path = tmp_path / "run" / "step-6"
    assert json.loads((path / "trainer_state.json").read_text())["global_step"] == 6
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path)
    saved = Checkpointer(tmp_path / "run").load(6)["model", "classifier", "weight"]
    assert torch.equal(model.classifier.weight, saved)
    assert trainer_losses(tmp_path / "run", 12) == whole_losses[6:]


def test_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from tensordict.checkpoint.callbacks.accelerate import AcceleratorCheckpoint

    def make() -> tuple[Any, ...]:
        accelerator = accelerate.Accelerator(cpu=True)
        model = net()
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        checkpointer = Checkpointer(tmp_path, durable=False)
        return accelerator, model, optimizer, scheduler, checkpointer

    def train(accelerator: Any, model: Any, optimizer: Any, scheduler: Any) -> float:
        loss = model(DATA).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        return float(loss.item())

    *state, checkpointer = make()
    train(*state)
    AcceleratorCheckpoint(state[0], checkpointer).save(1, epoch=7)
    expected = [train(*state) for _ in range(3)]
    *state, checkpointer = make()
    restored = AcceleratorCheckpoint(state[0], checkpointer).restore()
    assert restored == {"epoch": 7}
    assert [train(*state) for _ in range(3)] == expected
