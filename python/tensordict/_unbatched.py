"""Established import path, named by pickles: tensors that have no batch dims."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.primitives.unbatched import (
    UnbatchedTensor,
    all_unbatched,
    is_unbatched,
    results_as_sources,
)

__all__ = ["UnbatchedTensor", "all_unbatched", "is_unbatched", "results_as_sources"]

if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
