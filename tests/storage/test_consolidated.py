"""``consolidate`` and ``from_consolidated``: one buffer, one file."""

import json
import os
import pickle
import re
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from separate_process import SERVER
from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    from_consolidated,
    from_safetensors,
    lazy_stack,
    tensorclass,
    to_safetensors,
)
from tensordict.storage import buffer, verify
from tensordict.storage.inspect import survey

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float32]
DTYPES += [torch.int64, torch.complex64, torch.complex128, torch.float8_e4m3fn]


def tree(**more):
    nested = TensorDict({"r": torch.arange(3), "none": torch.zeros(3, 0)}, [3])
    return TensorDict(
        {"obs": torch.arange(6.0).view(3, 2), "nested": nested, **more},
        [3],
        names=["time"],
    )


def same(left, right, is_ordered=True):
    assert type(left) is type(right)
    assert left.batch_size == right.batch_size
    assert left.names == right.names
    if is_ordered:
        assert list(left.keys()) == list(right.keys())
    assert set(left.keys()) == set(right.keys())
    for key, value in left.items():
        other = right._get_entry(key, None)
        if not isinstance(value, torch.Tensor):
            same(value, other, is_ordered)
            continue
        assert value.dtype == other.dtype
        assert value.shape == other.shape
        plain = value.contiguous().reshape(-1), other.contiguous().reshape(-1)
        assert torch.equal(plain[0].view(torch.uint8), plain[1].view(torch.uint8))


@st.composite
def trees(draw, depth=2):
    keys = st.text(max_size=3) | st.sampled_from(
        ["cls", "leaves", "non_tensors", "cls_metadata", "<NJT_VALUES>j", "\0a"]
    )
    entries = {}
    for key in draw(st.lists(keys, max_size=4, unique=True)):
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
@given(td=trees())
def test_file_and_pickle_give_back_what_was_saved(td, tmp_path_factory):
    path = tmp_path_factory.mktemp("c") / "file"
    same(td.consolidate(path), td)
    same(from_consolidated(path), td)
    one = td.consolidate()
    assert one.is_consolidated()
    # The description in a pickle has no place for the order.
    same(pickle.loads(pickle.dumps(one)), td, is_ordered=False)


def test_leaves_share_the_buffer_and_stores_reach_the_file(tmp_path):
    one = tree().consolidate(tmp_path / "file")
    one["obs"].fill_(7)
    assert from_consolidated(tmp_path / "file")["obs"].sum() == 42
    loaded = from_consolidated(tmp_path / "file")
    loaded["obs"].zero_()
    assert from_consolidated(tmp_path / "file")["obs"].sum() == 42


def test_a_buffer_beside_the_file(tmp_path):
    one = tree().consolidate(tmp_path / "file", use_buffer=True)
    one["obs"].fill_(7)
    assert from_consolidated(tmp_path / "file")["obs"].sum() == 15


@pytest.mark.parametrize(
    "change",
    [
        lambda td: td.set("z", torch.zeros(3)),
        lambda td: td.set("obs", torch.zeros(3, 2)),
        lambda td: td.pop("nested"),
        lambda td: td.rename_key_("obs", "observation"),
        lambda td: td["nested"].set("r", torch.zeros(3)),
        lambda td: td["nested"].pop("none"),
    ],
)
def test_what_was_changed_is_not_consolidated(change, tmp_path):
    tree().consolidate(tmp_path / "file")
    td = from_consolidated(tmp_path / "file")
    assert td.is_consolidated()
    change(td)
    assert not td.is_consolidated()
    same(pickle.loads(pickle.dumps(td)), td)


def test_names_given_later_go_into_the_pickle():
    td = TensorDict({"a": torch.zeros(3)}, [3]).consolidate()
    td.names = ["time"]
    assert pickle.loads(pickle.dumps(td)).names == ["time"]


def test_another_file_is_written_though_it_is_consolidated(tmp_path):
    one = tree().consolidate()
    assert one.consolidate() is one
    one.consolidate(tmp_path / "a")
    two = from_consolidated(tmp_path / "a")
    assert two.consolidate(tmp_path / "b") is not two
    same(from_consolidated(tmp_path / "b"), one)


def test_saving_over_a_file_that_is_mapped(tmp_path):
    path = tmp_path / "file"
    one = tree().consolidate(path)
    assert one.consolidate(path) is one
    one.unlock_()
    one["more"] = torch.ones(3)
    two = one.consolidate(path)
    assert from_consolidated(path)["more"].tolist() == [1, 1, 1]
    # Whoever had the old file keeps it.
    one["obs"].zero_()
    assert two["obs"].sum() == 15
    assert os.listdir(tmp_path) == ["file"]


def test_a_subclass_stays_one_and_the_order_of_keys(tmp_path):
    td = Sub({"n": TensorDict({"x": torch.ones(1)}), "a": torch.ones(2)})
    td.consolidate(tmp_path / "file")
    loaded = from_consolidated(tmp_path / "file")
    assert type(loaded) is Sub
    assert list(loaded.keys()) == ["n", "a"]


class Sub(TensorDict):
    """A user's subclass."""


def test_views_are_laid_out():
    z = torch.tensor([1 + 2j, 3 - 1j])
    td = TensorDict({"t": torch.arange(6).view(2, 3).T, "z": z.conj(), "n": z.imag})
    one = td.consolidate()
    assert one["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert one["z"].tolist() == [1 - 2j, 3 + 1j]
    assert one["n"].tolist() == [2, -1]


def test_padding_is_zeros():
    one = TensorDict({"a": torch.ones(3, dtype=torch.bool)}).consolidate()
    assert one._consolidated["storage"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


def test_moving_is_one_copy():
    one = tree().consolidate()
    moved = one.to("meta")
    assert moved.is_consolidated()
    assert moved.device == torch.device("meta")
    assert moved["nested"].device == torch.device("meta")
    assert moved.names == ["time"]


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
def test_what_cannot_be_consolidated(tmp_path):
    sparse = TensorDict({"a": torch.eye(3).to_sparse()})
    with pytest.raises(RuntimeError, match="sparse"):
        sparse.consolidate(tmp_path / "file")
    quantized = torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8)
    with pytest.raises(NotImplementedError, match="scale"):
        TensorDict({"a": quantized}).consolidate(tmp_path / "file")
    with pytest.raises(RuntimeError, match="mutually exclusive"):
        tree().consolidate(tmp_path / "file", device="meta")
    assert os.listdir(tmp_path) == []


def read_and_store(queue, answers):
    td = queue.get()
    answers.put((td.is_consolidated(), td["obs"].sum().item()))
    td["obs"].fill_(1)
    answers.put(None)


@pytest.mark.parametrize("where", ["memory", "shared memory", "file"])
def test_sent_to_a_process_it_is_the_same_memory(where, tmp_path):
    options = {
        "memory": {},
        "shared memory": {"share_memory": True},
        "file": {"filename": tmp_path / "file"},
    }[where]
    td = tree().consolidate(**options)
    queue, answers = SERVER.Queue(), SERVER.Queue()
    process = SERVER.Process(target=read_and_store, args=(queue, answers))
    process.start()
    try:
        queue.put(td)
        assert answers.get(timeout=120) == (True, 15)
        assert answers.get(timeout=120) is None
        assert td["obs"].sum() == 6
    finally:
        process.join()
    if where == "file":
        assert from_consolidated(tmp_path / "file")["obs"].sum() == 6


def rewritten(path, change):
    """The file again with its description changed."""
    content = path.read_bytes()
    length = int.from_bytes(content[-8:], "little")
    description = json.loads(content[-8 - length : -8])
    change(description)
    text = json.dumps(description).encode()
    path.write_bytes(content[: -8 - length] + text + len(text).to_bytes(8, "little"))


def leaf(place, value):
    return lambda d: d["leaves"]["obs"].__setitem__(place, value)


DAMAGE = {
    "no bytes": (lambda p: p.write_bytes(b""), "not a consolidated file"),
    "cut": (lambda p: os.truncate(p, os.path.getsize(p) - 20), "consolidated file"),
    "another file": (lambda p: p.write_bytes(b"abc" * 99), "consolidated file"),
    "length of all": (
        lambda p: p.write_bytes(b"x" * 24 + (24).to_bytes(8, "little")),
        "Expecting value",
    ),
    "data cut": (
        lambda p: p.write_bytes(p.read_bytes()[8:]),
        r"the entry \('nested', 'r'\): its bytes end at 48",
    ),
    "huge shape": (lambda p: rewritten(p, leaf(1, [2**60, 2**60])), "entry 'obs'"),
    "negative shape": (lambda p: rewritten(p, leaf(1, [-3, -2])), "entry 'obs'"),
    "other dtype": (lambda p: rewritten(p, leaf(0, "torch.int8")), "entry 'obs'"),
    "unknown dtype": (
        lambda p: rewritten(p, leaf(0, "torch.load")),
        "torch.load is not a dtype",
    ),
    "start after stop": (lambda p: rewritten(p, leaf(2, 999)), "entry 'obs'"),
    "no numbers": (lambda p: rewritten(p, leaf(2, "0")), "entry 'obs'"),
    "no row": (
        lambda p: rewritten(p, lambda d: d["leaves"].update(obs=None)),
        "entry 'obs'",
    ),
    "no fields": (
        lambda p: rewritten(p, lambda d: d["nested"].pop("leaves")),
        "entry 'nested'",
    ),
    "batch size": (
        lambda p: rewritten(p, lambda d: d["cls_metadata"].update(batch_size=[4])),
        "entry 'obs'",
    ),
    "unknown class": (
        lambda p: rewritten(p, lambda d: d.update(cls="os.system")),
        "Could not find the class",
    ),
    # The release writes nested collections under these keys.
    **{
        f"a collection as {name}": (
            lambda p, name=name: rewritten(p, lambda d: d.update({name: d["nested"]})),
            f"a nested collection under the key '{name}'",
        )
        for name in ("leaves", "non_tensors", "cls", "cls_metadata")
    },
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_and_nothing_written(damage, tmp_path):
    path = tmp_path / "file"
    tree().consolidate(path)
    change, message = DAMAGE[damage]
    change(path)
    before = path.read_bytes()
    with pytest.raises((RuntimeError, ValueError), match=message) as caught:
        from_consolidated(path)
    assert "file" in str(caught.value)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["file"]


DESCRIPTIONS = [
    name
    for name, (_, message) in DAMAGE.items()
    if "collection" in message or ("entry" in message and name != "batch size")
]


@pytest.mark.parametrize("damage", DESCRIPTIONS)
def test_a_survey_shows_what_a_description_has_wrong(damage, tmp_path):
    path = tmp_path / "file"
    tree().consolidate(path)
    change, message = DAMAGE[damage]
    change(path)
    assert any(re.search(message, problem) for problem in survey(path).problems)


def test_a_full_file_system_is_an_error(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    resource = pytest.importorskip("resource")
    tree().consolidate(tmp_path / "file")
    before = (tmp_path / "file").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal = pytest.importorskip("signal")
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            TensorDict({"a": torch.zeros(1 << 20)}).consolidate(tmp_path / "file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "file").read_bytes() == before
    assert os.listdir(tmp_path) == ["file"]


def test_verify_tells_damage_from_change(tmp_path):
    path = tmp_path / "file"
    one = tree().consolidate(path)
    assert {found.outcome for found in verify(path).findings if found.key} == {"good"}
    one["obs"].add_(1)
    (line,) = verify(path).lines("modified since the save", "changed or damaged")
    assert "'obs'" in line
    tree().consolidate(path)
    times = os.stat(path)
    content = bytearray(path.read_bytes())
    content[2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    (line,) = verify(path).lines("damaged", "changed or damaged")
    assert "'obs'" in line


def test_data_that_begins_like_a_safetensors_file(tmp_path):
    TensorDict(a=torch.full((100,), 123)).consolidate(tmp_path / "x")
    assert TensorDict.load(tmp_path / "x")["a"].eq(123).all()
    assert not verify(tmp_path / "x").is_damaged


@tensorclass
class Fields:
    a: torch.Tensor
    text: str


def test_the_published_release_finds_the_classes_and_reads_the_pickles(tmp_path):
    one = Fields(torch.zeros(3), "text", batch_size=[3])
    lazy = lazy_stack([one, one.clone()])
    TensorDict({"c": one}, [3]).consolidate(tmp_path / "field")
    lazy.consolidate(tmp_path / "root")
    levels = []
    for name in ("field", "root"):
        content = (tmp_path / name).read_bytes()
        length = int.from_bytes(content[-8:], "little")
        levels.append(json.loads(content[-8 - length : -8]))
    field, root = levels
    # A field has its class, and the root and stacks those that the release has itself.
    assert field["c"]["cls"] == str(Fields)
    assert root["cls"] == "LazyStackedTensorDict"
    assert root["0"]["cls"] == "TensorDict"
    assert type(from_consolidated(tmp_path / "field")["c"]) is Fields
    assert type(from_consolidated(tmp_path / "root").tensordicts[0]) is not Fields
    content = pickle.dumps(TensorDict({"c": one}, [3]).consolidate())
    assert b"tensordict.storage" not in content
    assert pickle.loads(content)["c"].text == "text"


@pytest.mark.parametrize("is_nested", [False, True])
def test_parameters_come_back_as_parameters_from_a_pickle(is_nested):
    params = TensorDictParams(
        TensorDict(w=nn.Parameter(torch.ones(2)), n={"q": nn.Parameter(torch.ones(1))})
    )
    source = TensorDict(p=params, z=torch.zeros(1)) if is_nested else params
    one = source.consolidate()
    part = one["p"] if is_nested else one
    assert type(part) is TensorDict
    assert one.is_consolidated()
    loaded = pickle.loads(pickle.dumps(one))
    part = loaded["p"] if is_nested else loaded
    assert type(part) is TensorDictParams
    assert type(part["n", "q"]) is nn.Parameter
    assert loaded.is_consolidated()
    # Results of the consolidated collection are of its class.
    assert type(one.to("cpu")) is TensorDict
    assert type(pickle.loads(pickle.dumps(one.clone()))) is TensorDict


def test_a_tensorclass_knows_of_its_buffer(tmp_path):
    @tensorclass
    class Pair:
        x: torch.Tensor

    pair = Pair(x=torch.ones(3), batch_size=[3])
    assert pair._consolidated is None
    one = pair.consolidate(filename=tmp_path / "file")
    assert one._consolidated["storage"].numel() == 16
    assert one.unlock_()._consolidated is None


@pytest.mark.parametrize(("mode", "found"), [(None, 0), ("r", 0), ("r+", 7)])
def test_the_mode_decides_where_stores_go(mode, found, tmp_path):
    path = tmp_path / "file"
    TensorDict(a=torch.zeros(3)).consolidate(filename=path)
    TensorDict.load(path, mode=mode)["a"].fill_(7)
    assert TensorDict.load(path)["a"].tolist() == [found] * 3


@pytest.mark.parametrize("left", [0.0, 0.3, 0.99])
def test_a_file_that_was_cut_off_is_named(left, tmp_path):
    path = tmp_path / "file"
    TensorDict(a=torch.zeros(300)).consolidate(filename=path)
    os.truncate(path, int(left * path.stat().st_size))
    with pytest.raises(RuntimeError, match=rf"{path}.* was cut"):
        TensorDict.from_consolidated(path)
    with pytest.raises(ValueError, match=rf"{path}.*consolidated.* cut off"):
        TensorDict.load(path)


@pytest.mark.parametrize("is_nested", [False, True])
def test_parameters_consolidated_in_place_stay_parameters(is_nested):
    inner = {"w": torch.ones(2), "n": {"b": torch.ones(2), "i": torch.arange(2)}}
    params = TensorDictParams(TensorDict(inner)).unlock_()
    td = TensorDict(p=params) if is_nested else params
    assert td.consolidate(inplace=True) is td
    assert td.is_consolidated()
    params = td["p"] if is_nested else td
    assert [name for name, _ in params.named_parameters()] == ["w", "n.b"]
    assert [name for name, _ in params.named_buffers()] == ["n.i"]
    assert all(leaf.requires_grad for leaf in params.parameters())
    starts = {leaf.untyped_storage().data_ptr() for leaf in params.values(True, True)}
    assert len(starts) == 1


def test_ordered_dictionaries_stay_what_they_are(tmp_path):
    value = OrderedDict(b=1, a=(OrderedDict(), {1: 2}))
    td = TensorDict(x=NonTensorData(value))
    td.consolidate(tmp_path / "x")
    to_safetensors(td, tmp_path / "x.safetensors")
    for loaded in (
        TensorDict.from_consolidated(tmp_path / "x"),
        from_safetensors(tmp_path / "x.safetensors"),
    ):
        assert repr(loaded["x"]) == repr(value)


def test_a_column_of_values_is_described_without_its_members(monkeypatch):
    td = TensorDict(text=NonTensorStack("a", "b", "a"), batch_size=[3])
    monkeypatch.setattr(NonTensorStack, "tensordicts", property(lambda _: 1 / 0))
    read = pickle.loads(pickle.dumps(td.consolidate()))
    assert type(read.get("text")) is NonTensorStack
    assert read["text"] == ["a", "b", "a"]


@pytest.mark.parametrize("shift", [0, 1, 4, 8])
def test_views_of_a_buffer_at_any_place(shift):
    leaves = [
        torch.arange(6.0).view(2, 3),
        torch.tensor(7, dtype=torch.int64),
        torch.zeros(0, 3, dtype=torch.int16),
        torch.tensor([True, False]),
        torch.arange(3, dtype=torch.float64),
    ]
    rows = buffer.lay_out(leaves)
    storage = torch.zeros(rows.num_bytes + shift, dtype=torch.uint8)[shift:]
    if shift % 8:
        # torch has no view at this shift.
        rows = rows._replace(
            rows=[
                g
                for g, leaf in zip(rows.rows, leaves, strict=True)
                if leaf.dtype == torch.bool
            ]
        )
        leaves = [leaf for leaf in leaves if leaf.dtype == torch.bool]
    views = buffer.views(storage, rows)
    for view, leaf in zip(views, leaves, strict=True):
        view.copy_(leaf)
    again = buffer.views(storage, rows)
    for view, leaf in zip(again, leaves, strict=True):
        assert view.dtype == leaf.dtype
        assert view.is_contiguous()
        assert view.stride() == leaf.stride()
        assert torch.equal(view, leaf)
