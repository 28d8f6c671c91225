"""A callback for PyTorch Lightning that saves steps and resumes from the latest."""

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
        msg = (
            "LightningCheckpoint needs Lightning: pip install tensordict-rs[lightning]"
        )
        raise ImportError(msg) from _error

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from tensordict.checkpoint.checkpointer import Checkpointer
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["LightningCheckpoint"]


class LightningCheckpoint(LoopCheckpoint, Callback):  # type: ignore[misc]
    """A callback that saves a step every ``every_n_steps`` optimizer steps.

    A step contains the module, optimizers, schedulers, loops, the states of the other
    callbacks and of the datamodule, and what they add in ``on_save_checkpoint``.
    ``fit`` resumes from the latest step of the checkpointer. It sets the random states
    before it draws a batch of a new epoch.

    If a validation follows a step, the step is saved after the validation. The last
    step of an epoch is saved after the hooks of the epoch's end. So the metrics of a
    step were measured at this step; older metrics are left out.

    Args:
        checkpointer: the checkpointer that saves the steps.
        every_n_steps: the number of optimizer steps between two saves.
        **items: more items to save and restore, such as a loader with a state.
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

    # Resuming -------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the latest step, if there is one."""
        # This callback runs last, since the states of the others follow from a
        # validation. Lightning iterates over the old list at this moment, so the list
        # is replaced.
        others = [callback for callback in trainer.callbacks if callback is not self]
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
        for callback in trainer.callbacks:
            if callback.state_key in states.get("callbacks", {}):
                callback.load_state_dict(states["callbacks"][callback.state_key])
        if "datamodule" in states and trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(states["datamodule"])
        self._random_step = latest
        self._last = trainer.global_step
        if restored["is_epoch_end"]:
            # The loop counts steps, and would end this epoch a second time.
            fit_loop._restarting = False
            fit_loop.epoch_loop.restarting = False
            # Lightning draws the order of the next epoch before its next hook.
            self._set_random_states()

    def _call_on_load(
        self, trainer: Trainer, module: LightningModule, step: int
    ) -> None:
        """Call the ``on_load_checkpoint`` hooks of the user's module and callbacks."""
        hook_owners = [
            hook_owner
            for hook_owner in (*trainer.callbacks, module)
            if not type(hook_owner).on_load_checkpoint.__module__.startswith(
                _OWN_MODULES
            )
        ]
        if not hook_owners:
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
        for hook_owner in hook_owners:
            if hook_owner is module:
                module.on_load_checkpoint(checkpoint)
            else:
                hook_owner.on_load_checkpoint(trainer, module, checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the loader states of a step that ended an epoch; Lightning does not."""
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
        """Set the random states of a step within an epoch: its order is already drawn."""
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
        """Save a step if it is due, and stop the fit if the process was asked to end."""
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
        """Save the step that the validation measured."""
        if trainer.sanity_checking or trainer.fit_loop.epoch_loop.batch_idx < 0:
            return
        if self._awaited == "evaluation" or trainer.should_stop:
            self._note(trainer, is_epoch_end=False)
        if self._awaited == "evaluation":
            self._save(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the loop states after a complete epoch, before other hooks change them."""
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
        """Save the last step, and wait until all steps are saved."""
        if trainer.global_step and trainer.global_step != self._last:
            self._last = trainer.global_step
            self._save(trainer, pl_module)
        self.checkpointer.wait()

    def _note(self, trainer: Trainer, *, is_epoch_end: bool) -> None:
        """Keep the loop states of this step, since later hooks change them."""
        loops = trainer.fit_loop.state_dict()
        self._place = trainer.global_step, loops, is_epoch_end

    def _save(self, trainer: Trainer, module: LightningModule) -> None:
        self._awaited = None
        if self._place is None or self._place[0] != self._last:
            self._note(trainer, is_epoch_end=False)
        assert self._place is not None  # noqa: S101 - `_note` has set it
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
    """Return the states of callbacks and datamodule, and what the save hooks add."""
    callbacks = {
        callback.state_key: callback.state_dict() for callback in trainer.callbacks
    }
    checkpoint = {
        **_numbers_of(trainer),
        "state_dict": module.state_dict(),
        "loops": {"fit_loop": loops},
        "callbacks": {key: state for key, state in callbacks.items() if state},
    }
    own_keys = set(checkpoint)
    for callback in trainer.callbacks:
        callback.on_save_checkpoint(trainer, module, checkpoint)
    module.on_save_checkpoint(checkpoint)
    states = {
        "callbacks": checkpoint["callbacks"],
        "added": {
            key: value for key, value in checkpoint.items() if key not in own_keys
        },
    }
    datamodule_state = (
        None if trainer.datamodule is None else trainer.datamodule.state_dict()
    )
    return {**states, "datamodule": datamodule_state} if datamodule_state else states
