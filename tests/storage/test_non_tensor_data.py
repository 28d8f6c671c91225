"""Writes to values that were saved: their files follow."""

import json
import multiprocessing
import os
import pickle
import signal
import threading
import time

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    lazy_stack,
    pack_memmap,
    tensorclass,
)
from tensordict.storage import verify
from tensordict.tensorclass import MetaData

PATIENCE_S = 60


def make():
    return TensorDict(
        text="old",
        column=NonTensorStack("a", "b"),
        meta=MetaData("m"),
        nested=TensorDict(text="inner", batch_size=[2]),
        number=torch.zeros(2),
        batch_size=[2],
    )


def values(td):
    return td["text"], list(td["column"]), td["meta"], td["nested", "text"]


def on_disk(path, allow_pickle=False):
    return values(TensorDict.load_memmap(path, allow_pickle=allow_pickle))


SAVING = {
    "memmap_": lambda td, path: td.memmap_(path),
    "memmap": lambda td, path: td.memmap(path),
    "memmap_like": lambda td, path: td.memmap_like(path),
    "shared": lambda td, path: td.memmap_(path, share_non_tensor=True),
}
WRITES = {
    "update_": lambda td: td.update_({"text": "new"}),
    "set_": lambda td: td.set_("text", "new"),
    "set inplace": lambda td: td.set("text", "new", inplace=True),
    "update inplace": lambda td: td.update({"text": "new"}, inplace=True),
    "the value": lambda td: td.get("text").update_(NonTensorData("new")),
    "the value inplace": lambda td: td.get("text").update(
        NonTensorData("new"), inplace=True
    ),
    "metadata": lambda td: td.update_({"meta": "new"}),
    "nested": lambda td: td.set_(("nested", "text"), "new"),
    "nested update_": lambda td: td.update_({"nested": {"text": "new"}}),
    "column": lambda td: td.update_({"column": NonTensorStack("new", "y")}),
    "one for all of a column": lambda td: td.update_({"column": "new"}),
    "column at an index": lambda td: td.get("column").__setitem__(0, "new"),
    "set_at_": lambda td: td.set_at_("column", "new", 1),
    "update_at_": lambda td: td.update_at_({"column": NonTensorData("new")}, 0),
    "all at an index": lambda td: td.__setitem__(
        0, TensorDict(column="new", number=torch.ones(()))
    ),
    "linked list": lambda td: td["column"].__setitem__(1, "new"),
    "what was selected": lambda td: td.select("column").update_({"column": "new"}),
    "a pickle": lambda td: pickle.loads(pickle.dumps(td)).update_({"text": "new"}),
}


@pytest.mark.parametrize("saving", SAVING)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_in_place_reaches_the_files(tmp_path, saving, write):
    td = SAVING[saving](make(), tmp_path)
    before = values(td)

    WRITES[write](td)

    now = on_disk(tmp_path)
    assert now != before
    assert "new" in str(now)
    if write != "a pickle":
        assert now == values(td)
    assert not verify(tmp_path).is_damaged


@pytest.mark.parametrize("mode", [None, "r", "r+"])
def test_a_collection_that_was_loaded_does_not_write(tmp_path, mode):
    make().save(tmp_path)
    td = TensorDict.load_memmap(tmp_path, mode=mode)

    td.update_({"text": "new"})
    td["column"][0] = "new"

    assert td["text"] == "new"
    assert on_disk(tmp_path) == values(make())


@pytest.mark.parametrize(
    "result",
    [
        lambda td: td.unlock_(),
        lambda td: td.clone(),
        lambda td: td.clone(False),
        lambda td: td.apply(lambda leaf: leaf + 1),
        lambda td: td + 1,
    ],
)
def test_what_is_not_mapped_does_not_write(tmp_path, result):
    td = result(make().memmap_(tmp_path))

    td.update_({"text": "new"})
    td.update_({"column": "new"})

    assert td["text"] == "new"
    assert on_disk(tmp_path) == values(make())


@pytest.mark.parametrize(
    "part",
    [
        lambda td: td.get("column")[0],
        lambda td: td.get("column")[:1],
        lambda td: td.get("column").unbind(0)[1],
        lambda td: td[:1].get("column"),
        lambda td: td[0].get("column"),
        lambda td: td.unsqueeze(0).get("column"),
    ],
)
def test_a_part_of_a_column_refuses_writes(tmp_path, part):
    td = make().memmap_(tmp_path)
    taken = part(td)

    with pytest.raises(RuntimeError, match="from a memmaped parent NonTensorStack"):
        taken.update_(NonTensorData("new"))

    assert values(td) == on_disk(tmp_path) == values(make())
    td.unlock_()
    taken.update_(NonTensorData("new"))
    assert "new" in td["column"]


def test_a_row_that_cannot_be_written_is_not_written_in_part(tmp_path):
    td = make().memmap_(tmp_path)

    with pytest.raises(RuntimeError, match="memmaped parent"):
        td[0].update_(TensorDict(number=torch.ones(()), column="new"))

    assert td["number"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", [NonTensorData, MetaData])
@pytest.mark.parametrize("sharing", [*SAVING, "share_memory_"])
@pytest.mark.parametrize(
    "write",
    [
        lambda td: td.__setitem__(0, TensorDict(text="new", number=torch.ones(()))),
        lambda td: td.set_at_("text", "new", 0),
        lambda td: td.update_at_({"text": NonTensorData("new")}, 0),
    ],
)
def test_one_shared_value_refuses_another_one_at_an_index(
    tmp_path, kind, sharing, write
):
    td = TensorDict(number=torch.zeros(2), text=kind("old"), batch_size=[2])
    td = (
        td.share_memory_()
        if sharing == "share_memory_"
        else SAVING[sharing](td, tmp_path)
    )

    with pytest.raises(RuntimeError, match="update a leaf in-place with a shared"):
        write(td)

    assert type(td.get("text")) is kind
    assert td["text"] == "old"
    assert td["number"].tolist() == [0.0, 0.0]
    td[0] = TensorDict(text="old", number=torch.ones(()))
    assert type(td.get("text")) is kind
    assert td["number"].tolist() == [1.0, 0.0]


def test_a_value_alone(tmp_path):
    value = NonTensorData("old", batch_size=[2]).memmap_(tmp_path / "value")
    stack = NonTensorStack("a", "b").memmap_(tmp_path / "stack")

    value.update_(NonTensorData("new"))
    stack[1] = "new"

    loaded = NonTensorData.load_memmap(tmp_path / "value")
    assert (loaded.data, loaded.batch_size) == ("new", torch.Size([2]))
    assert NonTensorStack.load_memmap(tmp_path / "stack").tolist() == ["a", "new"]


def test_members_of_a_lazy_stack(tmp_path):
    td = lazy_stack([TensorDict(text=text) for text in "abcd"]).memmap_(tmp_path)

    td[1:].update_({"text": "x"})
    td.get("text")[0] = "y"
    td[3] = TensorDict(text="z")

    assert list(td["text"]) == ["y", "x", "x", "z"]
    loaded = LazyStackedTensorDict.load_memmap(tmp_path)
    assert list(loaded["text"]) == ["y", "x", "x", "z"]


@tensorclass
class Named:
    number: torch.Tensor
    name: str


def test_a_field_of_a_tensorclass(tmp_path):
    held = Named(torch.zeros(2), "old", batch_size=[2]).memmap_(tmp_path)

    held.update_(Named(torch.ones(2), "new", batch_size=[2]))

    assert Named.load_memmap(tmp_path).name == "new"


def test_what_json_does_not_say(tmp_path):
    td = make().memmap_(tmp_path)

    td.update_(
        {"text": NonTensorData((1, (2, "x"))), "column": NonTensorStack((1,), 2)}
    )
    assert on_disk(tmp_path)[:2] == ((1, (2, "x")), [(1,), 2])
    td.update_({"text": NonTensorData({1, 2})})
    td.get("column")[0] = {3}
    assert on_disk(tmp_path, allow_pickle=True)[:2] == ({1, 2}, [{3}, 2])
    td.update_({"text": "plain", "column": NonTensorStack("p", "q")})

    assert on_disk(tmp_path)[:2] == ("plain", ["p", "q"])
    files = {path.name for path in (tmp_path / "text").iterdir()}
    assert files == {".nontensor.json", "meta.json"}
    assert not (tmp_path / "column" / "pickle.pkl").exists()


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not this one")


def test_a_value_that_cannot_be_saved_changes_nothing(tmp_path):
    td = make().memmap_(tmp_path)

    for write in (
        {"number": torch.ones(2), "text": NonTensorData(Unpicklable())},
        {"number": torch.ones(2), "column": NonTensorData(Unpicklable())},
    ):
        with pytest.raises(TypeError, match="not this one"):
            td.update_(write)
    with pytest.raises(TypeError, match="not this one"):
        td[0] = TensorDict(column=NonTensorData(Unpicklable()), number=torch.ones(()))

    assert td["number"].tolist() == [0.0, 0.0]
    assert values(td) == on_disk(tmp_path) == values(make())


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser writes everywhere")
def test_files_that_cannot_be_written_keep_the_values(tmp_path):
    td = make().memmap_(tmp_path)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OSError):
            td.update_({"text": "new"})
    finally:
        tmp_path.chmod(0o700)

    assert values(td) == on_disk(tmp_path) == values(make())


def test_a_place_that_is_no_directory_keeps_the_values(tmp_path):
    td = make().memmap_(tmp_path)
    text = tmp_path / "text"
    (text / "meta.json").unlink()
    text.rmdir()
    text.write_text("a file")

    with pytest.raises((OSError, RuntimeError)):
        td.update_({"text": "new"})

    assert td["text"] == "old"
    assert text.read_text() == "a file"


def test_threads_lose_no_write(tmp_path):
    length = 24
    people = NonTensorStack(*["old"] * length)
    td = TensorDict(people=people, batch_size=[length]).memmap_(tmp_path)

    def write(first):
        for place in range(first, length, 4):
            td.get("people")[place] = f"new {place}"

    threads = [threading.Thread(target=write, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    wanted = [f"new {place}" for place in range(length)]
    assert list(td["people"]) == wanted
    assert list(TensorDict.load_memmap(tmp_path)["people"]) == wanted


def write_rows(td, first):
    for place in range(first, len(td), 2):
        td.get("people")[place] = f"new {place}"


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes_that_share_values_lose_no_write(tmp_path, method):
    length = 16
    people = NonTensorStack(*["old"] * length)
    td = TensorDict(people=people, batch_size=[length])
    td.memmap_(tmp_path, share_non_tensor=True)
    context = multiprocessing.get_context(method)

    workers = [context.Process(target=write_rows, args=(td, at)) for at in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE_S)

    wanted = [f"new {place}" for place in range(length)]
    assert list(td["people"]) == wanted
    assert list(TensorDict.load_memmap(tmp_path)["people"]) == wanted


def write_for_ever(td):
    number = 0
    while True:
        number += 1
        td.update_({"text": NonTensorData({"number": number, "again": [number] * 50})})


def test_a_writer_that_is_killed_leaves_the_old_value_or_the_new(tmp_path):
    td = make().memmap_(tmp_path)
    context = multiprocessing.get_context("fork")
    for delay in (0.0, 0.003, 0.01, 0.02):
        worker = context.Process(target=write_for_ever, args=(td,))
        worker.start()
        while isinstance(on_disk(tmp_path)[0], str) and delay:
            time.sleep(0.001)
        time.sleep(delay)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(PATIENCE_S)

        found = json.loads((tmp_path / "text" / "meta.json").read_text())["data"]
        assert found == "old" or found["again"] == [found["number"]] * 50
        assert on_disk(tmp_path)[1:] == values(make())[1:]
    td.update_({"text": "last"})
    assert on_disk(tmp_path)[0] == "last"
    assert not [path for path in tmp_path.iterdir() if ".tdtmp" in path.name]


@pytest.mark.parametrize("name", ["x", "x.tdz"])
def test_values_have_the_device_of_what_holds_them(name, tmp_path):
    inner = {"value": "text", "column": ["a", "b"]}
    td = TensorDict({"a": torch.ones(2), "n": inner, **inner}, [2])
    saved = td.memmap(tmp_path / name)
    for found in [TensorDict.load(tmp_path / name), saved][: 1 + name.endswith("z")]:
        assert {each.device for each in (found.get("value"), found.get("column"))} == {
            torch.device("cpu")
        }
        assert found["n"].get("column").device == torch.device("cpu")


def test_a_pickled_value_stays_locked(tmp_path):
    value = NonTensorData("text").memmap(tmp_path)
    assert pickle.loads(pickle.dumps(value)).is_locked


@pytest.mark.parametrize("value", ["x\ud800", ["\udc80"], {"\ud800": 1}, "\U0001f600"])
@pytest.mark.parametrize("name", ["x", "x.tdz", "x.safetensors"])
def test_texts_with_half_a_character(value, name, tmp_path):
    td = TensorDict({"a": NonTensorData(value), "b": torch.ones(1)})
    td.memmap(tmp_path / name)
    loaded = TensorDict.load_memmap(tmp_path / name, allow_pickle=True)
    assert loaded["a"] == value


@pytest.mark.parametrize("value", ["x\ud800", "\udc80\ud800", {"\ud800": ["\udfff"]}])
def test_half_a_character_in_a_consolidated_file(value, tmp_path):
    td = TensorDict({"a": NonTensorData(value), "b": torch.ones(1)})
    td.consolidate(tmp_path / "x")
    assert TensorDict.from_consolidated(tmp_path / "x")["a"] == value
    assert not verify(tmp_path / "x").is_damaged


@pytest.mark.parametrize("name", ["x", "x.tdz"])
@pytest.mark.parametrize("value", [NonTensorData("half"), NonTensorStack("half", "b")])
def test_half_a_character_in_a_save_of_the_release(name, value, tmp_path):
    # It writes such texts as JSON, which Python reads.
    tree, target = tmp_path / "tree", tmp_path / name
    TensorDict({"a": value, "b": torch.ones(2)}, [2]).save(tree)
    for text in ('"\\ud800"', '"\\ud800\\ud801 x"'):
        file = tree / "a" / "meta.json"
        file.write_text(file.read_text().replace('"half"', text))
        for sums in tree.rglob(".*"):
            sums.unlink()
        if target != tree:
            pack_memmap(tree, target)
        loaded = TensorDict.load(target)
        assert loaded.get("a").tolist()[0] == json.loads(text)
        assert not verify(target).is_damaged
        file.write_text(file.read_text().replace(text, '"half"'))
    # Other files that are known by their names are replaced with their save.
    file.write_text(file.read_text().replace('"half"', text))
    TensorDict({"c": torch.ones(2)}, [2]).save(tree)
    assert not (tree / "a").exists()


def test_half_a_character_in_a_key_is_refused(tmp_path):
    TensorDict(a=torch.ones(1), data="x").save(tmp_path)
    file = tmp_path / "meta.json"
    file.write_text(file.read_text().replace('"a"', '"\\ud800"'))
    with pytest.raises(json.JSONDecodeError, match="surrogate"):
        TensorDict.load(tmp_path)


@pytest.mark.parametrize("key", ["shape", "device", "_type"])
@pytest.mark.parametrize("name", ["x", "x.tdz"])
@pytest.mark.parametrize("value", [TensorDict(a=torch.ones(1)), NonTensorData("text")])
def test_collections_under_names_of_fields_are_refused(key, name, value, tmp_path):
    # The release loses them.
    with pytest.raises(RuntimeError, match=rf"'n', '{key}'.*would be lost"):
        TensorDict(n={key: value}).memmap(tmp_path / name)
    assert not list(tmp_path.iterdir())
