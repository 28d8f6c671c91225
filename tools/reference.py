"""Write the pages of the reference: ``python tools/reference.py FOLDER``.

``docs/reference.toml`` says which pages there are: a page for each class, for each group of
methods of tensordicts, and for each topic of functions. The files of ``tensordict.ops`` say
which methods belong to a topic. The text of each entry is the docstring.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import itertools
import pkgutil
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TABLE: dict[str, Any] = tomllib.loads(
    (ROOT / "docs" / "reference.toml").read_text(encoding="utf-8")
)
MODULES = (
    "tensordict",
    "tensordict.nn",
    "tensordict.data",
    "tensordict.checkpoint",
    "tensordict.storage",
    "tensordict.testing",
    "tensordict.utils",
)
"""The modules whose names are public. A name of several belongs to the first."""

TENSORDICT = """
Every collection has the methods below. Operators (``td + 1``, ``td == other``, ``td[index]``)
work on every leaf, and the functions of torch (``torch.stack``, ``torch.cat``) take tensordicts.
"""


def exported(module: Any) -> list[str]:
    """Return the public names of a module, without names that it imports."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(name for name in names if not name.startswith("__"))


def public() -> dict[str, Any]:
    """Return every public value of the package by its name below ``tensordict``."""
    values: dict[str, Any] = {}
    seen: set[int] = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        prefix = module_name.removeprefix("tensordict").removeprefix(".")
        offered = {name: getattr(module, name) for name in exported(module)}
        for name, value in offered.items():
            origin = str(getattr(value, "__module__", "tensordict"))
            if id(value) not in seen and not origin.startswith("torch."):
                values[f"{prefix}.{name}" if prefix else name] = value
        seen |= {id(value) for value in offered.values()}
    return values


def topics() -> dict[str, list[str]]:
    """Return the names of the public methods of tensordicts by the file that defines them."""
    package = importlib.import_module("tensordict.ops")
    base = importlib.import_module("tensordict").TensorDict
    names = {name for name in dir(base) if not name.startswith("_")}
    found: dict[str, list[str]] = {}
    for file in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"tensordict.ops.{file.name}")
        for mixin in vars(module).values():
            if inspect.isclass(mixin) and mixin.__module__ == module.__name__:
                defined = names & vars(mixin).keys()
                names -= defined
                found.setdefault(file.name, []).extend(sorted(defined))
    # The rest is what only the class itself defines.
    return found | {"rest": sorted(names)}


def groups() -> list[dict[str, Any]]:
    """Return the groups of methods, each with the names of its methods."""
    by_topic = topics()
    made = []
    for group in TABLE["methods"]:
        found = [by_topic.pop(topic) for topic in group["topics"]]
        made.append(group | {"names": sorted(itertools.chain(*found))})
    rest = sorted(itertools.chain(*by_topic.values()))
    if rest:
        made.append({"title": "More", "about": "Other methods.", "names": rest})
    return made


def members(owner: type, known: dict[str, Any]) -> list[str]:
    """Return the documented names that a class has and no public base documents."""
    tensordict = importlib.import_module("tensordict")
    classes = {value for value in known.values() if inspect.isclass(value)}
    bases = [cls for cls in owner.__mro__[1:] if cls in classes]
    methods = (
        dir(tensordict.TensorDict)
        if issubclass(owner, tensordict.TensorCollection)
        else ()
    )
    names: dict[str, None] = {}
    for cls in owner.__mro__:
        if cls.__module__.startswith("tensordict"):
            names.update(dict.fromkeys(vars(cls)))

    def is_own(name: str) -> bool:
        value = inspect.getattr_static(owner, name)
        inherited = any(
            inspect.getattr_static(base, name, None) is value for base in bases
        )
        return not inherited and is_documented(value)

    return [
        name
        for name in names
        if not name.startswith("_") and name not in methods and is_own(name)
    ]


def is_documented(value: Any) -> bool:
    """Return whether a member of a class has a docstring of its own."""
    return (
        bool(getattr(value, "__doc__", None)) and value.__doc__ != type(value).__doc__
    )


def public_bases(owner: type, known: dict[str, Any]) -> list[str]:
    """Return roles for the bases of a class, private ones replaced by their bases."""
    names = {
        value: f"tensordict.{name}"
        for name, value in known.items()
        if inspect.isclass(value)
    }
    bases: dict[str, None] = {}
    for base in owner.__bases__:
        if base in names:
            bases[f":py:class:`~{names[base]}`"] = None
        elif base.__module__.startswith("tensordict"):
            bases.update(dict.fromkeys(public_bases(base, known)))
        elif base.__module__ == "builtins" and base is not object:
            bases[f":py:class:`{base.__qualname__}`"] = None
        elif base.__module__ not in ("builtins", "abc", "typing") and (
            not base.__name__.startswith("_")
        ):
            bases[f":py:class:`{base.__module__}.{base.__qualname__}`"] = None
    return list(bases)


def kind(value: Any) -> str:
    """Return the directive that documents a member of a class."""
    if isinstance(value, property):
        return "autoproperty"
    if isinstance(value, (classmethod, staticmethod)) or inspect.isroutine(value):
        return "automethod"
    return "autoattribute"


def heading(title: str, line: str = "=") -> str:
    """Return a heading of reStructuredText."""
    return f"{title}\n{line * len(title)}\n"


def summary(names: list[str]) -> str:
    """Return a table with one line for each name, which links to its entry."""
    lines = "".join(f"   ~tensordict.{name}\n" for name in names)
    return f".. autosummary::\n   :nosignatures:\n\n{lines}"


def pages_of(names: list[str]) -> str:
    """Return the table of contents that puts pages below this one in the navigation."""
    lines = "".join(f"   {name}\n" for name in names)
    return f".. toctree::\n   :hidden:\n\n{lines}"


def slug(title: str) -> str:
    """Return the file name of a page without its suffix."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def entry(name: str, value: Any, known: dict[str, Any]) -> str:
    """Return the directive for a public name of a module."""
    dotted = f"tensordict.{name}"
    if is_alias(name, value):
        text = f"Another name of :class:`~tensordict.{value.__name__}`."
        return f".. py:class:: {dotted}\n\n   {text}\n"
    if inspect.isclass(value):
        options = "   :show-inheritance:\n" if public_bases(value, known) else ""
        if issubclass(value, enum.Enum):
            options += "   :members:\n   :undoc-members:\n"
        return f".. autoclass:: {dotted}\n{options}"
    if inspect.isroutine(value):
        return f".. autofunction:: {dotted}\n"
    module = dotted.rpartition(".")[0]
    text = " ".join(constant_doc(dotted).split())
    return (
        f".. py:data:: {name.rpartition('.')[2]}\n   :module: {module}\n\n   {text}\n"
    )


def is_alias(name: str, value: Any) -> bool:
    """Return whether a name is a second name of a class."""
    return inspect.isclass(value) and value.__name__ != name.rpartition(".")[2]


def constant_doc(dotted: str) -> str:
    """Return the docstring below the assignment of a constant, wherever that is."""
    from sphinx.pycode import ModuleAnalyzer

    name = dotted.rpartition(".")[2]
    for module in ("tensordict._nestedkey", dotted.rpartition(".")[0]):
        docs = ModuleAnalyzer.for_module(module).find_attr_docs()
        if ("", name) in docs:
            return "\n".join(docs["", name])
    raise ValueError(f"{dotted} has no docstring below its assignment")


def class_entries(name: str, value: type, known: dict[str, Any]) -> list[str]:
    """Return the entries of the members of a class, and the table of them."""
    documented = is_alias(name, value) or issubclass(value, enum.Enum)
    own = [] if documented else members(value, known)
    if not own:
        return []
    entries = [
        f".. {kind(inspect.getattr_static(value, member))}:: tensordict.{name}.{member}\n"
        for member in own
    ]
    return [summary([f"{name}.{member}" for member in own]), *entries]


def class_page(name: str, value: type, known: dict[str, Any]) -> str:
    """Return the page of a class: its docstring, a table of its members, their entries."""
    parts = [heading(name.rpartition(".")[2]), entry(name, value, known)]
    tensordict = importlib.import_module("tensordict")
    if issubclass(value, tensordict.TensorCollection):
        parts.append("All methods of :doc:`TensorDict <TensorDict>` are here, too.\n")
    entries = class_entries(name, value, known)
    if entries:
        parts += [heading("Methods and attributes", "-"), *entries]
    return "\n".join(parts)


def topic_page(page: dict[str, Any], known: dict[str, Any]) -> str:
    """Return a page of functions, constants and small classes."""
    names = page["names"]
    # The docstring of a constant is that of its class, which says nothing in a table.
    in_table = [
        name
        for name in names
        if inspect.isclass(known[name]) or inspect.isroutine(known[name])
    ]
    parts = [heading(page["title"]), page["about"] + "\n"]
    if in_table:
        parts.append(summary(in_table))
    for name in names:
        parts.append(entry(name, known[name], known))
        if inspect.isclass(known[name]):
            parts += class_entries(name, known[name], known)[1:]
    for name, methods in page.get("with_libraries", {}).items():
        options = f"   :members: {methods}\n" if methods else ""
        parts.append(f".. autoclass:: tensordict.{name}\n{options}")
    return "\n".join(parts)


def tensordict_pages(known: dict[str, Any]) -> dict[str, str]:
    """Return the page of TensorDict, and a page for each group of its methods."""
    made = {}
    owner = known["TensorDict"]
    parts = [heading("TensorDict"), entry("TensorDict", owner, known), TENSORDICT]
    for group in groups():
        title = f"{group['title']}: methods"
        names = [f"TensorDict.{name}" for name in group["names"]]
        links = f":doc:`Full entries <{slug(title)}>`"
        guide = ""
        if "guide" in group:
            guide = f" Guide: :doc:`/guide/{group['guide']}`."
        parts += [
            heading(group["title"], "-"),
            f"{group['about']} {links}.{guide}\n",
            summary(names),
        ]
        entries = [
            f".. {kind(inspect.getattr_static(owner, name))}:: tensordict.TensorDict.{name}\n"
            for name in group["names"]
        ]
        about = f"{group['about']} All methods: :doc:`TensorDict`.{guide}\n"
        made[slug(title)] = "\n".join([heading(title), about, *entries])
    made["TensorDict"] = "\n".join([*parts, pages_of(list(made))])
    return made


def sections(known: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sections of the table, with a page for the names that it leaves out."""
    made: list[dict[str, Any]] = [
        section | {"pages": list(section.get("pages", []))}
        for section in TABLE["section"]
    ]
    listed = {"TensorDict"}
    for section in made:
        listed.update(section["classes"])
        listed.update(*(page["names"] for page in section["pages"]))
    rest = [name for name in known if name not in listed]
    if rest:
        page = {"title": "More names", "about": "Other public names.", "names": rest}
        made[-1]["pages"].append(page)
    return made


def pages() -> dict[str, str]:
    """Return the text of every page by the name of its file."""
    known = public()
    made = tensordict_pages(known)
    rows = [
        "   * - :doc:`TensorDict`\n     - The class, and its methods by what they do.\n"
    ]
    names = ["TensorDict"]
    for section in sections(known):
        children = [name.rpartition(".")[2] for name in section["classes"]]
        parts = [heading(section["title"]), section["about"] + "\n"]
        if section["classes"]:
            parts.append(summary(section["classes"]))
        for name in section["classes"]:
            made[name.rpartition(".")[2]] = class_page(name, known[name], known)
        for page in section["pages"]:
            children.append(slug(page["title"]))
            made[children[-1]] = topic_page(page, known)
            parts.append(f":doc:`{children[-1]}`: {page['about']}\n")
        names.append(slug(section["title"]))
        made[names[-1]] = "\n".join([*parts, pages_of(children)])
        links = ", ".join(f":doc:`{child}`" for child in children)
        row = (
            f"   * - :doc:`{names[-1]}`\n     - {section['about']}\n\n       {links}\n"
        )
        rows.append(row)
    made["index"] = "\n".join(
        [
            heading("Reference"),
            ".. list-table::\n   :header-rows: 1\n\n   * - Page\n     - Look here for\n"
            + "".join(rows),
            "Every name in the order of the alphabet: :ref:`genindex`.\n",
            pages_of(names),
        ]
    )
    return made


def write(folder: Path) -> None:
    """Write the pages into a folder. Files that are right already stay as they are."""
    folder.mkdir(exist_ok=True)
    made = {f"{name}.rst": text for name, text in pages().items()}
    for old in folder.iterdir():
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
