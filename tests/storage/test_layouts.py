"""The table of layouts: each is found, saved, loaded, looked into and verified."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
import torch

import tensordict
from tensordict import TensorDict
from tensordict.cli import main
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


class OneTensor(layouts.Layout):
    """Pickles of the tensors of a flat collection."""

    name = "tensors"
    suffixes = (".tensors",)

    def matches(self, path):
        return Path(path).is_file() and Path(path).read_bytes()[:7] == b"tensors"

    def save(self, td, path, options):
        values = {key: value.numpy() for key, value in td.items()}
        Path(path).write_bytes(b"tensors" + pickle.dumps(values))
        return self.load(path, None)

    def load(self, path, options, out=None):
        return TensorDict(pickle.loads(Path(path).read_bytes()[7:]))

    def inspect(self, path):
        for key, value in self.load(path, None).items():
            dtype = str(value.dtype).removeprefix("torch.")
            yield layouts.Entry(
                (key,), "tensor", dtype, list(value.shape), value.nbytes
            )


@pytest.fixture
def fifth(monkeypatch):
    monkeypatch.setattr(layouts, "LAYOUTS", [*layouts.LAYOUTS])
    layout = OneTensor()
    layouts.register(layout)
    return layout


def test_a_layout_that_is_registered_is_known_everywhere(fifth, tmp_path, capsys):
    td = TensorDict({"a": torch.arange(3), "b": torch.ones(2)})
    path = tmp_path / "x.tensors"
    saved = td.save(path)
    assert path.read_bytes()[:7] == b"tensors"
    assert (saved == td).all()
    for load in (tensordict.load, TensorDict.load, TensorDict.load_memmap):
        assert (load(path) == td).all()
    out = TensorDict({"a": torch.zeros(3, dtype=torch.int64), "b": torch.zeros(2)})
    assert (TensorDict.load(path, out=out) == td).all()
    # Found by what is in it.
    renamed = path.rename(tmp_path / "other")
    assert layouts.find(renamed) is fifth
    found = survey(renamed)
    assert (found.layout, [each.key for each in found.entries]) == (
        "tensors",
        [("a",), ("b",)],
    )
    report = verify(renamed)
    assert report.layout == "tensors"
    assert [each.outcome for each in report.findings] == ["unchecked"] * 2
    assert main(["inspect", str(renamed)]) == 0
    assert "a: int64[3]" in capsys.readouterr().out
    assert main(["verify", str(renamed)]) == 0
    assert main(["convert", str(renamed), str(tmp_path / "tree")]) == 0
    assert main(["convert", str(tmp_path / "tree"), str(tmp_path / "y.tensors")]) == 0
    assert layouts.find(tmp_path / "y.tensors") is fifth
    with pytest.raises(ValueError, match="checksums"):
        seal(renamed)
    # Other names and wishes are what they were.
    assert layouts.find(tmp_path / "tree") is layouts.DIRECTORY
    td.save(tmp_path / "z.tensors", archive=True)
    assert layouts.find(tmp_path / "z.tensors") is layouts.ARCHIVE


def test_a_layout_that_is_damaged_says_so_by_itself(fifth, tmp_path, monkeypatch):
    TensorDict({"a": torch.arange(3)}).save(tmp_path / "x.tensors")
    problem = layouts.Entry(("a",), "tensor", problem="it is cut")
    monkeypatch.setattr(OneTensor, "inspect", lambda self, path: [problem])
    report = verify(tmp_path / "x.tensors")
    assert report.is_damaged
    assert "'a'" in report.lines("damaged")[0]


def test_a_layout_can_choose_by_the_collection(fifth, tmp_path, monkeypatch):
    def is_flat(self, td, path, options):
        return path is not None and "n" not in td.keys()

    monkeypatch.setattr(OneTensor, "chosen_by", is_flat)
    make().save(tmp_path / "nested")
    make().exclude("n").save(tmp_path / "flat")
    assert layouts.find(tmp_path / "nested") is layouts.DIRECTORY
    assert layouts.find(tmp_path / "flat") is fifth


def test_two_layouts_have_two_names(fifth):
    with pytest.raises(ValueError, match="'tensors'"):
        layouts.register(OneTensor())


def test_a_load_of_a_directory_takes_few_files(tmp_path):
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
        "storage/locations.py",
        "storage/remote/place.py",
        "storage/paths.py",
        "primitives/registry.py",
        # Which dims of an entry are batch dims: its kind says so.
        "primitives/special.py",
        "entries/ragged.py",
    }
