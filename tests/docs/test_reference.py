"""The pages of the reference have every public name."""

import importlib.util
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
def named(reference):
    """List what the pages document, each time it is documented."""
    return [
        line.split(":: ", 1)[1]
        for text in reference.pages().values()
        for line in text.splitlines()
        if line.startswith(".. auto")
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


def test_every_method_of_collections_has_its_place(named, reference):
    found = {name for names in reference.methods().values() for name in names}
    public = {name for name in dir(tensordict.TensorDictBase) if name[0] != "_"}
    assert found == public
    assert {f"tensordict.TensorDictBase.{name}" for name in public} <= set(named)


def test_pages_are_written_only_where_they_changed(reference, tmp_path):
    reference.write(tmp_path)
    (tmp_path / "of-old.md").touch()
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    reference.write(tmp_path)
    after = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    before.pop("of-old.md")
    assert after == before
