"""Established import path, used by pickles and files: lazy stacks."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.containers.lazy.access import _LazyStackedTensorDictKeysView
from tensordict.containers.lazy_views import (
    _CustomOpTensorDict,
    _PermutedTensorDict,
    _SqueezedTensorDict,
    _TransposedTensorDict,
    _UnsqueezedTensorDict,
    _ViewedTensorDict,
)

__all__ = [
    "LazyStackedTensorDict",
    "_CustomOpTensorDict",
    "_LazyStackedTensorDictKeysView",
    "_PermutedTensorDict",
    "_SqueezedTensorDict",
    "_TransposedTensorDict",
    "_UnsqueezedTensorDict",
    "_ViewedTensorDict",
]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
