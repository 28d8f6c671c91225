"""Functions that move distributions to a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributions

__all__: list[str] = []


def _cast_device(element: object, device: torch.device | str | int | None) -> Any:
    """Return a tensor on a device; any other value as it is."""
    return element.to(device) if isinstance(element, torch.Tensor) else element


def _cast_transform_device(
    transform: object, device: torch.device | str | int | None
) -> Any:
    """Move the tensors of a transform to a device, in place; None stays None."""
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
        msg = (
            f"Cannot move a {type(transform).__name__} to {device}: it is not a "
            "torch.distributions.Transform."
        )
        raise TypeError(msg)
    return transform
