"""Describe a value as JSON, under either implementation.

A description holds what a user can rely on:

* a container: type, batch size, names, device, lock state, and its entries in order;
* a tensor: dtype, shape, values, whether it requires grad, its device where not the CPU;
* ``from``: which object of the starting state this is (``=path``) or shares its memory
  with (``~path``): identity and aliasing;
* an error: the public classes of its chain and the stable part of its message.
"""

from __future__ import annotations

import collections.abc
import math
import re
from typing import Any

import numpy as np
import torch

MAX_VALUES = 128
"""Tensors with more elements are described by their first ones and their sum."""


def is_container(value: Any) -> bool:
    """Return whether ``value`` is a tensor collection of either implementation."""
    from tensordict import is_tensor_collection

    return not isinstance(value, type) and is_tensor_collection(value)


def _is_stack(value: Any) -> bool:
    """Return whether a container is a stack of others, whose members are described."""
    return type(value).__name__ == "LazyStackedTensorDict"


def _pointer(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


class Origins:
    """The objects of the state that a program starts from, found again by identity."""

    def __init__(self, td: Any, other: Any) -> None:
        self.identities: dict[int, str] = {}
        self.memories: dict[int, str] = {}
        self.kept: list[Any] = []  # alive, so that no identity is used twice
        for name, root in (("td", td), ("o", other)):
            if root is not None and is_container(root):
                self._collect(root, name)

    def _collect(self, value: Any, path: str) -> None:
        self.kept.append(value)
        self.identities.setdefault(id(value), path)
        if isinstance(value, torch.Tensor):
            self.memories.setdefault(_pointer(value), path)
        elif _is_stack(value):
            for position, item in enumerate(value.tensordicts):
                self._collect(item, f"{path}[{position}]")
        elif is_container(value):
            for key, item in value.items():
                self._collect(item, f"{path}.{key}")

    def of(self, value: Any) -> str | None:
        """``=path`` for the same object, ``~path`` for shared memory, else None."""
        if id(value) in self.identities:
            return "=" + self.identities[id(value)]
        if isinstance(value, torch.Tensor):
            pointer = _pointer(value)
            if pointer and pointer in self.memories:
                return "~" + self.memories[pointer]
        return None


def _number(value: Any) -> Any:
    if isinstance(value, bool | int):
        return value
    if isinstance(value, complex):
        return [_number(value.real), _number(value.imag)]
    if math.isnan(value) or math.isinf(value):
        return str(value)
    return float(f"{value:.5g}")


def _numbers(values: Any) -> Any:
    if isinstance(values, list):
        return [_numbers(value) for value in values]
    return _number(values)


def _tensor(value: torch.Tensor, origins: Origins, values: bool) -> dict[str, Any]:
    if value.is_nested:
        return {
            "nested": str(value.layout),
            "rows": [_tensor(row, origins, values) for row in value.unbind()],
        }
    out: dict[str, Any] = {
        "tensor": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
    }
    kind = type(value).__name__
    if kind != "Tensor":
        out["type"] = kind
    if value.device.type != "cpu":
        out["device"] = str(value.device)
    if value.requires_grad:
        out["requires_grad"] = True
    if origin := origins.of(value):
        out["from"] = origin
    if values and value.device.type == "cpu" and not value.is_sparse:
        plain = value.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        flat = plain.reshape(-1)
        out["values"] = _numbers(flat[:MAX_VALUES].tolist())
        if flat.numel() > MAX_VALUES:
            out["sum"] = _number(flat.double().sum().item())
    return out


def _container(
    value: Any, origins: Origins, values: bool, whole: bool
) -> dict[str, Any]:
    out: dict[str, Any] = {"container": type(value).__name__}
    origin = origins.of(value)
    if origin:
        out["from"] = origin
        if not whole and origin in ("=td", "=o"):
            return out  # described by itself
    out["batch_size"] = list(value.batch_size)
    names = getattr(value, "names", None)
    if names is not None and any(name is not None for name in names):
        out["names"] = list(names)
    if value.device is not None:
        out["device"] = str(value.device)
    if value.is_locked:
        out["locked"] = True
    if value.is_memmap():
        out["memmap"] = True
    if _is_stack(value):
        out["stack_dim"] = value.stack_dim
        out["members"] = [
            _describe(item, origins, values, whole) for item in value.tensordicts
        ]
        return out
    out["entries"] = [
        [str(key), _describe(item, origins, values, whole)]
        for key, item in value.items()
    ]
    return out


def _describe(value: Any, origins: Origins, values: bool, whole: bool) -> Any:  # noqa: C901, PLR0911, PLR0912
    if isinstance(value, str):
        return re.sub(r"0x[0-9a-f]{6,}", "0x", value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, torch.Tensor):
        return _tensor(value, origins, values)
    if isinstance(value, type):
        return {"class": value.__name__}
    if is_container(value):
        return _container(value, origins, values, whole)
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if isinstance(value, np.ndarray):
        return {
            "array": str(value.dtype),
            "shape": list(value.shape),
            "values": _plain(value.tolist()) if values else None,
        }
    if isinstance(value, np.generic):
        return {"scalar": type(value).__name__, "value": _plain(value.item())}
    if isinstance(value, dict):
        return {
            "dict": type(value).__name__,
            "entries": [
                [str(key), _describe(item, origins, values, whole)]
                for key, item in value.items()
            ],
        }
    if isinstance(value, set | frozenset):
        return {"set": sorted(map(str, value))}
    if isinstance(value, list | tuple):
        return {
            "sequence": type(value).__name__,
            "items": [_describe(item, origins, values, whole) for item in value],
        }
    if isinstance(value, torch.dtype | torch.device | bytes | complex):
        return str(value)
    if isinstance(value, collections.abc.KeysView | collections.abc.ItemsView) or type(
        value
    ).__name__.endswith("KeysView"):
        return {"view": [_describe(item, origins, values, whole) for item in value]}
    return {"object": type(value).__name__}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float | complex):
        return _number(value)
    return str(value)


def describe(
    value: Any, origins: Origins, *, values: bool = True, whole: bool = False
) -> Any:
    """Describe a value.

    Args:
        value: anything.
        origins: the objects of the starting state.
        values: whether the values of tensors are part of the description.
        whole: whether a container that is part of the starting state is described in
            full and not only named.
    """
    try:
        return _describe(value, origins, values, whole)
    except Exception as error:  # noqa: BLE001  # a container left unusable is an answer
        return {"undescribable": type(error).__name__}


def stable_part(message: str) -> str:
    """The part of an error's text that stays: its first sentence, without addresses."""
    message = unescaped(message.strip("'\" "))
    first = re.split(r"\.\s|\n|: |, got |; ", message, maxsplit=1)[0]
    return re.sub(r"0x[0-9a-f]{6,}", "0x", first)[:90].rstrip(". ")


def unescaped(message: str) -> str:
    """A text without the marks of a ``repr``, as which ``KeyError`` shows its message."""
    return message.replace("\\'", "'").rstrip("\\")


def describe_error(error: BaseException) -> dict[str, Any]:
    """The public classes of an error, nearest first, and its message."""
    chain = [
        cls.__name__
        for cls in type(error).__mro__
        if not cls.__name__.startswith("_") and cls not in (BaseException, object)
    ]
    return {"chain": chain, "message": stable_part(str(error))}
