"""Write the pages of the reference: every public name, by topic.

A method of collections is on the page of the file of ``tensordict.ops`` that defines it;
the title of the page is the first sentence of that file. What a module exports is on the
page of the module. ``python tools/reference.py FOLDER`` writes the pages.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

MODULES = {
    "tensordict": "Collections and functions",
    "tensordict.nn": "Modules",
    "tensordict.data": "Datasets and streams",
    "tensordict.checkpoint": "Checkpoints of a training",
    "tensordict.storage": "Files",
    "tensordict.testing": "Tests of collections of your own",
    "tensordict.utils": "Helpers",
}
"""The modules whose names are public, and the titles of their pages."""


def exported(module: Any) -> list[str]:
    """Return the public names of a module, those of others left out."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(name for name in names if not name.startswith("__"))


def collections_base() -> Any:
    """Return the class that has every public method of collections."""
    return importlib.import_module("tensordict").TensorDictBase


def methods() -> dict[str, list[str]]:
    """Return the names of the public methods of all collections, by defining module."""
    base = collections_base()
    found: dict[str, list[str]] = defaultdict(list)
    for name in dir(base):
        if name.startswith("_"):
            continue
        held = inspect.getattr_static(base, name)
        function = getattr(held, "fget", None) or getattr(held, "__func__", held)
        module = getattr(inspect.unwrap(function), "__module__", None)
        found[module or "tensordict"].append(name)
    return dict(found)


def sentence(module: Any) -> str:
    """Return the first sentence of the docstring of a module, as a title."""
    first = (inspect.getdoc(module) or module.__name__).split("\n\n")[0]
    return first.split(":")[0].replace("\n", " ").replace("``", "`").rstrip(".")


def directive(owner: str, name: str, value: Any) -> str:
    """Return what documents one name of a module."""
    dotted = f"{owner}.{name}"
    if inspect.isclass(value):
        return f".. autoclass:: {dotted}\n   :members:\n   :show-inheritance:\n"
    if inspect.isroutine(value):
        return f".. autofunction:: {dotted}\n"
    return f".. autodata:: {dotted}\n   :no-value:\n"


def page(title: str, directives: list[str]) -> str:
    """Return the text of a page."""
    body = "\n".join(directives)
    return f"# {title}\n\n```{{eval-rst}}\n{body}```\n"


def pages() -> dict[str, str]:
    """Return the text of every page, by the name of its file."""
    made = {}
    seen: set[int] = set()
    for name, title in MODULES.items():
        module = importlib.import_module(name)
        values = {each: getattr(module, each) for each in exported(module)}
        parts = [
            directive(name, each, value)
            for each, value in values.items()
            if id(value) not in seen
        ]
        # A name that several modules offer is on the page of the first.
        seen |= {id(value) for value in values.values()}
        made[name.replace("tensordict.", "").replace(".", "-")] = page(
            f"{title}: `{name}`", parts
        )
    for name, found in sorted(methods().items()):
        topic = name.rpartition(".")[2]
        parts = []
        for each in found:
            held = inspect.getattr_static(collections_base(), each)
            kind = "attribute" if isinstance(held, property) else "method"
            parts.append(f".. auto{kind}:: tensordict.TensorDictBase.{each}\n")
        made[f"methods-{topic}"] = page(sentence(importlib.import_module(name)), parts)
    topics = sorted(made)
    toctree = "\n".join(topics)
    made["index"] = (
        "# Reference\n\nEvery public name: the modules, then the methods of all "
        "collections, a page for each topic.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{toctree}\n```\n"
    )
    return made


def write(folder: Path) -> None:
    """Write the pages into a folder; files that are right already stay."""
    folder.mkdir(exist_ok=True)
    made = {f"{name}.md": text for name, text in pages().items()}
    for old in folder.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
