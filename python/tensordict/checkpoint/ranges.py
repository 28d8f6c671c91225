"""Ranges of the bytes of tensors in files, which are read into memory."""

from __future__ import annotations

from typing import TypeAlias

import torch

__all__ = ["Range", "whole_range"]

Range: TypeAlias = "tuple[str, str, list[int], int, int, torch.Tensor | None]"
"""An argument of ``_rust.read_safetensors_into``: name, dtype and shape of a tensor of a
file, the first byte and the number of bytes, and a tensor of bytes that takes them."""


def whole_range(name: str, target: torch.Tensor) -> Range:
    """All bytes of a tensor of a file, read into one of its dtype and shape without gaps."""
    content = target.reshape(-1).view(torch.uint8)
    shape = list(target.shape)
    return name, str(target.dtype), shape, 0, content.numel(), content
