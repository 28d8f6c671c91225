"""Deprecated import path: functions of keys, which were native once."""

from tensordict._deprecated_utils import _unravel_keys as unravel_keys
from tensordict._rust import unravel_key, unravel_key_list
from tensordict._rust import unravel_key_to_tuple as _unravel_key_to_tuple
from tensordict.primitives.deprecation import warn_deprecated

__all__ = ["_unravel_key_to_tuple", "unravel_key", "unravel_key_list", "unravel_keys"]

warn_deprecated(
    "tensordict._C",
    "tensordict.unravel_key (also for unravel_keys), tensordict.unravel_key_list and "
    "tensordict.unravel_key_to_tuple (for _unravel_key_to_tuple)",
)
