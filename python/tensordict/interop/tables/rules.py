"""The rules for missing values and dtypes in columns of tables."""

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
"""The largest integer up to which all integers are exact in float64."""

MSG_NULLS = (
    "The {}column {} has {} null value(s). Pass nulls='fill' to fill them, or "
    "nulls='mask' to also get a mask entry."
)
MSG_NOT_EXACT = (
    "The column {} has {} null value(s) and integers beyond 2**53. With NaN for nulls, the "
    "column would be float64, which does not hold these integers. Pass nulls='fill' to "
    "fill nulls with 0, or nulls='mask' to also get a mask entry."
)
MSG_NAN_TO_INTEGER = (
    "The column {} has {} missing value(s), which the dtype {} does not hold. Pass "
    "nulls='fill' to fill them with 0, nulls='mask' to also get a mask entry, or a "
    "floating-point dtype."
)


def cells(values: list[Any]) -> NonTensorStack:
    """Make non-tensor data of a Python value for each row."""
    return NonTensorStack._of_cells(values, torch.Size([len(values)]))


def mask_path(method: str, nulls: str | None, mask_key: object) -> Path:
    """Return the key that the masks are nested under.

    Raises:
        ValueError: ``nulls`` is unknown, or ``mask_key`` is passed without masks.
        TypeError: ``mask_key`` is not a key.
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
    """The rules for missing values and dtypes of one table.

    Args:
        nulls: see :meth:`TensorDict.from_pandas`. With None, floating-point columns
            have NaN, integers become floating point, texts and booleans become Python
            values with None, and other columns raise an error.
        dtype: the dtype to cast columns of numbers to.
        kind: the kind of the table for messages, such as ``"Arrow "``.
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
        """Whether nulls are filled: ``nulls`` is ``"fill"`` or ``"mask"``."""
        return self.nulls in ("fill", "mask")

    def refuse(self, path: Path, count: int) -> None:
        """Raise an error for the nulls of a column.

        Raises:
            ValueError: always.
        """
        shown: Any = path if self.kind else repr(".".join(path))
        raise ValueError(MSG_NULLS.format(self.kind, shown, count))

    def note(self, path: Path, count: int, valid: Callable[[], torch.Tensor]) -> None:
        """Collect the mask of a column that has nulls, or raise an error for them.

        Args:
            path: the key of the entry.
            count: the number of nulls, at least 1.
            valid: a function that returns the mask ``[N]``, true for values.

        Raises:
            ValueError: ``nulls`` is ``"raise"``.
        """
        if self.nulls == "raise":
            self.refuse(path, count)
        if self.nulls == "mask":
            self.masks[path] = valid()

    def numbers(
        self, path: Path, values: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]
    ) -> torch.Tensor:
        """Convert numbers of which some are null to a tensor.

        Args:
            path: the key of the entry.
            values: ``[N]``: integers, floating point or booleans. It is changed in
                place.
            valid: ``[N]``, true for values.

        Raises:
            ValueError: an integer is not exact in float64, or nulls do not fit into the
                dtype.
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
        """Whether numbers are cast to a dtype without NaN."""
        dtype = self.dtype
        return dtype is not None and not (dtype.is_floating_point or dtype.is_complex)

    def refuse_integers(self, path: Path, count: int) -> None:
        """Raise an error for missing values in a column that is cast to integers.

        Raises:
            ValueError: always.
        """
        shown = repr(".".join(path))
        raise ValueError(MSG_NAN_TO_INTEGER.format(shown, count, self.dtype))

    def cast(self, path: Path, tensor: torch.Tensor) -> torch.Tensor:
        """Cast a tensor of numbers to the dtype of the rules.

        Raises:
            ValueError: the tensor contains NaN, and the dtype has no NaN.
        """
        if self.dtype is None or tensor.dtype == self.dtype:
            return tensor
        if self.casts_to_integers and tensor.is_floating_point():
            is_nan = tensor.isnan()
            if is_nan.any():
                if not self.fills:
                    self.refuse_integers(path, int(is_nan.sum()))
                tensor = tensor.nan_to_num(nan=0.0)
        return tensor.to(self.dtype)


def _is_beyond(values: np.ndarray[Any, Any]) -> bool:
    """Return whether an integer is not exact in float64."""
    beyond = values > EXACT
    if values.dtype.kind == "i":
        beyond |= values < -EXACT
    return bool(beyond.any())
