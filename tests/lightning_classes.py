"""A module of Lightning that notes all that is done to it, and callbacks that end trainings."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import torch

from tensordict.checkpoint import Checkpointer

HOOKS = (
    "on_train_epoch_start",
    "on_validation_start",
    "on_validation_end",
    "on_train_epoch_end",
)


class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
    """Logs its batches and hooks, each with the number of steps before."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Dropout())
        self.log_of: list[Any] = []
        self.loaded: Any = None

    def training_step(self, batch: Any, number: int) -> Any:
        loss = self.net(batch["x"][:, None].float()).square().mean()
        self.log("loss", loss)
        rows = (self.current_epoch, batch["x"].tolist(), loss.item())
        self.log_of.append((self.trainer.global_step, "batch", rows))
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("val/loss", abs(self.trainer.global_step - 6.5))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 1e-3)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_save_checkpoint(self, checkpoint: Any) -> None:
        checkpoint["seen"] = len(self.log_of)

    def on_load_checkpoint(self, checkpoint: Any) -> None:
        self.loaded = checkpoint["seen"], sorted(checkpoint["state_dict"])


def note(name: str) -> Any:
    def hook(self: Module) -> None:
        if not self.trainer.sanity_checking:
            self.log_of.append((self.trainer.global_step, name, self.current_epoch))

    return hook


for _name in HOOKS:
    setattr(Module, _name, note(_name))


class KilledError(Exception):
    pass


class Killer(lightning.Callback):  # type: ignore[name-defined,misc]
    """Ends the training within a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *arguments: Any) -> None:
        if trainer.global_step == self.step:
            raise KilledError


class Asked(lightning.Callback):  # type: ignore[name-defined,misc]
    """Asks the training to end at a step, as SIGTERM does."""

    def __init__(self, step: int, checkpointer: Checkpointer) -> None:
        self.step = step
        self.checkpointer = checkpointer

    def on_train_batch_start(self, trainer: Any, *arguments: Any) -> None:
        if trainer.global_step == self.step - 1:
            self.checkpointer._preempted.set()
