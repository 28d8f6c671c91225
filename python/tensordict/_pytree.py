"""Established import path: the containers that are nodes of a pytree."""

from tensordict.containers.dense import TensorDict

__all__ = ["PYTREE_REGISTERED_TDS"]

PYTREE_REGISTERED_TDS: tuple[type, ...] = (TensorDict,)
