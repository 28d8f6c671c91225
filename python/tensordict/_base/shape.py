"""Established import path: how packed leaves are laid out."""

from tensordict.ops.packing import PackLayout

__all__ = ["PackLayout"]
