"""Established import path, named by pickles and files: lazy stacks."""

from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.containers.lazy.keys import _LazyStackedTensorDictKeysView
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
