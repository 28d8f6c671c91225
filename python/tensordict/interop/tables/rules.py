"""Decide about missing values and dtypes in columns of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tensordict import _rust
from tensordict.containers.nontensor import NonTensorStack

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NULLS", "Nulls", "Path", "Rules", "cells", "mask_path"]

Path = tuple[str, ...]
Nulls = Literal["raise", "fill", "mask"]

NULLS = ("raise", "fill", "mask")

EXACT = 1 << 53
"""Integers up to this one are exact as float64."""

MSG_NULLS = (
    "The {}column {} has {} null value(s). Pass nulls='fill' to fill them, or "
    "nulls='mask' to also get a mask entry."
)
MSG_NOT_EXACT = (
    "The column {} has {} null value(s) and integers beyond 2**53, which float64, where "
    "NaN is in the place of a null, does not hold. Pass nulls='fill' for 0 in their "
    "place, or nulls='mask' to also get a mask entry."
)
MSG_NAN_TO_INTEGER = (
    "The column {} has {} missing value(s), which the dtype {} does not hold. Pass "
    "nulls='fill' for 0 in their place, nulls='mask' to also get a mask entry, or a "
    "dtype of floating point."
)


def cells(values: list[Any]) -> NonTensorStack:
    """An entry of a Python value for each row."""
    return NonTensorStack._of_cells(values, torch.Size([len(values)]))


def mask_path(method: str, nulls: str | None, mask_key: object) -> Path:
    """The path under which the masks go.

    Raises:
        ValueError: ``nulls`` is none of the choices; a ``mask_key`` without masks.
        TypeError: ``mask_key`` is no key.
    """
    if nulls is not None and nulls not in NULLS:
        msg = f"nulls must be one of {NULLS}, got {nulls!r}."
        raise ValueError(msg)
    if mask_key is None:
        return ("_mask",)
    if nulls != "mask":
        msg = f"{method} got a mask_key but nulls={nulls!r}, not 'mask'."
        raise ValueError(msg)
    try:
        path: Path = _rust.unravel_key_to_tuple(mask_key)
    except (TypeError, ValueError):
        path = ()
    if not path:
        msg = f"mask_key must be a string or a tuple of strings, got {mask_key!r}."
        raise TypeError(msg)
    return path


class Rules:
    """The decisions about missing values and dtypes.

    Args:
        nulls: see :meth:`TensorDict.from_pandas`. None: floating point has NaN, integers
            become floating point, texts and truth values are Python values with None,
            and everything else is an error.
        dtype: what columns of numbers are cast to.
        kind: says in messages what the columns are of, such as ``"Arrow "``.
    """

    def __init__(
        self,
        nulls: str | None,
        dtype: torch.dtype | None = None,
        kind: str = "",
    ) -> None:
        self.nulls = nulls
        self.dtype = dtype
        self.kind = kind
        self.masks: dict[Path, torch.Tensor] = {}

    @property
    def fills(self) -> bool:
        """Tell whether the caller said what to do with nulls, and it is no error."""
        return self.nulls in ("fill", "mask")

    def refuse(self, path: Path, count: int) -> None:
        """Say that a column has nulls, which nobody said what to do with.

        Raises:
            ValueError: always.
        """
        shown: Any = path if self.kind else repr(".".join(path))
        raise ValueError(MSG_NULLS.format(self.kind, shown, count))

    def note(self, path: Path, count: int, valid: Callable[[], torch.Tensor]) -> None:
        """Take account of ``count`` nulls, more than none, of a column.

        Args:
            path: the key of its entry.
            count: how many.
            valid: makes the mask ``[N]``, true where there is a value.

        Raises:
            ValueError: nulls are an error.
        """
        if self.nulls == "raise":
            self.refuse(path, count)
        if self.nulls == "mask":
            self.masks[path] = valid()

    def numbers(
        self, path: Path, values: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]
    ) -> torch.Tensor:
        """A tensor of numbers of which some are nulls; ``values`` is written to.

        Args:
            path: the key of the entry.
            values: ``[N]``, of integers, floating point or truth values.
            valid: ``[N]``, true where there is a value.

        Raises:
            ValueError: nulls are an error, or an integer is not exact as float64.
        """
        if values.dtype.kind in "fc":
            values[~valid] = np.nan
            return self.cast(path, torch.from_numpy(values))
        values[~valid] = 0
        if not self.fills:
            if values.dtype.itemsize == 8 and _is_beyond(values):
                count = len(valid) - int(valid.sum())
                raise ValueError(MSG_NOT_EXACT.format(repr(".".join(path)), count))
            values = values.astype(np.float64)
            values[~valid] = np.nan
        return self.cast(path, torch.from_numpy(values))

    @property
    def casts_to_integers(self) -> bool:
        """Tell whether numbers are cast to a dtype without NaN."""
        dtype = self.dtype
        return dtype is not None and not (dtype.is_floating_point or dtype.is_complex)

    def refuse_integers(self, path: Path, count: int) -> None:
        """Say that missing values have no place in integers.

        Raises:
            ValueError: always.
        """
        shown = repr(".".join(path))
        raise ValueError(MSG_NAN_TO_INTEGER.format(shown, count, self.dtype))

    def cast(self, path: Path, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of numbers in the dtype that was asked for.

        Raises:
            ValueError: it has NaN, and the dtype is one of integers.
        """
        if self.dtype is None or tensor.dtype == self.dtype:
            return tensor
        if self.casts_to_integers and tensor.is_floating_point():
            lost = tensor.isnan()
            if lost.any():
                if not self.fills:
                    self.refuse_integers(path, int(lost.sum()))
                tensor = tensor.nan_to_num(nan=0.0)
        return tensor.to(self.dtype)


def _is_beyond(values: np.ndarray[Any, Any]) -> bool:
    """Tell whether an integer is not exact as float64."""
    beyond = values > EXACT
    if values.dtype.kind == "i":
        beyond |= values < -EXACT
    return bool(beyond.any())
