"""Established import path: the version of the package and of its interface."""

from tensordict import __version__

__all__ = ["__version__", "commit_id", "version", "version_tuple"]

version = __version__
version_tuple = tuple(int(part) for part in __version__.partition("+")[0].split("."))
commit_id = None
