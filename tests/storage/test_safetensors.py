"""Safetensors files: ours, everybody's, several with an index."""

import json
import os
import re
import shutil
import struct
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensordict
from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    from_safetensors,
    lazy_stack,
    load,
    tensorclass,
    to_safetensors,
)
from tensordict.storage import safetensors_levels, verify

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float32]
DTYPES += [torch.int64, torch.complex64, torch.float8_e4m3fn, torch.float64]


def tree():
    nested = TensorDict({"r": torch.arange(3), "none": torch.zeros(3, 0)}, [3])
    return TensorDict(
        {"flag": torch.ones(3, dtype=torch.bool), "nested": nested, "x": torch.ones(3)},
        [3],
        names=["time"],
    )


def same(left, right):
    assert type(left) is type(right)
    assert left.batch_size == right.batch_size
    assert left.names == right.names
    assert list(left.keys()) == list(right.keys())
    for key, value in left.items():
        other = right._get_entry(key, None)
        if not isinstance(value, torch.Tensor):
            same(value, other)
            continue
        assert value.dtype == other.dtype
        assert value.shape == other.shape
        plain = value.contiguous().reshape(-1), other.contiguous().reshape(-1)
        assert torch.equal(plain[0].view(torch.uint8), plain[1].view(torch.uint8))


@st.composite
def trees(draw, depth=2):
    entries = {}
    for key in draw(
        st.lists(st.text(alphabet='ab"é', max_size=3), max_size=4, unique=True)
    ):
        if depth and draw(st.booleans()):
            entries[key] = draw(trees(depth - 1))
            continue
        dtype = draw(st.sampled_from(DTYPES))
        shape = draw(st.lists(st.integers(0, 3), max_size=2))
        count = torch.Size(shape).numel()
        values = torch.arange(count) % 2 if dtype is torch.bool else torch.arange(count)
        entries[key] = values.view(shape).to(dtype)
    return TensorDict(entries)


@settings(deadline=None)
@given(td=trees(), shards=st.none() | st.integers(1, 4), checks=st.booleans())
def test_what_was_saved_is_loaded(td, shards, checks, tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "file.safetensors"
    to_safetensors(td, path, shards=shards, checks=checks)
    same(from_safetensors(path), td)


@settings(deadline=None)
@given(td=trees())
def test_the_safetensors_package_reads_it(td, tmp_path_factory):
    package = pytest.importorskip("safetensors.torch")
    path = tmp_path_factory.mktemp("s") / "file.safetensors"
    to_safetensors(td, path)
    found = package.load_file(path)
    flat = {
        ".".join(k) if isinstance(k, tuple) else k: v for k, v in td.items(True, True)
    }
    assert found.keys() == flat.keys()
    for name, value in flat.items():
        plain = found[name].reshape(-1), value.contiguous().reshape(-1)
        assert torch.equal(plain[0].view(torch.uint8), plain[1].view(torch.uint8))
        assert found[name].dtype == value.dtype


def test_files_of_the_safetensors_package_are_nested_by_dots(tmp_path):
    package = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    tensors = {"a.b.c": torch.ones(2), "a.d": torch.zeros(3, 1), "e": torch.tensor(1)}
    package.save_file(tensors, path, metadata={"format": "pt"})
    td = load(path)
    assert td.batch_size == ()
    assert set(td.keys(True, True)) == {("a", "b", "c"), ("a", "d"), "e"}
    assert td["a", "b", "c"].tolist() == [1, 1]
    package.save_file({"a.b": torch.ones(2), "a": torch.ones(1)}, path)
    with pytest.raises(KeyError, match="already present"):
        load(path)


def test_a_directory_of_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        vocab_size=20,
        max_position_embeddings=4,
    )
    model = transformers.BertModel(config)
    for name, size in (("one", "1GB"), ("several", "2kB")):
        model.save_pretrained(tmp_path / name, max_shard_size=size)
        td = from_safetensors(tmp_path / name)
        assert len(list((tmp_path / name).glob("*.safetensors"))) > (name == "several")
        for key, value in model.state_dict().items():
            assert torch.equal(td[tuple(key.split("."))], value)
    index = tmp_path / "several" / "model.safetensors.index.json"
    assert (from_safetensors(index) == td).all()
    index.unlink()
    with pytest.raises(ValueError, match="00001-of"):
        from_safetensors(tmp_path / "several")
    with pytest.raises(ValueError, match="found none"):
        from_safetensors(tmp_path)


def test_shards_have_the_layout_of_hugging_face(tmp_path):
    path = tmp_path / "model.safetensors"
    td = TensorDict({f"w{i}": torch.full((100,), float(i)) for i in range(6)})
    to_safetensors(td, path, max_shard_size="1KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(os.listdir(tmp_path)) == [*names, "model.safetensors.index.json"]
    assert index["metadata"]["total_size"] == 2400
    assert [index["weight_map"][f"w{i}"] for i in range(6)] == [
        *(names[0], names[0], names[1], names[1], names[2], names[2])
    ]
    for place in (path, tmp_path / "model.safetensors.index.json"):
        same(from_safetensors(place), td)
        outcomes = [found.outcome for found in verify(place).findings if found.key]
        assert outcomes == ["good"] * 6
    shard = from_safetensors(tmp_path / names[1])
    assert sorted(shard.keys()) == ["w2", "w3"]
    # Fewer shards, then none: nothing of the older save stays.
    to_safetensors(td, path, shards=2)
    assert len(os.listdir(tmp_path)) == 3
    to_safetensors(td, path)
    assert os.listdir(tmp_path) == ["model.safetensors"]
    to_safetensors(td, path, shards=2)
    assert "model.safetensors" not in os.listdir(tmp_path)
    same(load(path), td)


@pytest.mark.parametrize(
    ("size", "expected"), [(800, 3), ("0.8kB", 3), ("1KiB", 3), ("2 MB", 1), (1, 6)]
)
def test_sizes_of_shards(size, expected, tmp_path):
    td = TensorDict({f"w{i}": torch.zeros(100) for i in range(6)})
    to_safetensors(td, tmp_path / "m.safetensors", max_shard_size=size)
    assert len(os.listdir(tmp_path)) == expected + 1


def test_wrong_shards(tmp_path):
    with pytest.raises(ValueError, match="'5GB'"):
        to_safetensors(tree(), tmp_path / "m", max_shard_size="many")
    with pytest.raises(ValueError, match="not both"):
        to_safetensors(tree(), tmp_path / "m", max_shard_size=5, shards=2)
    with pytest.raises(ValueError, match="at least 1"):
        to_safetensors(tree(), tmp_path / "m", shards=0)
    assert os.listdir(tmp_path) == []


def test_the_name_of_an_index(tmp_path):
    index = tmp_path / "m.safetensors.index.json"
    with pytest.raises(ValueError, match="to_safetensors"):
        tree().save(index)
    assert os.listdir(tmp_path) == []
    to_safetensors(tree(), index)
    assert sorted(os.listdir(tmp_path)) == ["m-00001-of-00001.safetensors", index.name]
    assert (tensordict.load(index) == tree()).all()


def test_shards_of_a_save_are_not_written_over(tmp_path):
    path = tmp_path / "m.safetensors"
    usual = [f"m-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = "m.safetensors.index.json"
    # Files left by a killed save, and by somebody else.
    to_safetensors(tree(), path, shards=2)
    shutil.copy(tmp_path / usual[0], tmp_path / "m-00001-of-00009.safetensors")
    TensorDict({"a": torch.ones(2)}).save(tmp_path / "mine.safetensors")
    (tmp_path / "mine.safetensors").rename(tmp_path / "m-00007-of-00009.safetensors")
    (tmp_path / "m-00008-of-00009.safetensors").write_text("no file of this format")
    others = ["m-00007-of-00009.safetensors", "m-00008-of-00009.safetensors", index]
    to_safetensors(tree() + 1, path, shards=2)
    same(load(path), tree() + 1)
    names = sorted(os.listdir(tmp_path))
    made = [name for name in names if name not in others]
    assert len(made) == 2
    assert all(re.fullmatch(r"m-[0-9a-f]{16}-0000\d-of-00002.*", name) for name in made)
    to_safetensors(tree(), path, shards=2)
    assert sorted(os.listdir(tmp_path)) == sorted([*usual, *others])


def test_a_shard_of_another_save_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    to_safetensors(tree(), path, shards=2)
    old = (tmp_path / "m-00001-of-00002.safetensors").read_bytes()
    to_safetensors(tree() + 1, path)
    to_safetensors(tree() + 1, path, shards=2)
    (tmp_path / "m-00001-of-00002.safetensors").write_bytes(old)
    with pytest.raises(RuntimeError, match="another save"):
        load(path)
    (tmp_path / "m-00001-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="m-00001-of-00002"):
        load(path)


def test_save_and_load_go_by_the_suffix(tmp_path):
    path = tmp_path / "file.safetensors"
    saved = tree().save(path)
    assert saved.is_locked
    assert path.is_file()
    same(load(path), tree())
    assert load(path, subpath="nested")["r"].tolist() == [0, 1, 2]
    assert load(path, device="meta")["x"].device.type == "meta"
    with pytest.raises(ValueError, match="subpath"):
        load(path, subpath="nested/nothing")
    with pytest.raises(RuntimeError, match="already exists"):
        tree().memmap(path, existsok=False)
    out = TensorDict({"other": torch.ones(3)}, [3])
    TensorDict.load_memmap(path, out=out)
    assert list(out.keys()) == ["flag", "nested", "x"]


def test_stores_into_what_was_loaded_stay_here(tmp_path):
    path = tmp_path / "file.safetensors"
    to_safetensors(tree(), path)
    from_safetensors(path)["x"].zero_()
    assert from_safetensors(path)["x"].sum() == 3
    load(path, mode="r+")["x"].zero_()
    assert from_safetensors(path)["x"].sum() == 0


def test_views_are_laid_out(tmp_path):
    path = tmp_path / "file.safetensors"
    z = torch.tensor([1 + 2j, 3 - 1j])
    td = TensorDict({"t": torch.arange(6).view(2, 3).T, "z": z.conj(), "n": z.imag})
    to_safetensors(td, path)
    td = from_safetensors(path)
    assert td["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert td["z"].tolist() == [1 - 2j, 3 + 1j]
    assert td["n"].tolist() == [2, -1]


@tensorclass
class Data:
    """Fields of both kinds."""

    a: torch.Tensor
    s: str


class Sub(TensorDict):
    """A user's subclass."""


def test_classes_values_and_stacks(tmp_path):
    path = tmp_path / "file.safetensors"
    members = [TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(1)}})] * 2
    td = TensorDict(
        {
            "data": Data(torch.ones(2), "hi", batch_size=[2]),
            "sub": Sub({"x": torch.ones(2)}, [2]),
            "stack": lazy_stack(members, stack_dim_name="s"),
            "text": "hello",
            "odd": NonTensorData((1, {2: None}), [2]),
            "meta": MetaData(5),
        },
        [2],
    )
    to_safetensors(td, path)
    found = from_safetensors(path)
    assert type(found["data"]) is Data
    assert found["data"].s == "hi"
    assert type(found["sub"]) is Sub
    assert type(found["stack"]) is LazyStackedTensorDict
    assert found["stack"].names == ["s"]
    assert found["stack"][1]["n", "b"].tolist() == [1]
    assert found["text"] == "hello"
    assert found["odd"] == (1, {2: None})
    assert type(found.get("meta")) is MetaData


REFUSED = {
    "one name": (
        lambda: TensorDict({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}),
        ValueError,
        "safetensors name 'a.b'",
    ),
    "stack of values": (
        lambda: TensorDict({"a": NonTensorStack("x", "y")}, [2]),
        TypeError,
        "non-tensor stack",
    ),
    "object": (lambda: TensorDict({"a": object()}), TypeError, "not a JSON value"),
    "sparse": (
        lambda: TensorDict({"a": torch.eye(2).to_sparse()}),
        TypeError,
        "only dense",
    ),
    "no such dtype": (
        lambda: TensorDict({"a": torch.ones(1, dtype=torch.complex128)}),
        TypeError,
        "no dtype torch.complex128",
    ),
    "keys of some members": (
        lambda: lazy_stack([TensorDict(a=torch.ones(1)), TensorDict(b=torch.ones(1))]),
        TypeError,
        "the lazy stack at the root .* have different keys",
    ),
    "more keys in some members": (
        lambda: TensorDict(
            x=lazy_stack([TensorDict(n={"a": 1}), TensorDict(n={"a": 1, "b": 2})])
        ),
        TypeError,
        r"the lazy stack at \('x',\) .* have different keys",
    ),
    "keys of members of members": (
        lambda: lazy_stack(
            [
                lazy_stack([TensorDict(a=torch.ones(1)), TensorDict(b=torch.ones(1))])
                for _ in range(2)
            ]
        ),
        TypeError,
        "the lazy stack at the root .* have different keys",
    ),
    "a value of some members": (
        lambda: lazy_stack([TensorDict(a=1, s="text"), TensorDict(a=1)]),
        TypeError,
        "have different keys",
    ),
    "a value and a tensor": (
        lambda: lazy_stack([TensorDict(a="text"), TensorDict(a=1)]),
        TypeError,
        "have different keys",
    ),
    "names of some members": (
        lambda: lazy_stack(
            [TensorDict({"a": torch.ones(2)}, [2], names=[name]) for name in "xy"]
        ),
        ValueError,
        r"Not all dim names match, got \['x'\] and \['y'\]",
    ),
    "a value alone": (lambda: NonTensorData(3), TypeError, "put it in a tensordict"),
    "no collection": (lambda: {"a": torch.ones(1)}, AttributeError, "batch_size"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_saved(what, tmp_path):
    make, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        to_safetensors(make(), tmp_path / "file.safetensors")
    assert os.listdir(tmp_path) == []


# Damage -------------------------------------------------------------------------------


def rewrite(path, change, is_text=False):
    """The file again with its header changed: the object, or its text."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = content[8 : 8 + length].decode()
    if is_text:
        header = change(header)
    else:
        fields = json.loads(header)
        change(fields)
        header = json.dumps(fields)
    text = header.encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def tensor(**fields):
    return lambda header: header["x"].update(fields)


def level(change):
    def in_header(header):
        text = json.loads(header["__metadata__"]["tensordict"])
        change(text)
        header["__metadata__"]["tensordict"] = json.dumps(text)

    return in_header


DAMAGE = {
    "no bytes": (
        lambda p: p.write_bytes(b""),
        "not a safetensors file|not a consolidated",
    ),
    "cut": (lambda p: os.truncate(p, os.path.getsize(p) - 2), "'flag'.*it was cut"),
    "cut in the header": (lambda p: os.truncate(p, 60), "it was cut"),
    "length of header lies": (
        lambda p: p.write_bytes(struct.pack("<Q", 2**62) + p.read_bytes()[8:]),
        "its header would have 4611686018427387904 bytes",
    ),
    "header longer than the file": (
        lambda p: p.write_bytes(struct.pack("<Q", 10**6) + p.read_bytes()[8:]),
        "its header has 1000000 bytes",
    ),
    "no JSON": (lambda p: rewrite(p, lambda t: t[:-20], True), "not JSON"),
    "no object": (lambda p: rewrite(p, lambda t: f"[{t}]", True), "not a JSON object"),
    "overlap": (
        lambda p: rewrite(p, lambda h: h["flag"].update(data_offsets=[22, 25])),
        "bytes are those of",
    ),
    "wrong dtype": (lambda p: rewrite(p, tensor(dtype="F64")), "'x': it has the bytes"),
    "unknown dtype": (lambda p: rewrite(p, tensor(dtype="Z9")), "'x'.*not a dtype"),
    "wrong shape": (lambda p: rewrite(p, tensor(shape=[4])), "'x': it has the bytes"),
    "huge shape": (
        lambda p: rewrite(p, tensor(shape=[2**62, 8])),
        "'x'.*not the shape",
    ),
    "negative shape": (lambda p: rewrite(p, tensor(shape=[-3])), "'x'.*not the shape"),
    "offsets turned round": (
        lambda p: rewrite(p, tensor(data_offsets=[12, 0])),
        "'x': it has the bytes",
    ),
    "name twice": (
        lambda p: rewrite(
            p,
            lambda t: (
                t.rstrip()[:-1]
                + ',"x":{"dtype":"F32","shape":[3],"data_offsets":[24,36]}}'
            ),
            True,
        ),
        "'x': it is in the header twice",
    ),
    "tensor missing": (
        lambda p: rewrite(p, lambda h: h.pop("nested.r")),
        r"\('nested', 'r'\): the file has no tensor",
    ),
    "tensor more": (
        lambda p: rewrite(p, level(lambda t: t["root"]["keys"].pop("x"))),
        r"\['x'\] of .* not in its tensordict metadata",
    ),
    "batch size": (
        lambda p: rewrite(p, level(lambda t: t["root"].update(batch_size=[4]))),
        "'flag': its shape",
    ),
    "newer": (lambda p: rewrite(p, level(lambda t: t.update(version=2))), "version 2"),
    "no level": (
        lambda p: rewrite(
            p, level(lambda t: t["root"]["keys"].update(nested={"td": 3}))
        ),
        "'nested': its level is invalid",
    ),
    "unknown class": (
        lambda p: rewrite(
            p, level(lambda t: t["root"].update({"class": "<class 'os.system'>"}))
        ),
        "Could not find the tensorclass",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_and_nothing_written(damage, tmp_path):
    path = tmp_path / "file.safetensors"
    to_safetensors(tree(), path)
    change, message = DAMAGE[damage]
    change(path)
    before = path.read_bytes()
    with pytest.raises((RuntimeError, ValueError), match=message) as caught:
        from_safetensors(path)
    assert "file.safetensors" in str(caught.value)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["file.safetensors"]


def test_bytes_that_are_not_aligned_are_copied(tmp_path):
    path = tmp_path / "file.safetensors"
    text = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}'
    text += b" " * (-len(text) % 8)
    values = torch.tensor([1.5, -2.0]).numpy().tobytes()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" + values)
    assert from_safetensors(path)["x"].tolist() == [1.5, -2.0]


def test_verify_names_the_tensor(tmp_path):
    path = tmp_path / "file.safetensors"
    to_safetensors(tree(), path)
    assert {found.outcome for found in verify(path).findings} == {"good"}
    times = os.stat(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 2
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    (line,) = verify(path).lines("damaged", "changed or damaged")
    assert "'flag'" in line
    to_safetensors(tree(), tmp_path / "m.safetensors", shards=2)
    os.unlink(tmp_path / "m-00001-of-00002.safetensors")
    assert verify(tmp_path / "m.safetensors.index.json").is_damaged
    shutil.rmtree(tmp_path)


def stacks_of_every_kind() -> dict[str, Any]:
    """Lazy stacks whose entries a file has joined."""

    def member(number: int) -> TensorDict:
        values = torch.arange(24.0).view(2, 3, 4) + 100 * number
        return TensorDict(
            {
                "a": values,
                "turned": values.transpose(1, 2),
                "conj": torch.complex(values, values).conj(),
                "empty": values[:, :0],
                "n": TensorDict({"b": values[..., 0].to(torch.float8_e5m2)}, [2]),
            },
            [2],
            names=["t"],
        )

    members = [member(number) for number in range(3)]
    return {
        "in front": lazy_stack(members, 0),
        "behind": lazy_stack(members, 1),
        "of one": lazy_stack(members[:1], 0),
        "of stacks": lazy_stack([lazy_stack(members, 0)] * 2, 0),
        "of stacks behind": lazy_stack([lazy_stack(members, 1)] * 2, 0),
        "of dtypes": lazy_stack(
            [TensorDict(a=torch.ones(2)), TensorDict(a=torch.ones(2).double())]
        ),
        "inside": TensorDict(x=lazy_stack(members, 1), y=torch.ones(2)),
        "of insides": lazy_stack(
            [TensorDict(x=lazy_stack(members, 0), y=torch.ones(2))] * 2
        ),
    }


@pytest.mark.parametrize("kind", stacks_of_every_kind())
@pytest.mark.parametrize("shards", [None, 2])
def test_stacks_that_are_joined_as_they_are_written(
    kind, shards, tmp_path, monkeypatch
):
    td = stacks_of_every_kind()[kind]
    to_safetensors(td, tmp_path / "gathered.safetensors", shards=shards)
    gathered = from_safetensors(tmp_path / "gathered.safetensors")
    monkeypatch.setattr(safetensors_levels, "STREAMED_FROM", 0)
    to_safetensors(td, tmp_path / "joined.safetensors", shards=shards)
    joined = from_safetensors(tmp_path / "joined.safetensors")
    index = ".index.json" if shards else ""
    assert not verify(tmp_path / f"joined.safetensors{index}").is_damaged
    assert type(joined) is type(td)
    assert joined.batch_size == td.batch_size
    assert joined.names == td.names
    leaves = [*td.items(True, True)]
    assert {key for key, _ in leaves} == {key for key, _ in joined.items(True, True)}
    for key, leaf in leaves:
        for found in (joined.get(key), gathered.get(key)):
            if not isinstance(leaf, torch.Tensor):
                assert found == leaf
                continue
            assert found.dtype == leaf.dtype, key
            assert torch.equal(found.to(torch.complex64), leaf.to(torch.complex64))


def test_large_stacks_are_not_gathered(tmp_path, monkeypatch):
    members = [TensorDict(a=torch.full((3 << 20,), number)) for number in range(3)]
    monkeypatch.setattr(LazyStackedTensorDict, "_as_dense", only_without_values)
    to_safetensors(lazy_stack(members), tmp_path / "x.safetensors")
    found = from_safetensors(tmp_path / "x.safetensors")
    assert [int(values.unique()) for values in found["a"]] == [0, 1, 2]


gather = LazyStackedTensorDict._as_dense


def only_without_values(stack: LazyStackedTensorDict) -> Any:
    assert stack.device == torch.device("meta")
    return gather(stack)


@pytest.mark.parametrize("shards", [None, 2])
def test_numbers_of_half_a_byte(tmp_path, shards):
    values = torch.arange(6, dtype=torch.uint8).view(3, 2)
    td = TensorDict(x=values.view(torch.float4_e2m1fn_x2), y=torch.ones(2))
    to_safetensors(td, tmp_path / "x.safetensors", shards=shards)
    index = ".index.json" if shards else ""
    loaded = from_safetensors(tmp_path / f"x.safetensors{index}")
    assert loaded["x"].dtype is torch.float4_e2m1fn_x2
    assert torch.equal(loaded["x"].view(torch.uint8), values)


def test_a_file_of_half_bytes_of_others(tmp_path):
    header = b'{"x":{"dtype":"F4","shape":[2,4],"data_offsets":[0,4]}}'
    content = len(header).to_bytes(8, "little") + header + bytes([1, 2, 3, 4])
    (tmp_path / "x.safetensors").write_bytes(content)
    x = from_safetensors(tmp_path / "x.safetensors")["x"]
    assert x.dtype is torch.float4_e2m1fn_x2
    assert x.view(torch.uint8).tolist() == [[1, 2], [3, 4]]


def test_a_half_byte_alone_is_refused(tmp_path):
    x = torch.tensor(1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(TypeError, match="no torch.float4_e2m1fn_x2 of the shape"):
        to_safetensors(TensorDict(x=x), tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_the_name_of_the_stack_dim_in_a_file_of_the_release(tmp_path):
    members = [TensorDict(a=torch.ones(3), batch_size=[3], names=["q"])] * 2
    path = tmp_path / "x.safetensors"
    to_safetensors(lazy_stack(members, stack_dim_name="st"), path, checks=False)
    own = path.read_bytes()
    # The release names it among the dims, and has no field of its own for it.
    text = rb"\"stack_dim_name\": \"st\", "
    assert own.count(text) == 1
    length = int.from_bytes(own[:8], "little") - len(text)
    path.write_bytes(length.to_bytes(8, "little") + own[8:].replace(text, b""))
    assert from_safetensors(path).names == ["st", "q"]


@pytest.mark.parametrize("size", [0, -1, "0", "0.1B"])
def test_a_shard_size_below_one_byte_is_refused(size, tmp_path):
    with pytest.raises(ValueError, match="at least one byte"):
        to_safetensors(tree(), tmp_path / "m", max_shard_size=size)
    assert not list(tmp_path.iterdir())
