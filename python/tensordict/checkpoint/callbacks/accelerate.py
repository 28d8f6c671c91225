"""Save and restore an ``Accelerator`` with a ``Checkpointer``, not with ``save_state``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import accelerate  # noqa: F401 (an error here says how to install it)
except ImportError as _error:
    msg = (
        "AcceleratorCheckpoint needs accelerate: pip install tensordict-rs[accelerate]"
    )
    raise ImportError(msg) from _error

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict.checkpoint.checkpointer import Checkpointer
    from tensordict.checkpoint.restoring import Restored

__all__ = ["AcceleratorCheckpoint"]


class AcceleratorCheckpoint:
    """A checkpoint of everything that an ``Accelerator`` has prepared.

    The items are models, optimizers, schedulers, the gradient scaler, loaders with a
    state (``use_stateful_dataloader=True``) and the objects of
    ``register_for_checkpointing``.

    Args:
        accelerator: the accelerator, after its ``prepare``.
        checkpointer: the checkpointer that saves the steps.
    """

    def __init__(self, accelerator: Any, checkpointer: Checkpointer) -> None:
        self.accelerator = accelerator
        self.checkpointer = checkpointer

    def _items(self) -> dict[str, Any]:
        accelerator = self.accelerator
        models = [accelerator.unwrap_model(model) for model in accelerator._models]
        optimizers = [optimizer.optimizer for optimizer in accelerator._optimizers]
        loaders = [
            optimizer
            for optimizer in accelerator._dataloaders
            if hasattr(optimizer, "state_dict")
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
        """Save a step, with the arguments of :meth:`Checkpointer.save`."""
        return self.checkpointer.save(step, **self._items(), **options)

    def restore(self, step: int | None = None, **options: Any) -> Restored:
        """Restore a step, with the arguments of :meth:`Checkpointer.restore`."""
        return self.checkpointer.restore(step, **self._items(), **options)


def _numbered(name: str, values: list[Any]) -> dict[str, Any]:
    """Return the values by name: ``model``, ``model_1``, ``model_2`` and so on."""
    return {
        name if number == 0 else f"{name}_{number}": value
        for number, value in enumerate(values)
    }
