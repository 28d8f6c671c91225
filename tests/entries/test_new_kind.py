"""A kind of special entry of a program's own: a column of texts.

It is registered while the tests of this file run, and it is all that there is of it.
"""

import copy
import io
import pickle

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    UnbatchedTensor,
    from_h5,
    from_safetensors,
    lazy_stack,
    to_safetensors,
)
from tensordict.checkpoint import Checkpointer
from tensordict.data import DatasetWriter
from tensordict.distributed import wire
from tensordict.primitives import special
from tensordict.primitives.special import EntryKind, register_entry_kind
from tensordict.storage.checksums import verify
from tensordict.storage.inspect import survey


class Text(torch.Tensor):
    """Texts as rows of bytes, ``[*B, width]``, filled up with zeros."""

    @classmethod
    def of(cls, *texts):
        rows = [text.encode() for text in texts]
        width = max(map(len, rows))
        data = [list(row.ljust(width, b"\0")) for row in rows]
        return torch.tensor(data, dtype=torch.uint8).as_subclass(cls)

    def texts(self):
        rows = self.as_subclass(torch.Tensor).reshape(-1, self.shape[-1]).tolist()
        return [bytes(row).rstrip(b"\0").decode() for row in rows]


class TextKind(EntryKind):
    """The kind of columns, which can be joined whatever their widths."""

    name = "text"
    cls = Text

    def joined(self, group, dim, size, join):
        width = max(item.shape[-1] for item in group)
        return join([_widened(item, width) for item in group], dim)


def _widened(item, width):
    gap = item.new_zeros([*item.shape[:-1], width - item.shape[-1]])
    return torch.cat([item, gap], -1)


@pytest.fixture(autouse=True, scope="module")
def _registered():
    kind = TextKind()
    register_entry_kind(kind)
    yield
    special.KINDS.remove(kind)
    special.KINDS_OF_CLASSES.remove(kind)
    special.CLASSES.remove(Text)


def collection(*texts):
    nested = TensorDict(text=Text.of(*texts), batch_size=[len(texts)])
    return TensorDict(
        text=Text.of(*texts),
        a=torch.arange(len(texts)),
        n=nested,
        batch_size=[len(texts)],
    )


def texts_of(td):
    for key in ("text", ("n", "text")):
        assert type(td[key]) is Text
        assert td[key].shape[:-1] == td.batch_size
    assert td["text"].texts() == td["n", "text"].texts()
    return td["text"].texts()


TAKEN = {
    "slice": (lambda td: td[1:], ["bc", "d"]),
    "rows": (lambda td: td[[2, 0]], ["d", "a"]),
    "mask": (lambda td: td[torch.tensor([True, False, True])], ["a", "d"]),
    "number": (lambda td: td[1], ["bc"]),
    "masked_select": (lambda td: td.masked_select(td["a"] > 0), ["bc", "d"]),
    "unbind": (lambda td: td.unbind(0)[1], ["bc"]),
    "split": (lambda td: td.split(2)[0], ["a", "bc"]),
    "gather": (lambda td: td.gather(0, torch.tensor([1])), ["bc"]),
    "unsqueeze": (lambda td: td.unsqueeze(0), ["a", "bc", "d"]),
    "reshape": (lambda td: td.reshape(1, 3), ["a", "bc", "d"]),
    "flip": (lambda td: td.flip(0), ["d", "bc", "a"]),
    "expand": (lambda td: td.expand(2, 3), ["a", "bc", "d"] * 2),
    "apply": (lambda td: td.apply(torch.clone), ["a", "bc", "d"]),
    "clone": (lambda td: td.clone(), ["a", "bc", "d"]),
    "to": (lambda td: td.to("cpu"), ["a", "bc", "d"]),
    "contiguous": (lambda td: td.contiguous(), ["a", "bc", "d"]),
    "select": (lambda td: td.select("text", "n"), ["a", "bc", "d"]),
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("is_lazy", [False, True])
def test_the_elements_of_a_column_are_a_column(name, is_lazy):
    take, expected = TAKEN[name]
    td = collection("a", "bc", "d")
    if is_lazy:
        td = lazy_stack(list(td.unbind(0)))
    assert texts_of(take(td)) == expected


@pytest.mark.parametrize("join", [torch.stack, torch.cat, lazy_stack])
def test_columns_of_several_widths_are_joined(join):
    joined = join([collection("a", "b"), collection("long", "c")], 0)
    assert texts_of(joined) == ["a", "b", "long", "c"]
    assert joined["text"].shape[-1] == 4


def test_a_lazy_stack_of_columns_is_made_dense():
    stack = lazy_stack([collection("a", "b"), collection("long", "c")])
    assert isinstance(stack, LazyStackedTensorDict)
    assert texts_of(stack.contiguous()) == ["a", "b", "long", "c"]


def test_elements_are_written():
    td = collection("a", "bc", "d")
    td[0] = collection("xy")[0]
    assert texts_of(td) == ["xy", "bc", "d"]
    td[1:] = collection("pq", "rs")
    assert texts_of(td) == ["xy", "pq", "rs"]


def test_a_column_must_have_the_batch_dims():
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        collection("a", "bc").set("other", Text.of("a"))


def _through_torch_save(td):
    buffer = io.BytesIO()
    torch.save(td, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "torch_save": _through_torch_save,
    "deepcopy": copy.deepcopy,
    "tree_map": lambda td: torch.utils._pytree.tree_map(torch.clone, td),
    "dict": lambda td: TensorDict.from_dict(td.to_dict(), batch_size=td.batch_size),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_keeps_the_kind(name):
    assert texts_of(COPIES[name](collection("a", "bc"))) == ["a", "bc"]


def test_a_safetensors_file_keeps_the_kind(tmp_path):
    path = tmp_path / "texts.safetensors"
    to_safetensors(collection("a", "bc"), path)
    assert texts_of(from_safetensors(path)) == ["a", "bc"]


def test_a_file_of_hdf5_keeps_the_kind(tmp_path):
    pytest.importorskip("h5py")
    file = collection("a", "bc", "d").to_h5(tmp_path / "texts.h5")
    assert texts_of(file) == ["a", "bc", "d"]
    read = from_h5(tmp_path / "texts.h5")
    assert texts_of(read) == ["a", "bc", "d"]
    assert texts_of(read[1:]) == ["bc", "d"]


SAVES = {
    "directory": lambda td, path: td.save(path / "texts"),
    "archive": lambda td, path: td.save(path / "texts.tdz"),
    "safetensors": lambda td, path: td.save(path / "texts.safetensors"),
    "consolidated": lambda td, path: td.consolidate(path / "texts"),
    "memmap": lambda td, path: td.memmap(path / "texts"),
    "in_place": lambda td, path: td.clone().memmap_(path / "texts"),
    "of_a_stack": lambda td, path: lazy_stack(list(td.unbind(0))).save(path / "texts"),
}


@pytest.mark.parametrize("name", SAVES)
def test_every_layout_keeps_the_kind(name, tmp_path):
    saved = SAVES[name](collection("a", "bc", "d"), tmp_path)
    (path,) = tmp_path.iterdir()
    loaded = TensorDict.load(path)
    for td in (saved, loaded, loaded.clone()):
        assert texts_of(td) == ["a", "bc", "d"]
        assert texts_of(td[1:]) == ["bc", "d"]
    assert {found.outcome for found in verify(path).findings} <= {"good", "unchecked"}
    entries = survey(path).entries
    assert [entry.problem for entry in entries if entry.problem] == []
    assert any("text" in entry.key for entry in entries)


def test_memory_that_is_shared_or_mapped_keeps_the_kind(tmp_path):
    for td in (
        collection("a", "bc").memmap(),
        collection("a", "bc").share_memory_(),
        collection("a", "bc").consolidate(),
        pickle.loads(pickle.dumps(collection("a", "bc").consolidate())),
    ):
        assert texts_of(td) == ["a", "bc"]
    like = collection("a", "bc").memmap_like(tmp_path / "like")
    assert type(like["text"]) is Text
    assert like["text"].shape == (2, 2)
    loaded = TensorDict.load_memmap(tmp_path / "like")
    assert texts_of(loaded) == ["", ""]


@pytest.mark.parametrize("save", ["save", "consolidate"])
def test_an_object_store_keeps_the_kind(save):
    pytest.importorskip("obstore")
    path = f"memory://{save}_of_texts/td"
    getattr(collection("a", "bc", "d"), save)(path)
    loaded = TensorDict.load(path)
    assert texts_of(loaded) == ["a", "bc", "d"]
    assert texts_of(loaded[1:]) == ["bc", "d"]


def test_what_a_save_loads_into_has_the_texts_of_the_save(tmp_path):
    collection("a", "bc").save(tmp_path / "texts")
    td = collection("xy", "z")
    td.load_memmap_(tmp_path / "texts")
    assert texts_of(td) == ["a", "bc"]


def test_a_key_may_read_like_a_part_of_an_entry(tmp_path):
    key = "<ENTRY text data>a"
    td = TensorDict({key: torch.arange(2), "t": Text.of("a", "b")}, [2])
    td.consolidate(tmp_path / "texts")
    loaded = TensorDict.load(tmp_path / "texts")
    assert loaded[key].tolist() == [0, 1]
    assert loaded["t"].texts() == ["a", "b"]


@pytest.mark.parametrize("name", ["directory", "archive", "consolidated"])
def test_a_kind_that_is_not_registered_is_named(name, tmp_path, monkeypatch):
    SAVES[name](collection("a", "bc"), tmp_path)
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr(special, "KINDS", [])
    with pytest.raises(RuntimeError, match="kind 'text', which is not registered here"):
        TensorDict.load(path)


def test_the_walks_of_compiled_code_ask_the_kind():
    @torch.compile(fullgraph=True, backend="eager")
    def joined(first, second):
        return torch.cat([first[:1], second], 0)

    assert texts_of(joined(collection("a", "b"), collection("long"))) == ["a", "long"]


def test_vmap_shows_the_elements():
    td = collection("a", "bc")
    result = torch.vmap(lambda each: each.clone())(td)
    assert result["text"].tolist() == td["text"].tolist()


def test_a_class_has_one_kind():
    with pytest.raises(ValueError, match="'text' of .*Text.* cannot be registered"):
        register_entry_kind(TextKind())


def test_a_message_between_processes_keeps_the_kind():
    message = wire.describe(collection("a", "bc"))
    parsed = wire.parse(message.description, message.num_bytes)
    assert texts_of(parsed.collection(wire.pack(message))) == ["a", "bc"]


ITEMS = {
    "collection": (lambda entry: TensorDict(x=entry), lambda item: item["x"]),
    "bare": (lambda entry: entry, lambda item: item),
    "in_a_list": (lambda entry: {"k": [entry, 1]}, lambda item: item["k"][0]),
}


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_of_a_checkpoint_keeps_the_kind(name, tmp_path):
    put, take = ITEMS[name]
    unbatched = UnbatchedTensor(torch.arange(5.0), [3])
    unbatched.requires_grad_()
    steps = Checkpointer(tmp_path / "steps")
    steps.save(1, text=put(Text.of("a", "bc")), whole=put(unbatched))
    read = steps.load()
    text, shared = take(read["text"]), take(read["whole"])
    assert type(text) is Text
    assert text.texts() == ["a", "bc"]
    assert type(shared) is UnbatchedTensor
    assert shared.tolist() == [0, 1, 2, 3, 4]
    if name != "collection":
        assert shared.requires_grad
    if name == "in_a_list":
        assert shared.batch_size == (3,)
        return
    item = put(Text.of("x", "yz"))
    steps.restore(text=item, strict=False)
    assert take(item).texts() == ["a", "bc"]


def test_a_kind_of_an_item_that_is_not_registered_is_named(tmp_path):
    steps = Checkpointer(tmp_path / "steps")
    steps.save(1, text=Text.of("a", "bc"))
    kind = special.kind_of(Text.of("a"))
    special.KINDS.remove(kind)
    try:
        with pytest.raises(
            RuntimeError, match="the kind 'text', which is not registered"
        ):
            steps.load()
    finally:
        special.KINDS.append(kind)


WRITERS = {
    "append": lambda td, path: DatasetWriter(path).append(td[0]),
    "extend": lambda td, path: DatasetWriter(path).extend(td),
    "extend_list": lambda td, path: DatasetWriter(path).extend(list(td.unbind(0))),
    "like": lambda td, path: DatasetWriter(path, like=td[0]),
    "columns": lambda td, path: td.memmap(path, ragged="columns"),
    "json": lambda td, path: td.exclude("n").to_json(path),
    "csv": lambda td, path: td.exclude("n").to_csv(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_keeps_no_kinds_refuses_the_entry(name, tmp_path):
    if name == "csv":
        pytest.importorskip("pandas")
    td = collection("a", "bc", "d")
    with pytest.raises((TypeError, ValueError), match="'text'"):
        WRITERS[name](td, tmp_path / "rows")
    # Its plain tensor is written.
    plain = td.apply(lambda leaf: leaf.as_subclass(torch.Tensor))
    assert type(plain["text"]) is torch.Tensor
    if name != "csv":
        WRITERS[name](plain, tmp_path / "plain")


def test_a_row_that_follows_plain_ones_is_refused(tmp_path):
    plain = collection("a", "b").apply(lambda leaf: leaf.as_subclass(torch.Tensor))
    with DatasetWriter(tmp_path / "rows") as writer:
        writer.extend(plain)
        with pytest.raises(
            TypeError, match="a Text, a special entry of the kind 'text'"
        ):
            writer.append(collection("c")[0])
        assert len(writer) == 2


def test_a_table_of_arrow_refuses_the_entry(tmp_path):
    pytest.importorskip("pyarrow")
    td = collection("a", "bc", "d").exclude("n")
    with pytest.raises(TypeError, match="as_subclass"):
        td.to_parquet(tmp_path / "rows.parquet")
    shared = TensorDict(x=UnbatchedTensor(torch.arange(3)), batch_size=[3])
    with pytest.raises(TypeError, match="a UnbatchedTensor, a special entry"):
        shared.to_parquet(tmp_path / "rows.parquet")
