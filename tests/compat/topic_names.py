"""Write ``names_0_15_3.json``, the public names of the release.

By module: every name without a leading underscore whose value the release defines itself,
what is in ``__all__``, and a few names of torch that clients import from there.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from pathlib import Path

import tensordict

FROM_TORCH = {"Buffer", "Tensor", "is_compiling", "is_dynamo_compiling"}


def names_of(module: object) -> list[str]:
    """The public names of a module that the release defines."""
    found = {name for name in getattr(module, "__all__", ()) if name[0] != "_"}
    for name in dir(module):
        value = getattr(module, name)
        if inspect.ismodule(value):
            home = value.__name__
        else:
            home = getattr(value, "__module__", None) or ""
        is_own = home.partition(".")[0] == "tensordict"
        if name in FROM_TORCH or (is_own and name[0] != "_"):
            found.add(name)
    return sorted(found - {"cls"})


def main() -> None:
    """Walk the modules of the release."""
    modules = ["tensordict"]
    modules += [
        each.name for each in pkgutil.walk_packages(tensordict.__path__, "tensordict.")
    ]
    names = {name: names_of(importlib.import_module(name)) for name in sorted(modules)}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(names[key])}" for key in names)
    path = Path(__file__).parent / "names_0_15_3.json"
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
