"""A callback for the ``Trainer`` of Hugging Face, which saves steps that it goes on from."""

from __future__ import annotations

import copy
import json
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensordict.checkpoint.callbacks.common import LoopCheckpoint
from tensordict.checkpoint.items import File
from tensordict.checkpoint.steps import step_name

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as _error:
    msg = "The callback needs transformers: pip install tensordict-rs[transformers]"
    raise ImportError(msg) from _error

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

    from tensordict.checkpoint.checkpointer import Checkpointer

__all__ = ["TrainerCheckpoint"]


class TrainerCheckpoint(LoopCheckpoint, TrainerCallback):  # type: ignore[misc]
    """Save model, optimizer, scheduler and the state of the trainer every so many steps.

    A step is a folder that ``from_pretrained`` opens and the trainer goes on from::

        callback = TrainerCheckpoint(Checkpointer("run"), every_n_steps=500)
        trainer = Trainer(..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.latest())

    A step after which the trainer logs or evaluates, or which ends an epoch, is saved when
    that is over. Its metrics are those that the trainer logged at this step. The states of
    other callbacks, such as ``EarlyStoppingCallback``, are in ``trainer_state.json``: the
    trainer takes them with ``restore_callback_states_from_checkpoint=True``.

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
        self._awaited: dict[str, Any] | None = None
        self._handler: Any = None

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
        # The trainer tells nobody its callbacks; who calls this has them.
        self._handler = sys._getframe(1).f_locals.get("self")
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
        self._save_awaited(state, control, given)
        if state.epoch is None or float(state.epoch).is_integer():
            self._set_random_states()

    def on_step_begin(
        self, args: object, state: object, control: object, **given: object
    ) -> None:
        """Set the random states of a step within an epoch."""
        self._save_awaited(state, control, given)
        self._set_random_states()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: object) -> None:
        """Save a step if it is time; end the training if the process was asked to."""
        is_asked = self._is_asked(state.global_step)
        if self._is_time(state.global_step) or is_asked:
            # Loaders are ahead when the next event comes.
            self._awaited = {
                name: _Stated(item) if _has_state(item) else item
                for name, item in self.items.items()
            }
            ends_epoch = state.epoch is not None and float(state.epoch).is_integer()
            follows = control.should_evaluate or control.should_log or ends_epoch
            if is_asked or not follows:
                self._save_awaited(state, control, given)
        if is_asked:
            control.should_training_stop = True

    def on_train_end(
        self, args: object, state: object, control: object, **given: object
    ) -> None:
        """Save the last step if it was to be evaluated, and wait until all are there."""
        self._save_awaited(state, control, given)
        self.checkpointer.wait()

    def _save_awaited(self, state: Any, control: object, given: dict[str, Any]) -> None:
        """Save the step before, after which the trainer has logged and evaluated."""
        items, self._awaited = self._awaited, None
        if items is None:
            return
        metrics = {
            name: value
            for logged in state.log_history
            if logged.get("step") == state.global_step
            for name, value in logged.items()
            if isinstance(value, (int, float))
        }
        states = _states_of_callbacks(self._handler, control)
        content = {
            **vars(state),
            "stateful_callbacks": {**state.stateful_callbacks, **states},
        }
        text = json.dumps(content, default=str, indent=2)
        self.checkpointer.save(
            state.global_step,
            metrics=metrics,
            model=given["model"],
            optimizer=given["optimizer"],
            scheduler=given["lr_scheduler"],
            trainer_state=File("trainer_state.json", text),
            **items,
        )


class _Stated:
    """The state of an item as it was.

    Args:
        item: has the state.
    """

    def __init__(self, item: Stateful) -> None:
        self._state: object = copy.deepcopy(item.state_dict())

    def state_dict(self) -> Any:
        """Return the state."""
        return self._state

    def load_state_dict(self, state: object) -> None:
        """Take another one."""
        self._state = state


def _has_state(item: object) -> bool:
    is_big = isinstance(item, (nn.Module, torch.optim.Optimizer))
    return (
        not is_big and hasattr(item, "state_dict") and hasattr(item, "load_state_dict")
    )


def _states_of_callbacks(handler: object, control: object) -> dict[str, Any]:
    """Return the states of callbacks as the trainer writes them, and of its control."""
    states: dict[str, Any] = {}
    for each in (*getattr(handler, "callbacks", ()), control):
        if isinstance(each, ExportableState):
            states.setdefault(type(each).__name__, []).append(each.state())
    return {
        name: found if len(found) > 1 else found[0] for name, found in states.items()
    }
