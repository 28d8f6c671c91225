"""The state of an ``Accelerator`` in a checkpointer, in place of ``save_state``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import accelerate  # noqa: F401 (whether it is there)
except ImportError as _error:
    msg = "This needs accelerate: pip install tensordict-rs[accelerate]"
    raise ImportError(msg) from _error

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict.checkpoint.checkpointer import Checkpointer
    from tensordict.checkpoint.restoring import Restored

__all__ = ["AcceleratorCheckpoint"]


class AcceleratorCheckpoint:
    """Save and restore everything that an ``Accelerator`` has prepared.

    Models, optimizers, schedulers, the scaler, loaders with a state
    (``use_stateful_dataloader``), and what ``register_for_checkpointing`` was given.

    Args:
        accelerator: the accelerator, after ``prepare``.
        checkpointer: where steps are saved.
    """

    def __init__(self, accelerator: Any, checkpointer: Checkpointer) -> None:
        self.accelerator = accelerator
        self.checkpointer = checkpointer

    def _items(self) -> dict[str, Any]:
        accelerator = self.accelerator
        models = [accelerator.unwrap_model(model) for model in accelerator._models]
        optimizers = [each.optimizer for each in accelerator._optimizers]
        loaders = [
            each for each in accelerator._dataloaders if hasattr(each, "state_dict")
        ]
        items = {
            **_numbered("model", models),
            **_numbered("optimizer", optimizers),
            **_numbered("scheduler", accelerator._schedulers),
            **_numbered("custom", accelerator._custom_objects),
            **_numbered("loader", loaders),
        }
        if accelerator.scaler is not None:
            items["scaler"] = accelerator.scaler
        return items

    def save(self, step: int, **options: Any) -> Path | None:
        """Save a step: the arguments of :meth:`Checkpointer.save`."""
        return self.checkpointer.save(step, **self._items(), **options)

    def restore(self, step: int | None = None, **options: Any) -> Restored:
        """Restore a step: the arguments of :meth:`Checkpointer.restore`."""
        return self.checkpointer.restore(step, **self._items(), **options)


def _numbered(name: str, values: list[Any]) -> dict[str, Any]:
    """The first under the name itself, others with their number."""
    return {
        name if number == 0 else f"{name}_{number}": value
        for number, value in enumerate(values)
    }
