"""What :func:`torch.compile` traces in the place of the native primitives.

Dynamo reads Python and cannot look into ``tensordict._rust``. So it is told that each
native primitive has a Python twin (:mod:`tensordict.interop.twins` and its neighbours),
by :func:`torch.compiler.substitute_in_graph`. That needs ``torch._dynamo``, which costs
more to import than torch itself. Processes that never compile, data workers among
them, do not pay for it: the twins are registered when somebody else imports it first.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

from tensordict.interop import vmap

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["install", "register_twins"]

DYNAMO = "torch._dynamo"

CONSTANT = frozenset(
    {
        "index_plan",
        "index_shape",
        "unravel_key",
        "unravel_key_list",
        "unravel_key_to_tuple",
        "view_shape",
    }
)
"""Primitives of keys, sizes and indices alone: called, not traced, where those are known."""

_lock = threading.Lock()
_registered: set[int] = set()
"""The ids of the native functions that have been registered."""


def pairs() -> list[tuple[Any, Any]]:
    """Each native primitive with its twin, and the other functions that have one."""
    from tensordict import _rust
    from tensordict.interop import (
        access_twins,
        apply_twins,
        field_twins,
        foreach_twins,
        index_twins,
        key_twins,
        lazy_twins,
        module_twins,
        shape_twins,
        twins,
    )

    found: list[tuple[Any, Any]] = list(module_twins.TRACED)
    for module in (
        twins,
        access_twins,
        apply_twins,
        field_twins,
        foreach_twins,
        key_twins,
        lazy_twins,
        index_twins,
        module_twins,
        shape_twins,
    ):
        for name, twin in vars(module).items():
            if (
                name.startswith("_")
                or getattr(twin, "__module__", "") != module.__name__
            ):
                continue
            native = getattr(_rust, name, twin)
            if native is not twin and callable(native):
                found.append((native, twin))
    return found


def register_twins() -> None:
    """Tell Dynamo about the twins; calling it again changes nothing."""
    vmap.register_foreach_rules()
    with _lock:
        for native, twin in pairs():
            if id(native) in _registered:
                continue
            torch.compiler.substitute_in_graph(
                native,
                can_constant_fold_through=twin.__name__ in CONSTANT,
                skip_signature_check=True,
            )(twin)
            _registered.add(id(native))


def install() -> None:
    """Register the twins now if Dynamo is there, or once it is imported."""
    module = sys.modules.get(DYNAMO)
    if module is None:
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
    elif getattr(module.__spec__, "_initializing", False):
        # It is being imported right now, below us on the stack or in another thread.
        # The import lock of the module lets a thread of ours through when that is over.
        threading.Thread(target=_register_later, daemon=True).start()
    else:
        register_twins()


def _register_later() -> None:
    importlib.import_module(DYNAMO)
    register_twins()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds Dynamo as the others do, with a loader that registers the twins afterwards.

    It stays until the module was really executed: a mere
    ``importlib.util.find_spec("torch._dynamo")`` does not use it up.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != DYNAMO:
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
    """The loader of Dynamo, and one more thing to do when it is done."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module is as if we had never been there: it reads its own
        # loader, for resources and for reloads.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        register_twins()
