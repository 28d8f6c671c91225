"""The tags that tensordict 0.15 gives to the messages of a transfer, one for each leaf."""

from __future__ import annotations

import numpy as np

__all__ = ["pseudo_random", "published_tags"]


def pseudo_random(seed: int) -> int:
    """Make a number from 0 to 9,999, always the same for a seed."""
    return int.from_bytes(np.random.default_rng(seed).bytes(8), "big") % 10_000


def published_tags(first: int, count: int, *, is_random: bool) -> list[int]:
    """List the tags of so many messages.

    Args:
        first: the tag that the caller has given.
        count: how many leaves there are.
        is_random: whether each tag is made from the one before, in the place of counting.
    """
    if not is_random:
        return list(range(first, first + count))
    found = []
    seed = first
    for _ in range(count):
        tag = pseudo_random(seed)
        found.append(tag)
        seed = tag + 1
    return found
