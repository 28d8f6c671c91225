"""A callback for the ``Trainer`` of Hugging Face, which saves steps that it goes on from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tensordict.checkpoint.callbacks.common import LoopCheckpoint
from tensordict.checkpoint.items import File
from tensordict.checkpoint.steps import step_name

try:
    from transformers import TrainerCallback
except ImportError as _error:
    msg = "The callback needs transformers: pip install tensordict-rs[transformers]"
    raise ImportError(msg) from _error

if TYPE_CHECKING:
    from tensordict.checkpoint.checkpointer import Checkpointer

__all__ = ["TrainerCheckpoint"]


class TrainerCheckpoint(LoopCheckpoint, TrainerCallback):  # type: ignore[misc]
    """Save model, optimizer, scheduler and the state of the trainer every so many steps.

    A step is a folder that ``from_pretrained`` opens and the trainer goes on from::

        callback = TrainerCheckpoint(Checkpointer("run"), every_n_steps=500)
        trainer = Trainer(..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.latest())

    The trainer reads the model and its own state, and passes over the batches that were
    seen; optimizer, scheduler and random states are restored here. Have it save nothing
    itself: ``save_strategy="no"``.

    Args:
        checkpointer: where steps are saved.
        every_n_steps: after how many steps of the optimizer one is saved.
        **items: what else is saved and restored.
    """

    def __init__(
        self, checkpointer: Checkpointer, every_n_steps: int = 500, **items: Any
    ) -> None:
        super().__init__(checkpointer, every_n_steps, **items)

    def latest(self) -> str | None:
        """The folder of the latest step, for ``resume_from_checkpoint``."""
        step = self.checkpointer.latest()
        if step is None:
            return None
        return str(self.checkpointer.directory / step_name(step))

    def on_train_begin(
        self, args: object, state: Any, control: object, **given: object
    ) -> None:
        """Restore what the trainer does not, where it goes on from a step."""
        step = state.global_step
        if step == 0 or step not in self.checkpointer.steps():
            return
        items = {
            "optimizer": given["optimizer"],
            "scheduler": given["lr_scheduler"],
            **self.items,
        }
        self.checkpointer.restore(step, rng=False, **items)
        self._random_step = step

    def on_epoch_begin(
        self, args: object, state: Any, control: object, **given: object
    ) -> None:
        """Set the random states of a step that ended an epoch: batches are drawn next."""
        if state.epoch is None or float(state.epoch).is_integer():
            self._set_random_states()

    def on_step_begin(
        self, args: object, state: object, control: object, **given: object
    ) -> None:
        """Set the random states of a step within an epoch."""
        self._set_random_states()

    def on_step_end(
        self, args: object, state: Any, control: Any, **given: object
    ) -> None:
        """Save a step if it is time; end the training if the process was asked to."""
        if self._is_time(state.global_step):
            logged = state.log_history[-1] if state.log_history else {}
            metrics = {
                name: value
                for name, value in logged.items()
                if isinstance(value, (int, float))
            }
            content = {**vars(state), "stateful_callbacks": {}}
            text = json.dumps(content, default=str, indent=2)
            self.checkpointer.save(
                state.global_step,
                metrics=metrics,
                model=given["model"],
                optimizer=given["optimizer"],
                scheduler=given["lr_scheduler"],
                trainer_state=File("trainer_state.json", text),
                **self.items,
            )
        if self.checkpointer.preempted:
            control.should_training_stop = True

    def on_train_end(
        self, args: object, state: object, control: object, **given: object
    ) -> None:
        """Wait until all steps are there."""
        self.checkpointer.wait()
