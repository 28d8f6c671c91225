"""Random states of Python, NumPy, torch and its accelerators."""

from __future__ import annotations

import random
import sys
from array import array
from typing import Any

import torch

__all__ = ["random_states", "set_random_states"]


def random_states() -> dict[str, Any]:
    """Return the states of all global generators of this process, as plain data."""
    version, numbers, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": (version, array("I", numbers).tobytes(), gauss),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = (
            kind,
            keys.tobytes(),
            *[int(rest[0]), int(rest[1]), float(rest[2])],
        )
    # An unused device has no state yet, and asking for one would initialize the device.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found = torch.cuda.get_rng_state_all()
        states["cuda"] = [state.numpy().tobytes() for state in found]
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Set all generators to the states that :func:`random_states` returned.

    States of devices that this machine lacks are ignored.
    """
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(memoryview(numbers).cast("I")), gauss))
    torch.set_rng_state(_bytes_tensor(states["torch"]))
    if "numpy" in states:
        import numpy as np

        kind, keys, *rest = states["numpy"]
        numbers = np.frombuffer(keys, np.uint32)
        # NumPy's global generator.
        np.random.set_state((kind, numbers, *rest))  # noqa: NPY002
    if "cuda" in states and torch.cuda.is_available():
        for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_bytes_tensor(state), device)


def _bytes_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
