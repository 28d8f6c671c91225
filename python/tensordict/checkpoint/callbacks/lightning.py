"""A callback for PyTorch Lightning, which saves steps and goes on from the latest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.callbacks.common import LoopCheckpoint

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as _error:
        msg = "The callback needs Lightning: pip install tensordict-rs[lightning]"
        raise ImportError(msg) from _error

if TYPE_CHECKING:
    from tensordict.checkpoint.checkpointer import Checkpointer
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["LightningCheckpoint"]


class LightningCheckpoint(LoopCheckpoint, Callback):  # type: ignore[misc]
    """Save the module, optimizers, schedulers and loops every so many steps.

    A fit begins where the latest step of the checkpointer was saved. The random states are
    set before a batch of a new epoch is drawn.

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

    def _items(self, trainer: Any, module: object) -> dict[str, Any]:
        items = {"model": module, **self.items}
        for number, optimizer in enumerate(trainer.optimizers):
            items[f"optimizer_{number}"] = optimizer
        for number, config in enumerate(trainer.lr_scheduler_configs):
            items[f"scheduler_{number}"] = config.scheduler
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        return items if scaler is None else {**items, "scaler": scaler}

    def on_fit_start(self, trainer: Any, pl_module: object) -> None:
        """Restore the latest step, if there is one."""
        latest = self.checkpointer.latest()
        if latest is None:
            return
        items = self._items(trainer, pl_module)
        restored = self.checkpointer.restore(latest, rng=False, **items)
        trainer.fit_loop.load_state_dict(restored["loops"])
        self._random_step = latest
        self._last = trainer.global_step
        if restored["is_epoch_end"]:
            # The order of the next epoch is drawn before anybody is asked again.
            self._set_random_states()

    def on_train_batch_start(
        self,
        trainer: object,
        pl_module: object,
        batch: CollectionProtocol,
        batch_idx: int,
    ) -> None:
        """Set the random states of a step within an epoch, whose order is drawn already."""
        self._set_random_states()

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: object,
        outputs: object,
        batch: CollectionProtocol,
        batch_idx: int,
    ) -> None:
        """Save a step if it is time; end the fit if the process was asked to end."""
        step = trainer.global_step
        if self._is_time(step) and step != self._last:
            self._save(trainer, pl_module)
        if self.checkpointer.preempted:
            trainer.should_stop = True

    def _save(self, trainer: Any, module: object) -> None:
        self._last = trainer.global_step
        items = self._items(trainer, module)
        loops = trainer.fit_loop.state_dict()
        metrics = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if name.isidentifier()
        }
        is_epoch_end = bool(trainer.fit_loop.epoch_loop.batch_progress.is_last_batch)
        self.checkpointer.save(
            self._last, metrics=metrics, loops=loops, is_epoch_end=is_epoch_end, **items
        )

    def on_fit_end(self, trainer: Any, pl_module: object) -> None:
        """Save the last step, and wait until all are there."""
        if trainer.global_step and trainer.global_step != self._last:
            self._save(trainer, pl_module)
        self.checkpointer.wait()
