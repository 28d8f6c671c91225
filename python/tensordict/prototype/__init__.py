"""Established import path: what is made of modules by :mod:`torch.fx`."""

from tensordict.prototype.fx import symbolic_trace

__all__ = ["symbolic_trace"]
