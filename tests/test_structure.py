"""The folders are as ARCHITECTURE.md and CONTRIBUTING.md say."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tensordict import _rust
from tensordict.primitives import STEMS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs" / "dev").glob("*.md")),
]
PLACES = (
    "",
    "python/tensordict",
    "rust/tensordict-python/src",
    "rust/tensordict-core/src",
    "rust/tensordict-core",
)
"""The folders that a path in a document may be relative to."""

PATH = re.compile(r"[\w.<>*-]+(?:/[\w.<>*-]+)*(?:\.(?:py|pyi|rs|md|toml)\b|/(?![\w(]))")


@pytest.mark.parametrize("stem", STEMS)
def test_a_stem_is_a_file_on_both_sides(stem: str) -> None:
    assert (ROOT / "rust" / "tensordict-python" / "src" / f"{stem}.rs").is_file()
    assert (ROOT / "python" / "tensordict" / "primitives" / f"{stem}.py").is_file()


def natively_defined(stem: str) -> set[str]:
    """The Python functions that a Rust file of the bindings defines."""
    text = (ROOT / "rust/tensordict-python/src" / f"{stem}.rs").read_text()
    attributes = r"#\[pyfunction\b.*?\]\n(?:#\[.*?\]\n)*"
    renamed = re.findall(r"#\[pyo3\(name = \"(\w+)\"", text)
    found = re.findall(attributes + r"(?:pub\(crate\) )?fn (\w+)", text, re.DOTALL)
    return {*found, *renamed}


@pytest.mark.parametrize("stem", STEMS)
def test_a_primitive_is_in_the_files_of_one_stem(stem: str) -> None:
    module = importlib.import_module(f"tensordict.primitives.{stem}")
    in_python = {
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and hasattr(_rust, name)
    }
    assert in_python
    assert in_python <= natively_defined(stem)


def test_every_folder_of_tests_is_in_the_table() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text()
    folders = [
        path.name
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and any(path.glob("test_*.py"))
    ]
    assert folders
    assert [name for name in folders if f"`tests/{name}`" not in table] == []


def named_paths(text: str) -> list[str]:
    """The files and folders that a document names between backticks."""
    quoted = re.findall(r"`([^`\n]+)`", text)
    found = [path for each in quoted for path in PATH.findall(each)]
    return [path for path in found if not set(path) & set("<>*")]


def exists(path: str) -> bool:
    """Return whether there is such a path; one without a folder may be anywhere."""
    if "/" not in path.rstrip("/"):
        folders = [ROOT / "python", ROOT / "rust"]
        if any(next(folder.rglob(path.rstrip("/")), None) for folder in folders):
            return True
    return any((ROOT / place / path).exists() for place in PLACES)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_names_exists(document: Path) -> None:
    paths = named_paths(document.read_text())
    assert paths
    assert [path for path in paths if not exists(path)] == []


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Parse a file of the package, once for all laws."""
    return ast.parse(path.read_text("utf-8"))


MOST_UNTYPED = 0.12
"""The share of the parameters that may be `Any`. It only goes down."""


def annotations_of(path: Path) -> list[str]:
    """The annotations of all parameters of a file, save those of `self` and `cls`."""
    found: list[str] = []
    for node in ast.walk(parsed(path)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        # The parameters of such a function are those of a method, and count there.
        if "with_parameters_of(" in " ".join(map(ast.unparse, node.decorator_list)):
            continue
        given = node.args
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        for each in (*named, given.vararg, given.kwarg):
            if each is None or each.arg in ("self", "cls"):
                continue
            found.append(ast.unparse(each.annotation) if each.annotation else "")
    return found


def test_few_parameters_are_any() -> None:
    package = ROOT / "python" / "tensordict"
    files = [*package.rglob("*.py"), *package.rglob("*.pyi")]
    found = [text for path in files for text in annotations_of(path)]
    assert len(found) > 10_000
    assert found.count("Any") / len(found) <= MOST_UNTYPED


LONGEST_FILE = 600
"""The most lines of a file of the package that are not blank."""

LONGEST_CLASS_FILE = 1100
"""The most lines of a file that is one class: two thirds of its lines are of it."""

LONGEST_CLASS = 2800
"""The most lines of a class, over all files that it is spread over. It only goes down."""

MOST_FILES = 4
"""The most files that a class is spread over."""

SPREAD = {"TensorAttrs": 7}
"""The classes that are spread over more, each with the most files. It only goes down."""

LONGEST_FUNCTION = 60
"""The most lines of the body of a function, without its docstring and comments."""


def num_lines(lines: list[str]) -> int:
    """Count the lines that are not blank."""
    return sum(bool(line.strip()) for line in lines)


def long_functions(path: Path) -> Iterator[str]:
    """Yield the functions of a file whose bodies are too long."""
    lines = [line.partition("#")[0] for line in path.read_text("utf-8").splitlines()]
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            has_docstring = ast.get_docstring(node) is not None
            start = (
                node.body[0].end_lineno if has_docstring else node.body[0].lineno - 1
            )
            if num_lines(lines[start : node.end_lineno]) > LONGEST_FUNCTION:
                yield f"{path.name}: {node.name}"


class Slice(NamedTuple):
    """A class of the package: a file of its own, or a part of a class of more files."""

    path: Path
    bases: list[str]
    lines: int


@functools.cache
def classes_of(path: Path) -> dict[str, Slice]:
    """Return the classes of a file by their names."""
    lines = path.read_text("utf-8").splitlines()
    found = {}
    for node in parsed(path).body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
            length = num_lines(lines[node.lineno - 1 : node.end_lineno])
            found[node.name] = Slice(path, bases, length)
    return found


def is_short(path: Path) -> bool:
    """Return whether a file is short, or one class that is not too long."""
    length = num_lines(path.read_text("utf-8").splitlines())
    longest = max((each.lines for each in classes_of(path).values()), default=0)
    is_one_class = 3 * longest >= 2 * length
    return length <= (LONGEST_CLASS_FILE if is_one_class else LONGEST_FILE)


def spread_of(name: str, classes: dict[str, Slice]) -> list[Slice]:
    """Return a class, and those of its folder that only it inherits: its slices."""
    folder = classes[name].path.parent
    found = {name}
    while True:
        bases = {base for each in found for base in classes[each].bases} - found
        more = {
            base
            for base in bases & classes.keys()
            if classes[base].path.parent == folder
            and all(
                heir in found for heir, each in classes.items() if base in each.bases
            )
        }
        if not more:
            return [classes[each] for each in found]
        found |= more


def test_a_class_counts_whole() -> None:
    paths = sorted((ROOT / "python" / "tensordict").rglob("*.py"))
    classes = {name: each for path in paths for name, each in classes_of(path).items()}
    spread = {name: spread_of(name, classes) for name in classes}
    assert len(spread["LazyStackedTensorDict"]) > 3
    assert [
        name
        for name, parts in spread.items()
        if sum(part.lines for part in parts) > LONGEST_CLASS
    ] == []
    numbers = {
        name: len({part.path for part in parts}) for name, parts in spread.items()
    }
    slices = {
        name
        for name, each in classes.items()
        for parts in spread.values()
        if each in parts and parts is not spread[name]
    }
    assert [
        name
        for name, number in numbers.items()
        if number > SPREAD.get(name, MOST_FILES) and name not in slices
    ] == []


def test_files_and_functions_are_short() -> None:
    paths = sorted((ROOT / "python" / "tensordict").rglob("*.py"))
    assert len(paths) > 400
    assert [path.name for path in paths if not is_short(path)] == []
    assert [name for path in paths for name in long_functions(path)] == []
