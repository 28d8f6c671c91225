"""A callback for the Hugging Face ``Trainer`` that saves steps and resumes from them."""

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
    msg = (
        "TrainerCheckpoint needs transformers: pip install tensordict-rs[transformers]"
    )
    raise ImportError(msg) from _error

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

    from tensordict.checkpoint.checkpointer import Checkpointer

__all__ = ["TrainerCheckpoint"]


class TrainerCheckpoint(LoopCheckpoint, TrainerCallback):  # type: ignore[misc]
    """A callback that saves a step every ``every_n_steps`` optimizer steps.

    A step contains model, optimizer, scheduler and the state of the trainer. Its folder
    works with ``from_pretrained``, and the trainer resumes from it::

        callback = TrainerCheckpoint(Checkpointer("run"), every_n_steps=500)
        trainer = Trainer(..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.latest())

    If the trainer logs or evaluates after a step, or the step ends an epoch, the step
    is saved afterwards. Its metrics are the numbers that the trainer logged at this
    step. The states of other callbacks, such as ``EarlyStoppingCallback``, are in
    ``trainer_state.json``. To restore them, pass
    ``restore_callback_states_from_checkpoint=True`` to the trainer.

    On a resume, the trainer reads the model and its own state, and skips the batches
    that it has seen. This callback restores optimizer, scheduler and random states.
    Pass ``save_strategy="no"`` to the trainer, so that it does not save a second time.

    Args:
        checkpointer: the checkpointer that saves the steps.
        every_n_steps: the number of optimizer steps between two saves.
        **items: more items to save and restore, by name.
    """

    def __init__(
        self, checkpointer: Checkpointer, every_n_steps: int = 500, **items: Any
    ) -> None:
        super().__init__(checkpointer, every_n_steps, **items)
        self._awaited: dict[str, Any] | None = None
        self._handler: Any = None

    def latest(self) -> str | None:
        """Return the folder of the latest step, for ``resume_from_checkpoint``; or None."""
        step = self.checkpointer.latest()
        if step is None:
            return None
        return str(self.checkpointer.directory / step_name(step))

    def on_train_begin(
        self, args: object, state: Any, control: object, **given: object
    ) -> None:
        """Restore optimizer, scheduler and items, which the trainer does not restore."""
        # The trainer does not pass its callback handler; the caller's frame has it.
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
        """Set the random states of a step that ended an epoch, before batches are drawn."""
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
        """Save a step if it is due; stop the training if the process was asked to end."""
        is_asked = self._is_asked(state.global_step)
        if self._is_time(state.global_step) or is_asked:
            # Keep the states of now: loaders have read further when the next event
            # comes.
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
        """Save a step that awaits its evaluation, and wait until all steps are saved."""
        self._save_awaited(state, control, given)
        self.checkpointer.wait()

    def _save_awaited(self, state: Any, control: object, given: dict[str, Any]) -> None:
        """Save the awaited step; the trainer has logged and evaluated it by now."""
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
    """A copy of an item's state.

    Args:
        item: the item whose ``state_dict()`` is copied.
    """

    def __init__(self, item: Stateful) -> None:
        self._state: object = copy.deepcopy(item.state_dict())

    def state_dict(self) -> Any:
        """Return the copy."""
        return self._state

    def load_state_dict(self, state: object) -> None:
        """Replace the copy by ``state``."""
        self._state = state


def _has_state(item: object) -> bool:
    is_big = isinstance(item, (nn.Module, torch.optim.Optimizer))
    return (
        not is_big and hasattr(item, "state_dict") and hasattr(item, "load_state_dict")
    )


def _states_of_callbacks(handler: object, control: object) -> dict[str, Any]:
    """Return the states of the callbacks and of ``control``, in the trainer's format."""
    states: dict[str, Any] = {}
    for source in (*getattr(handler, "callbacks", ()), control):
        if isinstance(source, ExportableState):
            states.setdefault(type(source).__name__, []).append(source.state())
    return {
        name: found if len(found) > 1 else found[0] for name, found in states.items()
    }
