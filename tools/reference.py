"""Write the pages of the reference: ``python tools/reference.py FOLDER``.

``docs/reference.toml`` lists the pages: one for each class, for each group of methods
of tensordicts, and for each topic of functions. A method belongs to the topic of the
file in ``tensordict.ops`` that defines it. The text of each entry is its docstring.
"""

from __future__ import annotations

import ast
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
"""The modules with public names. A name in several modules belongs to the first."""

TENSORDICT = """
Every collection has the methods below. Operators (``td + 1``, ``td == other``, ``td[index]``)
work on every leaf, and the functions of torch (``torch.stack``, ``torch.cat``) take tensordicts.
"""


def exported(module: Any) -> list[str]:
    """Return the public names of a module, without imported names."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(name for name in names if not name.startswith("__"))


def public() -> dict[str, Any]:
    """Return every public value of the package by its name without ``tensordict.``."""
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
    """Return the public methods of tensordicts by the file that defines them."""
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
    # The rest is defined by the class itself.
    return found | {"rest": sorted(names)}


def groups() -> list[dict[str, Any]]:
    """Return the groups of methods, with the names of their methods."""
    by_topic = topics()
    result = []
    for group in TABLE["methods"]:
        names_by_topic = [by_topic.pop(topic) for topic in group["topics"]]
        result.append(group | {"names": sorted(itertools.chain(*names_by_topic))})
    rest = sorted(itertools.chain(*by_topic.values()))
    if rest:
        result.append({"title": "More", "about": "Other methods.", "names": rest})
    return result


def members(owner: type, known: dict[str, Any]) -> list[str]:
    """Return the documented names of a class that no public base documents."""
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
    """Return whether a member of a class has its own docstring."""
    return (
        bool(getattr(value, "__doc__", None)) and value.__doc__ != type(value).__doc__
    )


def public_bases(owner: type, known: dict[str, Any]) -> list[str]:
    """Return roles for the bases of a class; private bases give their own bases."""
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
    """Return a table with one line for each name, linked to its entry."""
    lines = "".join(f"   ~tensordict.{name}\n" for name in names)
    return f".. autosummary::\n   :nosignatures:\n\n{lines}"


def pages_of(names: list[str]) -> str:
    """Return the table of contents that lists child pages in the navigation."""
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
    """Return the docstring below the assignment of a constant."""
    name = dotted.rpartition(".")[2]
    for module in ("tensordict._nestedkey", dotted.rpartition(".")[0]):
        source = inspect.getsource(importlib.import_module(module))
        statements = ast.parse(source).body
        for assignment, after in itertools.pairwise(statements):
            if name in assigned_names(assignment) and is_text(after):
                return inspect.cleandoc(after.value.value)
    raise ValueError(f"{dotted} has no docstring below its assignment")


def assigned_names(statement: ast.stmt) -> list[str]:
    """Return the names that an assignment of a module gives a value to."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    else:
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a string alone, as a docstring is."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def class_entries(name: str, value: type, known: dict[str, Any]) -> list[str]:
    """Return the table of the members of a class, and their entries."""
    documented = is_alias(name, value) or issubclass(value, enum.Enum)
    names = [] if documented else members(value, known)
    if not names:
        return []
    entries = [
        f".. {kind(inspect.getattr_static(value, member))}:: tensordict.{name}.{member}\n"
        for member in names
    ]
    return [summary([f"{name}.{member}" for member in names]), *entries]


def class_page(name: str, value: type, known: dict[str, Any]) -> str:
    """Return the page of a class: docstring, table of members and their entries."""
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
    # A table shows docstrings; a constant has only the docstring of its class.
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
    result = {}
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
        result[slug(title)] = "\n".join([heading(title), about, *entries])
    result["TensorDict"] = "\n".join([*parts, pages_of(list(result))])
    return result


def sections(known: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sections of the table, with a page for the names that they omit."""
    result: list[dict[str, Any]] = [
        section | {"pages": list(section.get("pages", []))}
        for section in TABLE["section"]
    ]
    listed = {"TensorDict"}
    for section in result:
        listed.update(section["classes"])
        listed.update(*(page["names"] for page in section["pages"]))
    rest = [name for name in known if name not in listed]
    if rest:
        page = {"title": "More names", "about": "Other public names.", "names": rest}
        result[-1]["pages"].append(page)
    return result


def pages() -> dict[str, str]:
    """Return the text of every page by file name."""
    known = public()
    result = tensordict_pages(known)
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
            result[name.rpartition(".")[2]] = class_page(name, known[name], known)
        for page in section["pages"]:
            children.append(slug(page["title"]))
            result[children[-1]] = topic_page(page, known)
            parts.append(f":doc:`{children[-1]}`: {page['about']}\n")
        names.append(slug(section["title"]))
        result[names[-1]] = "\n".join([*parts, pages_of(children)])
        links = ", ".join(f":doc:`{child}`" for child in children)
        row = (
            f"   * - :doc:`{names[-1]}`\n     - {section['about']}\n\n       {links}\n"
        )
        rows.append(row)
    result["index"] = "\n".join(
        [
            heading("Reference"),
            ".. list-table::\n   :header-rows: 1\n\n   * - Page\n     - Look here for\n"
            + "".join(rows),
            "Every name in the order of the alphabet: :ref:`genindex`.\n",
            pages_of(names),
        ]
    )
    return result


def write(folder: Path) -> None:
    """Write the pages into a folder; files with the right content are not touched."""
    folder.mkdir(exist_ok=True)
    texts = {f"{name}.rst": text for name, text in pages().items()}
    for old in folder.iterdir():
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
