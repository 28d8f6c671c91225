"""A tensordict made from a mapping with integer keys, such as an optimizer's state."""

from __future__ import annotations

from typing import Any, Literal

from tensordict.containers.dense import TensorDict
from tensordict.primitives import classes

__all__ = ["NumberedTensorDict"]


@classes.provided
class NumberedTensorDict(TensorDict):
    """A :class:`TensorDict` that :meth:`from_dict` made from integer keys.

    The keys of the tensordict are strings. :meth:`to_dict` converts them back to
    integers, even after a save and load.

    Examples:
        >>> td = TensorDict.from_dict({0: torch.zeros(2), 1: torch.ones(2)})
        >>> td["1"]
        tensor([1., 1.])
        >>> list(td.to_dict())
        [0, 1]
    """

    def to_dict(
        self,
        *,
        retain_none: bool = True,
        convert_tensors: bool | Literal["numpy"] = False,
        tolist_first: bool = False,
    ) -> dict[Any, Any]:
        """Return nested dictionaries with the same entries, under integer keys."""
        entries = super().to_dict(
            retain_none=retain_none,
            convert_tensors=convert_tensors,
            tolist_first=tolist_first,
        )
        return {_number_of(key): value for key, value in entries.items()}


def _number_of(key: str) -> int | str:
    """Return the integer whose text is ``key``; any other key (set later) as it is."""
    digits = key.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and str(int(key)) == key:
        return int(key)
    return key
