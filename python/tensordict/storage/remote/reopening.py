"""Make requests in the child of a fork, where the threads of the parent's requests are gone.

The native part of ``obstore`` starts its threads once, and a fork takes none of them along. A child
loads that part again, from a copy in memory that the system takes for another library; it then has
threads, and connections, of its own. What the child inherited is neither used nor freed.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Final

__all__ = ["load_again", "own_store"]

_NATIVE: Final = "obstore._obstore"

_of_the_parent: list[Any] = []
_own_stores: dict[int, Any] = {}


def load_again() -> None:
    """Put a new instance of the library into the place of the inherited one.

    Raises:
        OSError: the system has no files in memory, or executes nothing out of them.
        ImportError: the library does not load from there.
    """
    native = sys.modules[_NATIVE]
    descriptor = os.memfd_create("obstore")
    with (
        Path(str(native.__file__)).open("rb") as source,
        open(descriptor, "wb", closefd=False) as copy,
    ):
        shutil.copyfileobj(source, copy)
    path = f"/proc/self/fd/{descriptor}"
    loader = importlib.machinery.ExtensionFileLoader(_NATIVE, path)
    spec = importlib.util.spec_from_file_location(_NATIVE, path, loader=loader)
    if spec is None:
        raise ImportError(path)
    inherited = {
        name: module
        for name, module in sys.modules.items()
        if name == "obstore" or name.startswith("obstore.")
    }
    for name in inherited:
        del sys.modules[name]
    try:
        made = sys.modules[_NATIVE] = importlib.util.module_from_spec(spec)
        loader.exec_module(made)
        importlib.import_module("obstore.store")
    except BaseException:
        sys.modules.update(inherited)
        raise
    _of_the_parent.append((inherited, dict(_own_stores)))
    _own_stores.clear()


def own_store(store: Any) -> Any:
    """Return a store like one that was inherited, of the library of this process.

    Raises:
        TypeError: the store does not say how it is made.
    """
    found = _own_stores.get(id(store))
    if found is None:
        make, arguments, *_ = store.__reduce_ex__(4)
        cls = getattr(importlib.import_module("obstore.store"), type(store).__name__)
        arguments = [cls if each is type(store) else each for each in arguments]
        found = _own_stores[id(store)] = make(*arguments)
    return found
