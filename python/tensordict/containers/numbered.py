"""A collection whose keys were numbers: the state of an optimizer has such."""

from __future__ import annotations

from typing import Any, Literal

from tensordict.containers.dense import TensorDict
from tensordict.primitives import classes

__all__ = ["NumberedTensorDict"]


@classes.provided
class NumberedTensorDict(TensorDict):
    """A :class:`TensorDict` that :meth:`from_dict` made of a mapping with numbers as keys.

    Keys of a collection are text. Here :meth:`to_dict` gives the numbers back, also after
    the collection was saved and loaded.

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
        """Nested dictionaries with the same entries, with numbers for keys."""
        found = super().to_dict(
            retain_none=retain_none,
            convert_tensors=convert_tensors,
            tolist_first=tolist_first,
        )
        return {_number_of(key): value for key, value in found.items()}


def _number_of(key: str) -> int | str:
    """The number whose text a key is; other keys were set later."""
    digits = key.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and str(int(key)) == key:
        return int(key)
    return key
