"""Actions that run once another package is imported, without importing it.

A finder in front of the others finds the module as they do. It returns a loader that
runs the action after the module was executed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["after_import"]


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` now if the module ``name`` is imported, else after its import.

    The action may be called more than once: by an import, and by another call of this
    function.
    """
    module = sys.modules.get(name)
    if module is None:
        known = [each for each in sys.meta_path if isinstance(each, _Finder)]
        if not any(each.name == name for each in known):
            sys.meta_path.insert(0, _Finder(name, action))
    elif getattr(module.__spec__, "_initializing", False):
        # The module is being imported, further up the stack or in another thread. Its
        # import lock makes a new thread wait until that import is complete.
        threading.Thread(target=_act_later, args=(name, action), daemon=True).start()
    else:
        action()


def _act_later(name: str, action: Callable[[], None]) -> None:
    importlib.import_module(name)
    action()


class _Finder(importlib.abc.MetaPathFinder):
    """A finder of one module that adds an action to the module's loader.

    It stays until the module was executed: ``importlib.util.find_spec(name)`` does not
    use it up.
    """

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name = name
        self.action = action

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """The loader of the module, which also runs the action."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Restore the module's own loader first: the module may read it, for resources
        # and for reloads.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._finder.action()
