"""The folders are as ARCHITECTURE.md and CONTRIBUTING.md say."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

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
"""What a path in a document may be relative to."""

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
    """Whether there is such a file or folder; one without a folder may be anywhere."""
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
