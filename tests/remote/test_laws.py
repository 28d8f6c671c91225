"""The laws of damaged saves hold at every place: on the disk, in memory, in S3.

Whatever happens to an object of a save, a reader gets the values that were saved or an error,
and never other values without a word.
"""

import os
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
import torch

import tensordict
from tensordict import LazyStackedTensorDict, TensorDict, cli
from tensordict.storage.functions import to_safetensors
from tensordict.storage.remote import place_of

ERRORS = (OSError, RuntimeError, ValueError, KeyError)


def sample():
    return TensorDict(
        {
            "a": torch.arange(40).reshape(10, 4),
            "half": torch.full((10,), 0.5, dtype=torch.bfloat16),
            "nested": TensorDict({"b/c ü%#": torch.ones(10, 1)}, [10]),
            "empty": torch.zeros(10, 0),
            "text": "hello",
        },
        [10],
    )


def ragged():
    rows = [
        TensorDict({"a": torch.arange(4) + 4 * n, "r": torch.arange(n)})
        for n in range(10)
    ]
    return LazyStackedTensorDict(*rows)


LAYOUTS = {
    "tree": ("save", lambda url: sample().memmap(url)),
    "archive": ("save.tdz", lambda url: sample().memmap(url)),
    "safetensors": ("m.safetensors", lambda url: sample().memmap(url)),
    "shards": ("m.safetensors", lambda url: to_safetensors(sample(), url, shards=2)),
    "consolidated": ("file.td", lambda url: sample().consolidate(url)),
    "columns": ("rows", lambda url: ragged().memmap(url, ragged="columns")),
}
EVERY = pytest.mark.parametrize("layout", LAYOUTS)


class Objects:
    """The objects below a URL, or the files below a folder."""

    def __init__(self, url):
        is_file = url.startswith("file:")
        self.folder = Path(unquote(urlparse(url).path)) if is_file else None
        self.place = None if is_file else place_of(url)

    def all(self):
        if self.folder is None:
            return {each.name: self.place.get(each.name) for each in self.place.list()}
        return {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file()
        }

    def put(self, name, content):
        if self.folder is None:
            self.place.put(name, content)
        else:
            (self.folder / name).unlink(missing_ok=True)
            (self.folder / name).write_bytes(content)

    def delete(self, name):
        if self.folder is None:
            self.place.delete([name])
        else:
            (self.folder / name).unlink()


@pytest.fixture
def saved(url, layout):
    """Save by a layout; return the URL of the save and its objects."""
    name, save = LAYOUTS[layout]
    save(f"{url}/{name}")
    return f"{url}/{name}", Objects(url)


def read(url):
    """Read everything of a save, as rows and as a whole."""
    found = tensordict.load(url)
    rows = found[torch.tensor([9, 0])]["a"].clone()
    if "r" in found:
        members = found[torch.arange(10)]
        return [rows, *[row["r"].clone() for row in members], members["a"].clone()]
    whole = found.to_tensordict()
    tensors = whole.exclude("text")
    leaves = [tensors[key].clone() for key in sorted(tensors.keys(True, True), key=str)]
    return [rows, *leaves, whole["text"]]


def is_same(found, expected):
    return len(found) == len(expected) and all(
        torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        for one, other in zip(found, expected, strict=True)
    )


@EVERY
@pytest.mark.parametrize("harm", ["missing", "cut", "emptied"])
def test_a_harmed_object_is_an_error_or_makes_no_difference(saved, harm):
    url, objects = saved
    expected = read(url)
    contents = objects.all()
    noticed = []
    for name, content in contents.items():
        if harm == "missing":
            objects.delete(name)
        else:
            objects.put(name, content[: len(content) // 2 if harm == "cut" else 0])
        try:
            found = read(url)
        except ERRORS:
            noticed.append(name)
        else:
            assert is_same(found, expected), name
        objects.put(name, content)
        assert is_same(read(url), expected)
    # Checksums and records may be missing; tensors and descriptions may not.
    needed = {
        name
        for name, content in contents.items()
        if content and not name.rpartition("/")[2].startswith(".tensordict-")
    }
    assert set(noticed) >= {name for name in needed if "text" not in name}


@EVERY
def test_a_flipped_bit_of_a_tensor_is_found_by_verify(saved, capsys, tmp_path):
    url, objects = saved
    contents = objects.all()
    assert cli.main(["verify", url]) == 0
    # The values of `a`: nothing else is like them.
    values = torch.arange(40).numpy().tobytes()[8:64]
    harmed = [name for name, content in contents.items() if values in content]
    assert harmed
    for name in harmed:
        content = bytearray(contents[name])
        content[contents[name].index(values)] ^= 1
        if objects.folder is None:
            objects.put(name, bytes(content))
        else:
            # Under the time of the save: else somebody has changed it on purpose.
            path = objects.folder / name
            times = path.stat()
            path.write_bytes(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        capsys.readouterr()
        assert cli.main(["verify", url]) == 1
        said = capsys.readouterr().out
        assert "DAMAGED" in said
        if objects.folder is None:
            # Paths of the copy that was looked at mean nothing to anybody.
            assert "/tmp" not in said
            with pytest.raises(RuntimeError, match="is damaged"):
                tensordict.load(
                    url, download=tmp_path / name.replace("/", "-"), verify=True
                )
        objects.put(name, contents[name])


@EVERY
def test_what_is_not_a_save_is_named(url, layout):
    name, _ = LAYOUTS[layout]
    with pytest.raises(ERRORS, match="nothing"):
        tensordict.load(f"{url}/nothing-{name}")
    objects = Objects(url)
    if objects.folder is not None:
        objects.folder.mkdir()
    objects.put(name, b"these are no tensors, but a text of some length")
    with pytest.raises(ERRORS) as raised:
        tensordict.load(f"{url}/{name}")
    assert name in str(raised.value)
