"""Plain data of all kinds, and whether two of them are the same."""

import collections
import datetime as dt
import math
import pathlib
from typing import Any

import numpy as np
import torch


def equal(left: Any, right: Any) -> bool:
    """Return whether two states are the same, types and bits included."""
    if isinstance(left, torch.Tensor):
        same = left.dtype == right.dtype and left.shape == right.shape
        return same and torch.equal(
            left.detach().nan_to_num(7), right.detach().nan_to_num(7)
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(
            equal(left[key], right[key]) for key in left
        )
    if isinstance(left, (list, tuple, collections.deque)):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


VALUES = [
    None,
    True,
    3,
    10**40,
    0.1,
    math.inf,
    -math.inf,
    math.nan,
    "text \ud800 ü",
    b"bytes",
    bytearray(b"more"),
    complex(1, -0.0),
    (1, (2, [3, None])),
    [],
    {},
    {"$": 1, "b": {"$": "tuple"}},
    {1: "one", (2, 3): "pair", None: 0, False: 1},
    collections.OrderedDict(b=1, a=(2,)),
    collections.Counter("abca"),
    collections.deque([1, 2]),
    {1, 2, 3},
    frozenset({"a"}),
    range(1, 9, 2),
    slice(None, 3),
    torch.float32,
    torch.device("cuda:1"),
    torch.Size([2, 3]),
    pathlib.Path("a/b"),
    dt.datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=dt.UTC),
    dt.date(2024, 5, 6),
    dt.timedelta(days=2, microseconds=3),
    np.arange(6.0).reshape(2, 3)[:, ::2],
    np.array(["a", "bc"]),
    np.array([1, 2], ">i4"),
    np.float32(1.5),
    np.int64(3),
    np.bool_(True),
    torch.arange(3),
    torch.tensor(1.5),
    torch.empty(0, 3),
    torch.arange(6.0).reshape(2, 3).t(),
    torch.ones(2, dtype=torch.bfloat16),
    torch.ones(2, dtype=torch.complex128) * 1j,
    torch.ones(3, dtype=torch.complex64).conj() * 1j,
    torch.tensor([True, False]),
    {"nested": [torch.zeros(2), ({"x": torch.ones(1)}, None)]},
]
