"""Established import path: parts of the base class, by topic."""

from typing import TYPE_CHECKING

from tensordict.primitives.deprecation import deprecated_names

if not TYPE_CHECKING:  # so that type checkers find unknown names
    _PARTS = (
        "convert device distributed factories pointwise reductions serialization shape "
        "unsupported"
    )
    __getattr__ = deprecated_names(
        __name__, {}, later={part: f"{__name__}.{part}" for part in _PARTS.split()}
    )
