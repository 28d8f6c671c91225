"""A callback for PyTorch Lightning, which saves steps and goes on from the latest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.callbacks.common import LoopCheckpoint

try:
    from lightning.pytorch import Callback
    from lightning.pytorch import __version__ as version
except ImportError:
    try:
        from pytorch_lightning import Callback
        from pytorch_lightning import __version__ as version
    except ImportError as _error:
        msg = "The callback needs Lightning: pip install tensordict-rs[lightning]"
        raise ImportError(msg) from _error

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from tensordict.checkpoint.checkpointer import Checkpointer
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["LightningCheckpoint"]


class LightningCheckpoint(LoopCheckpoint, Callback):  # type: ignore[misc]
    """Save the module, optimizers, schedulers, loops and callbacks every so many steps.

    A fit begins where the latest step of the checkpointer was saved. The random states are
    set before a batch of a new epoch is drawn.

    A step after which an evaluation runs is saved when that is over, and the last one of
    an epoch when the hooks of its end were called. So the metrics of a step, under all
    their names, were measured at this step; older ones are left out. The states of other
    callbacks are saved, that of the datamodule, and what the module and the callbacks add
    in ``on_save_checkpoint``.

    Args:
        checkpointer: where steps are saved.
        every_n_steps: after how many steps of the optimizer one is saved.
        **items: what else is saved and restored, such as a loader with a state.
    """

    def __init__(
        self, checkpointer: Checkpointer, every_n_steps: int = 1000, **items: Any
    ) -> None:
        super().__init__(checkpointer, every_n_steps, **items)
        self._last: int = -1
        self._awaited: str | None = None
        self._place: tuple[int, dict[str, Any], bool] | None = None
        self._measured_before: dict[str, Any] = {}

    def _items(self, trainer: Trainer, module: LightningModule) -> dict[str, Any]:
        items = {"model": module, **self.items}
        for number, optimizer in enumerate(trainer.optimizers):
            items[f"optimizer_{number}"] = optimizer
        for number, config in enumerate(trainer.lr_scheduler_configs):
            items[f"scheduler_{number}"] = config.scheduler
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        return items if scaler is None else {**items, "scaler": scaler}

    # Going on ----------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the latest step, if there is one."""
        # Behind the others, whose states follow from an evaluation. The list is a new one:
        # somebody walks over the old one.
        others = [each for each in trainer.callbacks if each is not self]
        trainer.callbacks = [*others, self]
        latest = self.checkpointer.latest()
        if latest is None:
            return
        self._call_on_load(trainer, pl_module, latest)
        items = self._items(trainer, pl_module)
        restored = self.checkpointer.restore(latest, rng=False, **items)
        fit_loop = trainer.fit_loop
        fit_loop.load_state_dict(restored["loops"])
        states = restored.get("lightning", {})
        for each in trainer.callbacks:
            if each.state_key in states.get("callbacks", {}):
                each.load_state_dict(states["callbacks"][each.state_key])
        if "datamodule" in states and trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(states["datamodule"])
        self._random_step = latest
        self._last = trainer.global_step
        if restored["is_epoch_end"]:
            # A loop that counts steps would end the epoch once more.
            fit_loop._restarting = False
            fit_loop.epoch_loop.restarting = False
            # The order of the next epoch is drawn before anybody is asked again.
            self._set_random_states()

    def _call_on_load(
        self, trainer: Trainer, module: LightningModule, step: int
    ) -> None:
        """Call the hooks that want to see a checkpoint before it is loaded."""
        wanting = [
            each
            for each in (*trainer.callbacks, module)
            if not type(each).on_load_checkpoint.__module__.startswith(_OWN_MODULES)
        ]
        if not wanting:
            return
        saved = self.checkpointer.restore(step, rng=False)
        model = self.checkpointer.load(step)["model"]
        states = saved.get("lightning", {})
        checkpoint = {
            **_numbers_of(trainer),
            "global_step": step,
            "state_dict": dict(model.flatten_keys(".").items()),
            "loops": {"fit_loop": saved["loops"]},
            "callbacks": states.get("callbacks", {}),
            **states.get("added", {}),
        }
        for each in wanting:
            if each is module:
                module.on_load_checkpoint(checkpoint)
            else:
                each.on_load_checkpoint(trainer, module, checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give loaders the state of the end of an epoch, which the loop does not."""
        loop = trainer.fit_loop
        states = getattr(loop, "_combined_loader_states_to_load", None)
        if states and not loop.restarting and loop._combined_loader is not None:
            loop._combined_loader._load_state_dicts(states)
            loop._combined_loader_states_to_load = []

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: CollectionProtocol,
        batch_idx: int,
    ) -> None:
        """Set the random states of a step within an epoch, whose order is drawn already."""
        self._set_random_states()
        self._measured_before = dict(trainer.callback_metrics)

    # Saving ------------------------------------------------------------------------------

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: CollectionProtocol,
        batch_idx: int,
    ) -> None:
        """Save a step if it is time; end the fit if the process was asked to end."""
        step, loop = trainer.global_step, trainer.fit_loop.epoch_loop
        is_asked = self._is_asked(step)
        if is_asked:
            trainer.should_stop = True
        if trainer.should_stop or loop._is_training_done:
            self._note(trainer, is_epoch_end=False)
        if step == self._last or not (self._is_time(step) or is_asked):
            return
        self._last = step
        if loop._num_ready_batches_reached():
            self._awaited = "epoch"
        elif not is_asked and loop._should_check_val_fx(trainer.fit_loop._data_fetcher):
            self._awaited = "evaluation"
        else:
            self._note(trainer, is_epoch_end=False)
            self._save(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the step that was evaluated."""
        if trainer.sanity_checking or trainer.fit_loop.epoch_loop.batch_idx < 0:
            return
        if self._awaited == "evaluation" or trainer.should_stop:
            self._note(trainer, is_epoch_end=False)
        if self._awaited == "evaluation":
            self._save(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the place behind a whole epoch; other hooks of its end follow."""
        if trainer.fit_loop.epoch_loop._num_ready_batches_reached():
            self._note(trainer, is_epoch_end=True)

    def on_train_epoch_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Save the step that ended an epoch."""
        if self._awaited == "epoch":
            self._save(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the step that ended the last epoch."""
        if self._awaited == "epoch":
            self._save(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the last step, and wait until all are there."""
        if trainer.global_step and trainer.global_step != self._last:
            self._last = trainer.global_step
            self._save(trainer, pl_module)
        self.checkpointer.wait()

    def _note(self, trainer: Trainer, *, is_epoch_end: bool) -> None:
        """Note the place of the loops at this step: hooks that follow move it."""
        loops = trainer.fit_loop.state_dict()
        self._place = trainer.global_step, loops, is_epoch_end

    def _save(self, trainer: Trainer, module: LightningModule) -> None:
        self._awaited = None
        if self._place is None or self._place[0] != self._last:
            self._note(trainer, is_epoch_end=False)
        assert self._place is not None  # noqa: S101 - it was noted
        _, loops, is_epoch_end = self._place
        metrics = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if self._measured_before.get(name) is not value
        }
        self.checkpointer.save(
            self._last,
            metrics=metrics,
            loops=loops,
            is_epoch_end=is_epoch_end,
            lightning=_states(trainer, module, loops),
            **self._items(trainer, module),
        )


_OWN_MODULES = ("lightning.", "pytorch_lightning.")


def _numbers_of(trainer: Trainer) -> dict[str, Any]:
    return {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "pytorch-lightning_version": version,
    }


def _states(
    trainer: Trainer, module: LightningModule, loops: dict[str, Any]
) -> dict[str, Any]:
    """Return what callbacks and datamodule have, and what hooks add to a checkpoint."""
    callbacks = {each.state_key: each.state_dict() for each in trainer.callbacks}
    checkpoint = {
        **_numbers_of(trainer),
        "state_dict": module.state_dict(),
        "loops": {"fit_loop": loops},
        "callbacks": {key: state for key, state in callbacks.items() if state},
    }
    known = set(checkpoint)
    for each in trainer.callbacks:
        each.on_save_checkpoint(trainer, module, checkpoint)
    module.on_save_checkpoint(checkpoint)
    states = {
        "callbacks": checkpoint["callbacks"],
        "added": {key: each for key, each in checkpoint.items() if key not in known},
    }
    found = None if trainer.datamodule is None else trainer.datamodule.state_dict()
    return {**states, "datamodule": found} if found else states
