"""The tags of messages in tensordict 0.15: one for each leaf of a transfer."""

from __future__ import annotations

import numpy as np

__all__ = ["pseudo_random", "published_tags"]


def pseudo_random(seed: int) -> int:
    """Return a number from 0 to 9,999 that depends only on the seed."""
    return int.from_bytes(np.random.default_rng(seed).bytes(8), "big") % 10_000


def published_tags(first: int, count: int, *, is_random: bool) -> list[int]:
    """Return the tags of ``count`` messages.

    Args:
        first: the tag that the caller has passed.
        count: the number of leaves.
        is_random: whether each tag is computed from the tag before. Otherwise tags count up.
    """
    if not is_random:
        return list(range(first, first + count))
    tags = []
    seed = first
    for _ in range(count):
        tag = pseudo_random(seed)
        tags.append(tag)
        seed = tag + 1
    return tags
