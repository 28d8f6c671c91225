"""Deprecated import path: what tests of early releases used."""

from typing import TYPE_CHECKING

from tensordict._deprecated_utils import TESTING
from tensordict.primitives.deprecation import deprecated_names

if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = deprecated_names(__name__, TESTING)
