"""Established import path: keys as file names, and JSON."""

from urllib.parse import unquote

from tensordict import _rust
from tensordict._deprecated_utils import (
    _get_json_backend as get_json_backend,
)
from tensordict._deprecated_utils import (
    _json_dumps as json_dumps,
)
from tensordict._deprecated_utils import (
    _set_json_backend as set_json_backend,
)

__all__ = [
    "_decode_key_from_filesystem",
    "_encode_key_for_filesystem",
    "_json_dumps",
    "get_json_backend",
    "json_dumps",
    "set_json_backend",
]

_json_dumps = json_dumps


def _encode_key_for_filesystem(key: str, *, robust: bool = True) -> str:
    """Return the file name of an entry; if not ``robust``, the key itself."""
    return _rust.escape_key(key) if robust else key


def _decode_key_from_filesystem(encoded_key: str) -> str:
    """Return the key of an entry from its file name."""
    return "" if encoded_key == "%" else unquote(encoded_key)
