"""The ways in: datasets made of what others have."""

from __future__ import annotations


class Sources:
    """Class methods that make a dataset of something else."""
