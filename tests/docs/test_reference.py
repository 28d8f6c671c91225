"""The pages of the reference have every public name."""

import importlib.util
import inspect
from pathlib import Path

import pytest

import tensordict

TOOL = Path(__file__).parents[2] / "tools" / "reference.py"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(reference):
    return reference.pages()


@pytest.fixture(scope="module")
def named(pages):
    """List what the pages document, each time it is documented."""
    return [
        line.split(":: ", 1)[1]
        for text in pages.values()
        for line in text.splitlines()
        if line.startswith((".. auto", ".. py:")) and ":: " in line
    ]


def test_every_name_is_there_once(named):
    assert len(named) == len(set(named))


def test_every_exported_name_has_its_place(named):
    last = {name.rpartition(".")[2] for name in named}
    modules = (tensordict, tensordict.nn, tensordict.data, tensordict.checkpoint)
    missing = {
        name
        for module in modules
        for name in module.__all__
        if not name.startswith("__") and name not in last
    }
    assert not missing


def test_every_name_has_a_page_that_is_meant_for_it(pages):
    # Add a new name to docs/reference.toml.
    assert "more-names" not in pages
    assert "more-methods" not in pages


def test_every_method_of_collections_has_its_place(named):
    public = {name for name in dir(tensordict.TensorDict) if name[0] != "_"}
    assert {f"tensordict.TensorDict.{name}" for name in public} <= set(named)


def test_the_page_of_tensordict_lists_each_method_once(pages):
    lines = pages["TensorDict"].splitlines()
    listed = [line for line in lines if line.startswith("   ~tensordict.TensorDict.")]
    public = [name for name in dir(tensordict.TensorDict) if name[0] != "_"]
    assert sorted(listed) == sorted(f"   ~tensordict.TensorDict.{n}" for n in public)


def test_every_class_has_a_page_of_its_name(pages):
    for name in ("LazyStackedTensorDict", "BatchLoader", "Checkpointer", "TensorDict"):
        assert pages[name].startswith(f"{name}\n===")


def test_private_bases_are_replaced_by_their_public_bases(reference):
    known = reference.public()
    lazy = reference.public_bases(tensordict.LazyStackedTensorDict, known)
    assert lazy == [":py:class:`~tensordict.TensorDictBase`"]
    assert reference.public_bases(tensordict.checkpoint.Checkpointer, known) == []
    shown = [
        base
        for value in known.values()
        if inspect.isclass(value)
        for base in reference.public_bases(value, known)
    ]
    assert not [base for base in shown if "._" in base or "Ops" in base]


def test_a_constant_has_its_own_text(pages):
    assert "Joins the parts of a nested key" in pages["keys-functions"]


def test_the_guides_of_the_search_exist():
    docs = TOOL.parents[1] / "docs"
    text = (docs / "static" / "search.js").read_text(encoding="utf-8")
    guides = [
        line.split('"')[1] for line in text.splitlines() if line.startswith('  "')
    ]
    assert len(guides) > 20
    assert not [guide for guide in guides if not (docs / f"{guide}.md").exists()]
    written = {f"guide/{path.stem}" for path in (docs / "guide").glob("*.md")}
    assert written - set(guides) <= {"guide/own_collections", "guide/kept_elsewhere"}


def test_pages_are_written_only_where_they_changed(reference, tmp_path):
    reference.write(tmp_path)
    (tmp_path / "of-old.md").touch()
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    reference.write(tmp_path)
    after = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    before.pop("of-old.md")
    assert after == before
