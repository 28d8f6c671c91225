"""Values of many kinds, and what a call of each of them answers: for cases_nontensor_kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tensordict import is_tensor_collection

VALUES: tuple[Any, ...] = (
    "a", None, 3, 2.5, True, 1j, b"xy", {"k": "v"}, {1, 2}, [1, 2],
    [None, "a"], ["a", "b"], [b"a", b"b"], [[], []], [["a"], ["b"]], [{"k": 1}, {"k": 2}],
    [torch.zeros(1), torch.ones(1)], len, [len, max], object, bytearray(b"x"), range(2),
    np.float32(2), np.str_("x"),
)  # fmt: skip


def seen(x: Any) -> Any:
    """An answer as lists and texts."""
    if isinstance(x, (list, tuple)):
        return [seen(item) for item in x]
    if isinstance(x, torch.Tensor):
        return str(x.tolist())
    if not is_tensor_collection(x):
        return str(x)
    sizes = f"{list(x.batch_size)} {x.names} {x.device} {x.is_locked}"
    return [type(x).__name__, sizes, str(x.tolist())]


def answers(make: Callable[[Any], Any], call: Callable[[Any], Any]) -> list[Any]:
    """Call ``call`` with ``make`` of each value; of errors return the class."""
    found = []
    for value in VALUES:
        try:
            found.append(seen(call(make(value))))
        except Exception as error:  # noqa: BLE001 # it is the answer
            found.append(type(error).__name__)
    return found
