"""The table of layouts: each is found, saved, loaded, looked into and verified."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import tensordict
from tensordict import TensorDict
from tensordict.storage import layouts, seal, verify
from tensordict.storage.inspect import survey

PACKAGE = Path(tensordict.__file__).parent


def make() -> TensorDict:
    return TensorDict({"a": torch.arange(3), "n": {"b": torch.ones(3, 2)}}, [3])


def name_for(layout: layouts.Layout) -> str:
    return f"save{layout.suffixes[0]}" if layout.suffixes else "save"


every_layout = pytest.mark.parametrize(
    "layout", layouts.LAYOUTS, ids=lambda layout: layout.name
)


@every_layout
def test_a_layout_recognizes_what_it_saved(layout, tmp_path):
    path = tmp_path / name_for(layout)
    saved = layout.save(make(), path, layouts.SaveOptions())
    assert (saved == make()).all()
    assert [each for each in layouts.LAYOUTS if each.matches(path)] == [layout]
    # A file is found by what is in it.
    renamed = path.rename(tmp_path / "other")
    assert layouts.find(renamed) is layout
    assert (tensordict.load(renamed) == make()).all()
    found = survey(renamed)
    assert found.layout == layout.name
    tensors = {entry.key: entry.dtype for entry in found.entries if entry.dtype}
    assert tensors == {("a",): "int64", ("n", "b"): "float32"}
    report = verify(renamed)
    assert report.layout == layout.name
    assert {each.outcome for each in report.findings} == {"good"}


@every_layout
def test_names_of_layouts(layout):
    assert layouts.of_name(layout.name) is layout
    assert all(layouts.by_suffix(f"x{suffix}") is layout for suffix in layout.suffixes)
    assert layouts.by_suffix("x.pt") is layouts.DIRECTORY


@every_layout
def test_sums_are_taken_anew_where_they_can_be(layout, tmp_path):
    path = tmp_path / "save"
    layout.save(make(), path, layouts.SaveOptions())
    if layout in (layouts.DIRECTORY, layouts.ARCHIVE):
        assert seal(path) >= 2
    else:
        with pytest.raises(ValueError, match="only directories and archives"):
            seal(path)


def test_what_is_in_no_layout(tmp_path):
    path = tmp_path / "other"
    assert layouts.find(path) is None
    path.write_text("text")
    assert layouts.find(path) is None
    with pytest.raises(ValueError, match="is not a save"):
        survey(path)


def test_a_zip_file_of_another_program_is_no_save(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"a": torch.zeros(2)}, path)
    for asked in (survey, seal):
        with pytest.raises(ValueError, match=r"not a save.*torch\.load"):
            asked(path)


def test_a_load_of_a_directory_takes_five_files(tmp_path):
    make().save(tmp_path / "save")
    tensordict.load(tmp_path / "save")
    files = set()

    def note(frame, event, argument):
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(PACKAGE):
            files.add(file.relative_to(PACKAGE).as_posix())

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        TensorDict.load(tmp_path / "save")
    finally:
        sys.setprofile(before)
    # Reading the batch size is a call of Python where it is not one of native code.
    assert files - {"ops/batch.py"} == {
        "ops/saving.py",
        "storage/layouts/__init__.py",
        "storage/layouts/directory.py",
        "storage/paths.py",
        "primitives/registry.py",
    }
