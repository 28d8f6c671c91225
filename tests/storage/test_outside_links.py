"""A load reads what is in the save, and nothing that lies elsewhere."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tensordict import TensorDict, lazy_stack, load, tensorclass
from tensordict.storage import verify
from tensordict.storage.inspect import survey

SECRET = 7.0


@tensorclass
class Data:
    a: torch.Tensor


def make(folder: Path) -> Path:
    """A save of every kind of level, beside another one."""
    secret = torch.full((4,), SECRET)
    TensorDict(s=secret).save(folder / "other")
    Data(a=secret).save(folder / "class")
    td = TensorDict(
        {
            "a": torch.ones(4),
            "n": {"s": torch.ones(4)},
            "l": lazy_stack([TensorDict(s=torch.ones(4)) for _ in range(4)]),
            "t": Data(a=torch.ones(4), batch_size=[4]),
        },
        [4],
    )
    td.save(folder / "save")
    return folder / "save"


def rename_key(save: Path, key: str, name: str) -> None:
    meta = json.loads((save / "meta.json").read_text())
    (save / "meta.json").write_text(json.dumps({name: meta.pop(key), **meta}))


def link(save: Path, name: str, target: str) -> None:
    place = save / name
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    place.symlink_to(target)


WAYS: dict[str, Callable[[Path], None]] = {
    "a leaf": lambda save: link(save, "a.memmap", "../other/s.memmap"),
    "a link to a link": lambda save: (
        (save / "x").symlink_to("../other/s.memmap"),
        link(save, "a.memmap", "x"),
    ),
    "through a directory": lambda save: (
        (save / "x").symlink_to("../other"),
        link(save, "a.memmap", "x/s.memmap"),
    ),
    "an absolute link": lambda save: link(
        save, "a.memmap", str(save.parent / "other" / "s.memmap")
    ),
    "a collection": lambda save: link(save, "n", "../other"),
    "its metadata": lambda save: link(save, "n/meta.json", "../../other/meta.json"),
    "a member of a stack": lambda save: link(save, "l/1", "../../other"),
    "the fields of a class": lambda save: link(
        save, "t/_tensordict", "../../class/_tensordict"
    ),
    "metadata of the root": lambda save: link(save, "meta.json", "../other/meta.json"),
}


@pytest.mark.parametrize("mode", [None, "r", "r+"])
@pytest.mark.parametrize("way", WAYS)
def test_no_link_is_followed_out_of_the_save(way, mode, tmp_path):
    save = make(tmp_path)
    WAYS[way](save)
    with pytest.raises(RuntimeError, match="is a symbolic link that leads out"):
        load(save, mode=mode)
    with pytest.raises(RuntimeError, match="is a symbolic link that leads out"):
        load(save, mode=mode, device="cpu")


@pytest.mark.parametrize("way", ["a collection", "its metadata"])
def test_no_link_is_followed_by_a_subpath(way, tmp_path):
    save = make(tmp_path)
    WAYS[way](save)
    with pytest.raises(RuntimeError, match="is a symbolic link that leads out"):
        load(save, subpath="n")


@pytest.mark.parametrize("key", ["a", "n"])
def test_a_key_that_is_a_way_out_is_refused(key, tmp_path):
    save = make(tmp_path)
    rename_key(save, key, "../other/s" if key == "a" else "../other")
    for robust_key in (True, None):
        with pytest.raises(FileNotFoundError):
            load(save, robust_key=robust_key)
    with pytest.raises(RuntimeError, match=r"leads out of the save: '.*other"):
        load(save, robust_key=False)


@pytest.mark.parametrize("subpath", ["../other", ("..", "other")])
def test_a_subpath_that_is_a_way_out_is_refused(subpath, tmp_path):
    save = make(tmp_path)
    with pytest.raises(ValueError, match="No tensordict found"):
        load(save, subpath=subpath)
    with pytest.raises(RuntimeError, match="a file leads out of the save"):
        load(save, subpath=subpath, robust_key=False)


@pytest.mark.parametrize("is_absolute", [True, False])
def test_links_inside_of_the_save_are_followed(is_absolute, tmp_path):
    save = make(tmp_path)
    link(save, "a.memmap", str(save / "n/s.memmap") if is_absolute else "n/s.memmap")
    link(save, "l/1", str(save / "l" / "0") if is_absolute else "0")
    (tmp_path / "link").symlink_to("save")
    for path in (save, tmp_path / "link"):
        loaded = load(path)
        assert loaded["a"].eq(1).all()
        assert len(loaded["l"].tensordicts) == 4


@pytest.mark.parametrize("way", WAYS)
def test_what_leads_out_is_named_by_other_readers(way, tmp_path):
    save = make(tmp_path)
    WAYS[way](save)
    # Each key with its note; of a tensor that leads out the size, and no more.
    assert "other" not in said(lambda: survey(save).entries)
    assert "leads out of the save" in said(lambda: verify(save).lines("damaged"))


def said(call: Callable[[], object]) -> str:
    try:
        return str(call())
    except RuntimeError as error:
        return str(error)
