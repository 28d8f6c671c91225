"""What importing the package registers with torch and the standard library."""

from __future__ import annotations

from tensordict.containers.dense import TensorDict
from tensordict.interop import collate, pickling, pytree, vmap

__all__ = ["install"]


def install() -> None:
    """Register the containers; calling it again changes nothing."""
    pickling.install(TensorDict)
    pytree.register_collection(TensorDict)
    collate.install()
    vmap.install()
