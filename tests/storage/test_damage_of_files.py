"""Damage to saves that are files, and to what a tree has beside its leaves.

Each is refused with a message that names the file, and the key where it is of one, and changes no file.
Those of the metadata and leaves of trees are in ``test_damage.py``.
"""

import json
import os
import re
import shutil
import struct
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tensordict import TensorDict, to_safetensors
from tensordict.storage import verify

A = torch.arange(6.0).view(3, 2)
B = torch.full((3,), 7.0)

SUFFIX = {"tree": "x", "archive": "x.tdz", "safetensors": "x.safetensors"}
SUFFIX |= {"consolidated": "x.cons", "shards": "x.safetensors.index.json"}


def save(layout: str, folder: Path) -> Path:
    td = TensorDict({"a": A, "n": {"b": B}}, [3])
    path = folder / SUFFIX[layout]
    if layout == "consolidated":
        td.consolidate(path)
    elif layout == "shards":
        to_safetensors(td, folder / "x.safetensors", shards=2)
    else:
        td.save(path)
    return path


def contents(folder: Path) -> dict[str, object]:
    """The bytes, times and kinds of all files; a link is its target."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path)
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else path.is_fifo()
        )
        for path in sorted(folder.rglob("*"))
    }


def flip(path: Path, at: int) -> None:
    """Change a bit, and leave the time of the file."""
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def flip_in(path: Path, values: torch.Tensor) -> None:
    """Change a bit of these values."""
    flip(path, path.read_bytes().index(values.numpy().tobytes()) + 5)


def cut(path: Path, num_bytes: int) -> None:
    os.truncate(path, path.stat().st_size - num_bytes)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def lead_out(save: Path, name: str) -> None:
    """Put a link to a file outside of the save in the place of a file."""
    outside = save.with_name("outside")
    shutil.move(save / name, outside)
    (save / name).symlink_to(outside)


# Archives -------------------------------------------------------------------------------


def rewrite(path: Path, **changes: bytes | None) -> None:
    """Write an archive anew with other entries; None leaves one out."""
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    for name, content in changes.items():
        if content is None:
            del entries[name]
        else:
            entries[name] = content
    with zipfile.ZipFile(path, "w") as new:
        for name, content in entries.items():
            new.writestr(name, content)


def rewrite_metadata(path: Path, change: Callable[[dict], None]) -> None:
    with zipfile.ZipFile(path) as old:
        fields = json.loads(old.read("meta.json"))
    change(fields)
    rewrite(path, **{"meta.json": json.dumps(fields).encode()})


def set_leaf(**changes) -> Callable[[dict], None]:
    return lambda fields: fields["a"].update(changes)


def patch(path: Path, before: bytes, after: bytes, count: int = -1) -> None:
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after, count))


def write_twice(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Dup"):
        archive.writestr("a.memmap", b"\0" * 24)


def encrypt(path: Path) -> None:
    """Set the flag of the entry of "a" in both headers."""
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("a.memmap").header_offset
        start = archive.start_dir
    content[at + 6] |= 1
    record = content.index(b"a.memmap", start) - 46
    content[record + 8] |= 1
    path.write_bytes(content)


def move_directory(path: Path) -> None:
    """Let the end record name a directory beyond the end."""
    content = bytearray(path.read_bytes())
    content[-6:-2] = struct.pack("<I", len(content) + 100)
    path.write_bytes(content)


ARCHIVE = {
    "cut": (lambda p: cut(p, 1), "x.tdz is not an archive"),
    "empty": (lambda p: os.truncate(p, 0), r"x\.tdz"),
    "half": (lambda p: cut(p, p.stat().st_size // 2), r"x\.tdz"),
    "without the metadata": (lambda p: rewrite(p, **{"meta.json": None}), "meta.json"),
    "without a leaf": (
        lambda p: rewrite(p, **{"a.memmap": None}),
        r"'a' is missing\): '.*x\.tdz::/a\.memmap'",
    ),
    "without a child": (
        lambda p: rewrite(p, **{"n/meta.json": None}),
        r"'n' is missing\): '.*x\.tdz::/n/meta\.json'",
    ),
    "short leaf": (
        lambda p: rewrite(p, **{"a.memmap": b"\0" * 23}),
        r"'a' is too short: '.*x\.tdz::/a\.memmap' has 23 .* need 24",
    ),
    "other dtype": (
        lambda p: rewrite_metadata(p, set_leaf(dtype="torch.complex128")),
        r"'a' is too short: '.*x\.tdz::/a\.memmap' has 24 .* need 96",
    ),
    "unknown dtype": (
        lambda p: rewrite_metadata(p, set_leaf(dtype="torch.float99")),
        r"torch\.float99 .*'a' in '.*x\.tdz::/meta\.json'",
    ),
    "huge shape": (
        lambda p: rewrite_metadata(p, set_leaf(shape=[1 << 40])),
        r"'a' is too short: '.*x\.tdz::/a\.memmap'",
    ),
    "shape beyond memory": (
        lambda p: rewrite_metadata(p, set_leaf(shape=[1 << 62, 1 << 62])),
        r"x\.tdz::/meta\.json' is damaged: the entry 'a'",
    ),
    "negative shape": (
        lambda p: rewrite_metadata(p, set_leaf(shape=[-3, 2])),
        r"x\.tdz::/meta\.json' is damaged: the entry 'a'",
    ),
    "metadata is not JSON": (
        lambda p: rewrite(p, **{"meta.json": b"{"}),
        r"x\.tdz::/meta\.json",
    ),
    "metadata is no text": (
        lambda p: rewrite(p, **{"meta.json": b"\xff{}"}),
        r"x\.tdz::/meta\.json' is damaged: it is not UTF-8",
    ),
    "an entry twice": (write_twice, r"x\.tdz is not an archive: two of its entries"),
    "header of another entry": (
        lambda p: patch(p, b"a.memmap", b"z.memmap", 1),
        r"'a\.memmap' of the archive '.*x\.tdz' is damaged: .*names another",
    ),
    "header that is none": (
        lambda p: flip(p, 0),
        r"'meta\.json' of the archive '.*x\.tdz' is damaged: its header is invalid",
    ),
    "encrypted": (encrypt, r"'a\.memmap' of the archive '.*x\.tdz'.*encrypted"),
    "directory beyond the end": (move_directory, r"x\.tdz is not an archive"),
    "a directory": (replace_by_directory, r"x\.tdz"),
    "a pipe": (replace_by_pipe, r"x\.tdz"),
}

# Safetensors ----------------------------------------------------------------------------


def header_of(path: Path) -> tuple[dict, bytes]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def set_header(path: Path, text: str | bytes, data: bytes) -> None:
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


def change_header(path: Path, change: Callable[[dict], object]) -> None:
    header, data = header_of(path)
    change(header)
    set_header(path, json.dumps(header), data)


def set_tensor(**changes) -> Callable[[Path], None]:
    return lambda path: change_header(path, lambda header: header["a"].update(changes))


def repeat_tensor(path: Path) -> None:
    header, data = header_of(path)
    text = json.dumps(header)
    set_header(path, text[:-1] + ', "a": ' + json.dumps(header["a"]) + "}", data)


def drop_tensor(path: Path) -> None:
    change_header(path, lambda header: header.pop("a"))


SAFETENSORS = {
    "cut": (
        lambda p: cut(p, 1),
        r"x\S*safetensors' is damaged: the entry '.*it was cut",
    ),
    "empty": (lambda p: os.truncate(p, 0), r"x\S*safetensors"),
    "half a header": (lambda p: os.truncate(p, 40), r"x\S*safetensors"),
    "long header": (
        lambda p: p.write_bytes(struct.pack("<Q", 1 << 62) + p.read_bytes()[8:]),
        r"x\S*safetensors",
    ),
    "header is not JSON": (
        lambda p: set_header(p, "{nothing", b""),
        r"x\S*safetensors' is damaged: its header is not JSON",
    ),
    "header is no text": (
        lambda p: set_header(p, b"{\xff\xff}", b""),
        r"x\S*safetensors' is damaged: its header is not UTF-8 text",
    ),
    "header is a number": (
        lambda p: patch(p, b'{"', b'1 "', 1),
        r"x\S*safetensors",
    ),
    "without a tensor": (
        drop_tensor,
        r"x\.safetensors' is damaged: the entry 'a': the file has no tensor 'a'",
    ),
    "other dtype": (
        set_tensor(dtype="F64"),
        r"x\S*safetensors' is damaged: the entry 'a'.* need 48",
    ),
    "unknown dtype": (
        set_tensor(dtype="F99"),
        r"x\S*safetensors' is damaged: the entry 'a'.*F99",
    ),
    "other shape": (
        set_tensor(shape=[3, 3]),
        r"x\S*safetensors' is damaged: the entry 'a'.* need 36",
    ),
    "negative shape": (
        set_tensor(shape=[-3, 2]),
        r"x\S*safetensors' is damaged: the entry 'a'.*not the shape",
    ),
    "huge shape": (
        set_tensor(shape=[1 << 62, 1 << 62]),
        r"x\S*safetensors' is damaged: the entry 'a'.*not the shape",
    ),
    "offsets beyond the end": (
        set_tensor(data_offsets=[1 << 40, (1 << 40) + 24]),
        r"x\S*safetensors' is damaged: the entry 'a'.*it was cut",
    ),
    "offsets of another tensor": (
        lambda p: change_header(
            p,
            lambda header: header.update(
                z={"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
            ),
        ),
        r"x\S*safetensors' is damaged: the entry '[az]'.*are those of '[az]' too",
    ),
    "a tensor twice": (
        repeat_tensor,
        r"x\S*safetensors' is damaged: the entry 'a': it is in the header twice",
    ),
    "a directory": (replace_by_directory, r"x\S*safetensors"),
    "a pipe": (replace_by_pipe, r"x\S*safetensors"),
}


def shard_of_a(index: Path) -> Path:
    return index.parent / json.loads(index.read_text())["weight_map"]["a"]


def change_index(path: Path, change: Callable[[dict], object]) -> None:
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


INDEX = {
    "index is cut": (lambda p: cut(p, 9), r"index\.json' is damaged: it is not JSON"),
    "index is empty": (lambda p: os.truncate(p, 0), r"index\.json"),
    "index without a map": (
        lambda p: change_index(p, lambda fields: fields.pop("weight_map")),
        r"index\.json' is damaged: it is an index without weight_map",
    ),
    "index names a file elsewhere": (
        lambda p: change_index(p, lambda f: f["weight_map"].update(a="../x")),
        r"index\.json' is damaged: the entry 'a'",
    ),
    "index names another file": (
        lambda p: change_index(p, lambda f: f["weight_map"].update(a="other")),
        r"other",
    ),
    "index names a tensor twice": (
        lambda p: patch(p, b'"a":', b'"n.b": "z", "a":', 1),
        r"index\.json' is damaged: the entry 'n\.b'",
    ),
    "a shard is missing": (
        lambda p: shard_of_a(p).unlink(),
        r"x-0000\d-of-00002\.safetensors",
    ),
}

# Consolidated files ---------------------------------------------------------------------


def change_description(path: Path, change: Callable[[dict], object]) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<q", content[-8:])
    fields = json.loads(content[-8 - length : -8])
    change(fields)
    set_description(path, json.dumps(fields).encode())


def set_description(path: Path, text: bytes) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<q", content[-8:])
    path.write_bytes(content[: -8 - length] + text + struct.pack("<q", len(text)))


def set_row(place: int, value: object) -> Callable[[Path], None]:
    def change(fields: dict) -> None:
        fields["leaves"]["a"][place] = value

    return lambda path: change_description(path, change)


CONSOLIDATED = {
    "cut": (lambda p: cut(p, 1), r"x\.cons"),
    "cut at the front": (
        lambda p: p.write_bytes(p.read_bytes()[8:]),
        r"x\.cons",
    ),
    "empty": (lambda p: os.truncate(p, 0), r"x\.cons"),
    "longer": (
        lambda p: p.write_bytes(p.read_bytes() + b"more than there was"),
        "x.cons",
    ),
    "negative length": (
        lambda p: p.write_bytes(p.read_bytes()[:-8] + struct.pack("<q", -1)),
        r"x\.cons",
    ),
    "description is not JSON": (lambda p: set_description(p, b"{nothing"), r"x\.cons"),
    "description is no text": (lambda p: set_description(p, b"{\xff"), r"x\.cons"),
    "description is a list": (lambda p: set_description(p, b"[]"), r"x\.cons"),
    "unknown dtype": (set_row(0, "torch.float99"), r"x\.cons.*'a'|'a'.*x\.cons"),
    "other dtype": (set_row(0, "torch.float64"), r"x\.cons.*'a'|'a'.*x\.cons"),
    "other shape": (set_row(1, [3, 3]), r"x\.cons.*'a'|'a'.*x\.cons"),
    "negative shape": (set_row(1, [-3, 2]), r"x\.cons.*'a'|'a'.*x\.cons"),
    "huge shape": (set_row(1, [1 << 62, 1 << 62]), r"x\.cons.*'a'|'a'.*x\.cons"),
    "beyond the end": (set_row(3, 1 << 40), r"x\.cons.*'a'|'a'.*x\.cons"),
    "before the start": (set_row(2, -8), r"x\.cons.*'a'|'a'.*x\.cons"),
    "offset is text": (set_row(2, "0"), r"x\.cons.*'a'|'a'.*x\.cons"),
    "a leaf is no row": (
        lambda p: change_description(p, lambda f: f["leaves"].update(a=3)),
        r"x\.cons.*'a'|'a'.*x\.cons",
    ),
    "no batch size": (
        lambda p: change_description(p, lambda f: f.pop("cls_metadata")),
        r"x\.cons",
    ),
    "a directory": (replace_by_directory, r"x\.cons"),
    "a pipe": (replace_by_pipe, r"x\.cons"),
}

# Trees ----------------------------------------------------------------------------------


def repeat_key(path: Path) -> None:
    text = (path / "meta.json").read_text()
    row = '"a": {"dtype": "torch.uint8", "shape": [2]}, '
    (path / "meta.json").write_text("{" + row + text[1:])


TREE = {
    "leaf leads out": (lambda p: lead_out(p, "a.memmap"), r"'a' is a symbolic link"),
    "nested leaf leads out": (
        lambda p: lead_out(p, "n/b.memmap"),
        r"\('n', 'b'\) is a symbolic link that leads out .*b\.memmap",
    ),
    "leaf is a pipe": (lambda p: replace_by_pipe(p / "a.memmap"), r"'a'.*a\.memmap"),
    "metadata is a pipe": (lambda p: replace_by_pipe(p / "meta.json"), r"meta\.json"),
    "metadata is a directory": (
        lambda p: replace_by_directory(p / "meta.json"),
        r"meta\.json",
    ),
}

# The shard has one tensor, without which its bytes are too many.
SHARDS = SAFETENSORS | {
    "without a tensor": (
        drop_tensor,
        r"x-0000\d\S* is damaged: its header names the bytes up to \d+, and the file has",
    )
}

CASES = [
    (layout, name, *case)
    for layout, cases in [
        ("archive", ARCHIVE),
        ("safetensors", SAFETENSORS),
        ("consolidated", CONSOLIDATED),
        ("shards", INDEX),
        ("tree", TREE),
    ]
    for name, case in cases.items()
] + [
    (
        "shards",
        f"shard: {name}",
        lambda path, break_it=break_it: break_it(shard_of_a(path)),
        message,
    )
    for name, (break_it, message) in SHARDS.items()
]

REFUSALS = (OSError, RuntimeError, ValueError, KeyError)


@pytest.mark.parametrize(
    ("layout", "break_it", "message"),
    [pytest.param(layout, *rest, id=f"{layout}-{n}") for layout, n, *rest in CASES],
)
def test_damage_is_refused_by_name(layout, break_it, message, tmp_path):
    path = save(layout, tmp_path / "at")
    break_it(path)
    before = contents(tmp_path)
    for mode in (None, "r", "r+"):
        with pytest.raises(REFUSALS) as raised:
            TensorDict.load(path, mode=mode)
        assert re.search(message, str(raised.value)), str(raised.value)
    assert contents(tmp_path) == before


FLIPPED = {
    "tree": lambda path: path / "a.memmap",
    "shards": shard_of_a,
    **dict.fromkeys(["archive", "safetensors", "consolidated"], lambda path: path),
}


def test_every_layout_has_fourteen_kinds_of_damage():
    # Most of those of trees are in the other file.
    counts = Counter(layout for layout, *_ in CASES if layout != "tree")
    assert len(counts) == 4
    assert min(counts.values()) >= 14


@pytest.mark.parametrize("layout", FLIPPED)
def test_a_flipped_bit_of_a_tensor_is_found(layout, tmp_path):
    path = save(layout, tmp_path)
    flip_in(FLIPPED[layout](path), A)
    before = contents(tmp_path)
    with pytest.raises(RuntimeError, match=r"'a' .*x.* is damaged"):
        TensorDict.load(path, verify=True)
    assert contents(tmp_path) == before


METADATA = {
    "tree": (lambda path: path / "meta.json", b"torch.float32"),
    "archive": (lambda path: path, b"torch.float32"),
    "consolidated": (lambda path: path, b"batch_size"),
}


@pytest.mark.parametrize("layout", METADATA)
def test_a_flipped_bit_of_the_metadata_is_found(layout, tmp_path):
    path = save(layout, tmp_path)
    find, text = METADATA[layout]
    file = find(path)
    # A key or a name that another value takes the place of, and still is JSON.
    flip(file, file.read_bytes().index(text) + len(text) - 1)
    before = contents(tmp_path)
    with pytest.raises(REFUSALS):
        TensorDict.load(path, verify=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["", "[]", "{", '{"files": 3}', '{"files": {"a": 1}}'])
def test_sums_that_cannot_be_read_are_damage(text, tmp_path):
    path = save("tree", tmp_path)
    (path / ".tensordict-sums.json").write_text(text)
    before = contents(tmp_path)
    with pytest.raises(REFUSALS, match=r"\.tensordict-sums\.json"):
        verify(path)
    # They are not needed for the values.
    assert torch.equal(TensorDict.load(path)["a"], A)
    assert contents(tmp_path) == before


def test_a_key_twice_in_the_metadata_of_a_tree(tmp_path):
    path = save("tree", tmp_path)
    repeat_key(path)
    before = contents(tmp_path)
    # The last one counts, as for any reader of JSON.
    assert torch.equal(TensorDict.load(path)["a"], A)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("layout", ["safetensors", "shards"])
def test_bytes_behind_the_data_of_safetensors_are_refused(layout, tmp_path):
    path = save(layout, tmp_path)
    with FLIPPED[layout](path).open("ab") as opened:
        opened.write(b"more")
    before = contents(tmp_path)
    with pytest.raises(RuntimeError, match="something was appended"):
        TensorDict.load(path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("layout", ["tree", "archive"])
def test_what_is_longer_than_it_says_loads(layout, tmp_path):
    path = save(layout, tmp_path)
    file = FLIPPED[layout](path)
    with file.open("ab") as opened:
        opened.write(b"more")
    before = contents(tmp_path)
    assert torch.equal(TensorDict.load(path)["a"], A)
    assert contents(tmp_path) == before
