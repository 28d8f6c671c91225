"""Moving distributions to a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributions

__all__: list[str] = []


def _cast_device(element: object, device: torch.device | str | int | None) -> Any:
    """A tensor on a device; anything else as it is."""
    return element.to(device) if isinstance(element, torch.Tensor) else element


def _cast_transform_device(
    transform: object, device: torch.device | str | int | None
) -> Any:
    """A transform, or ``None``, whose tensors are on a device."""
    if transform is None:
        return transform
    if isinstance(transform, distributions.ComposeTransform):
        transform.parts = [
            _cast_transform_device(part, device) for part in transform.parts
        ]
    elif isinstance(transform, distributions.transforms.Transform):
        for name, value in vars(transform).items():
            setattr(transform, name, _cast_device(value, device))
    else:
        msg = f"a {type(transform).__name__} cannot be moved: it is not a transform."
        raise TypeError(msg)
    return transform
