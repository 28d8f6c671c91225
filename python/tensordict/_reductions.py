"""Established import path, named by pickles: how containers are taken apart."""

from tensordict.interop.pickling import (
    _make_td,
    _rebuild_tensordict_files_consolidated,
    _reduce_td,
)

__all__: list[str] = []
