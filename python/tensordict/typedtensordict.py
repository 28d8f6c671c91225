"""Re-export of ``TypedTensorDict`` under its established import path."""

from tensordict.containers.typed import TypedTensorDict

__all__ = ["TypedTensorDict"]
