"""The random seeds of workers and of chunks."""

from __future__ import annotations

import random

import numpy.random as numpy_random
import torch
from torch.utils.data._utils.worker import _generate_state

__all__ = ["seed_chunk", "seed_worker"]


def seed_worker(seed: int, number: int) -> None:
    """Seed torch and NumPy as tensordict 0.15 and torch's ``DataLoader`` workers do."""
    torch.manual_seed(seed + number)
    numpy_random.seed(_generate_state(seed, number))  # noqa: NPY002 # users' functions use it


def seed_chunk(seed: int, chunk: int) -> None:
    """Seed torch, NumPy and :mod:`random` for one chunk: the same in every worker."""
    seed_worker(seed, chunk)
    random.seed(seed + chunk)
