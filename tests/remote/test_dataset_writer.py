"""``DatasetWriter`` at a URL: whole flushes, one writer, parts that are joined unread."""

import gc
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch

from object_stores import Proxy
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    TensorDict,
    _rust,
    tensorclass,
)
from tensordict.cli import main
from tensordict.data import BatchLoader, DatasetReader, DatasetWriter
from tensordict.storage.remote import Place, growing, place_of
from tensordict.storage.remote.leftovers import find_leftovers, remove_leftovers
from tensordict.storage.remote.manifests import read_manifest
from tensordict.storage.remote.publishing import LOCK, RECORD, SWITCH

ENDED = "-".join([*_rust.process_name().split("-")[:2], "999999999", "1", "0"])
"""The name of a process of this machine that has ended."""


@tensorclass
class Sample:
    a: torch.Tensor
    s: str


def row(value):
    return TensorDict(
        a=torch.full((3,), value),
        n=TensorDict(b=torch.tensor(value), c=TensorDict(d=torch.full((2,), value))),
    )


def rows(*values):
    return torch.stack([row(value) for value in values])


def load(url, **options):
    return TensorDict.load_memmap(url, download=True, **options)


def objects(url):
    return sorted(found.name for found in place_of(url).list())


def leftovers(url, **options):
    """What `clean` removes on another machine, for which all writers here have ended."""
    with mock.patch("socket.gethostname", return_value="elsewhere"):
        return find_leftovers(place_of(url, options or None), 0.0)


def test_readers_see_whole_flushes(remote):
    with DatasetWriter(remote) as writer:
        reader = DatasetReader(remote)
        assert len(reader) == 0
        writer.append(row(0))
        writer.extend(rows(1, 2))
        assert not reader.refresh()
        with pytest.raises(FileNotFoundError, match="no save"):
            TensorDict.load_memmap(remote)
        writer.flush()
        assert reader.refresh()
        first = reader.data
        writer.extend([row(3), row(4)])
        writer.append({"a": torch.full((3,), 5), "n": {"b": 5, "c": {"d": [5, 5]}}})
        assert (len(writer), writer.published_rows) == (6, 3)
        assert not reader.refresh()
        assert TensorDict.load_memmap(remote).batch_size == (3,)
    assert reader.refresh()
    assert reader["n", "b"][:].tolist() == [0, 1, 2, 3, 4, 5]
    assert first.batch_size == (3,)
    assert first[[2, 0]]["a"].tolist() == [[2, 2, 2], [0, 0, 0]]
    assert (load(remote) == rows(*range(6))).all()
    assert (TensorDict.load_memmap(remote)[1:5] == rows(1, 2, 3, 4)).all()


def test_a_dataset_goes_on_from_what_was_published(remote):
    writer = DatasetWriter(remote, class_names={("n", "b"): ["no", "yes"]}, like=row(0))
    writer.append(row(0))
    writer.flush()
    writer.append(row(9))
    writer.abandon()
    with DatasetWriter(remote, like=row(0), durable=True) as writer:
        assert len(writer) == 1
        writer.append(row(1))
        with pytest.raises(ValueError, match="float32"):
            writer.append(row(0).float())
    assert load(remote)["n", "b"].tolist() == [0, 1]
    assert DatasetReader(remote).class_names == {("n", "b"): ["no", "yes"]}
    assert not find_leftovers(place_of(remote))
    assert f"{LOCK}" not in objects(remote)


def test_a_save_gets_further_rows(remote):
    rows(0, 1).memmap(remote)
    before = TensorDict.load_memmap(remote)
    with DatasetWriter(remote) as writer:
        writer.append(row(2))
    assert load(remote)["n", "b"].tolist() == [0, 1, 2]
    # The objects of the rows are those that were there.
    assert before["a"][:].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert not find_leftovers(place_of(remote))
    rows(7).memmap(remote)
    assert load(remote)["n", "b"].tolist() == [7]
    assert not find_leftovers(place_of(remote))
    assert not any("000001" in name for name in objects(remote))


def test_ragged_columns_values_and_classes(remote):
    lengths = (2, 2, 3, 0, 1)
    for length in lengths:
        with DatasetWriter(remote) as writer:
            tensor = torch.arange(length * 2.0).view(length, 2)
            entries = {
                "a": tensor,
                "s": "x" * length,
                "v": NonTensorData({"k": length}),
            }
            writer.append({**entries, "n": {"c": tensor[:, 0], "e": []}})
    loaded = TensorDict.load_memmap(remote)
    assert isinstance(loaded[1:], LazyStackedTensorDict)
    assert [len(loaded[at]["a"]) for at in range(5)] == list(lengths)
    assert loaded[[2]]["n", "c"].tolist() == [[0, 2, 4]]
    assert list(loaded["s"]) == ["x" * length for length in lengths]
    assert loaded[4]["v"] == {"k": 1}
    with DatasetWriter(f"{remote}-2") as writer:
        writer.extend(loaded[:])
    assert load(f"{remote}-2")[2]["a"].tolist() == [[0, 1], [2, 3], [4, 5]]
    with DatasetWriter(f"{remote}-3") as writer:
        writer.extend([Sample(a=torch.full((2,), n), s=str(n)) for n in range(3)])
    sample = Sample.load_memmap(f"{remote}-3")
    assert sample[1].s == "1"
    assert list(sample[[2, 0]].s) == ["2", "0"]
    with DatasetWriter(f"{remote}-3") as writer, pytest.raises(ValueError, match="Sam"):
        writer.append(TensorDict(a=torch.zeros(2), s="x"))


def test_rows_go_up_in_objects_and_leave_the_disk(remote, monkeypatch, tmp_path):
    monkeypatch.setattr(growing, "OBJECT_BYTES", 1 << 20)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    used = []
    with DatasetWriter(remote) as writer:
        for number in range(40):
            writer.append({"a": torch.full((50_000,), number)})
            folder = next(tmp_path.glob("tensordict-writer-*"))
            files = [path.stat() for path in folder.rglob("*") if path.is_file()]
            used.append(sum(found.st_blocks * 512 for found in files))
        assert len(objects(remote)) > 8
        assert not Path(remote, SWITCH).exists()
    assert max(used) < 5 << 20
    assert not list(tmp_path.iterdir())
    loaded = TensorDict.load_memmap(remote)
    assert loaded["a"][[39, 3]][:, 49_999].tolist() == [39, 3]
    assert torch.equal(loaded["a"][:], torch.arange(40)[:, None].expand(-1, 50_000))


def test_a_writer_removes_the_rows_that_a_killed_one_left_here(
    remote, monkeypatch, tmp_path
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"tensordict-writer-{ENDED}.x"
    left.mkdir()
    (left / "a.memmap").write_bytes(b"rows")
    with DatasetWriter(remote) as writer:
        assert not left.exists()
        with DatasetWriter(f"{remote}-2") as other:
            other.append(row(1))
        writer.append(row(0))
    assert load(remote)["n", "b"].tolist() == [0]


def test_one_writer_at_a_time(remote):
    with DatasetWriter(remote) as writer:
        with pytest.raises(RuntimeError, match="Another writer has .* open"):
            DatasetWriter(remote)
        writer.append(row(0))
    del writer
    dropped = DatasetWriter(remote)
    dropped.append(row(9))
    del dropped
    gc.collect()
    with DatasetWriter(remote) as writer:
        writer.append(row(1))
    assert load(remote)["n", "b"].tolist() == [0, 1]


def elsewhere(url):
    """Let the lock of a writer be that of another machine."""
    place = place_of(url)
    holder = json.loads(place.get(LOCK)) | {"host": "another"}
    place.put(LOCK, json.dumps(holder).encode())


@pytest.mark.parametrize("is_old", [False, True])
def test_of_two_writers_on_two_machines_one_gets_an_error(remote, is_old):
    if is_old:
        rows(0).memmap(remote)
    first = DatasetWriter(remote)
    elsewhere(remote)
    second = DatasetWriter(remote)
    first.extend(rows(1, 2))
    second.extend(rows(3, 4))
    second.flush()
    for _ in range(2):
        with pytest.raises(FileExistsError, match="Another writer has published"):
            first.flush()
    first.abandon()
    second.append(row(5))
    second.close()
    expected = [0, 3, 4, 5] if is_old else [3, 4, 5]
    assert load(remote)["n", "b"].tolist() == expected
    assert not find_leftovers(place_of(remote))


def test_what_is_something_else_is_left_alone(remote):
    place_of(remote).put("notes.txt", b"mine")
    with pytest.raises(ValueError, match="is not a save"):
        DatasetWriter(remote)
    assert objects(remote) == ["notes.txt"]
    rows(0).memmap(f"{remote}.tdz")
    with pytest.raises(ValueError, match="is not a save"):
        DatasetWriter(f"{remote}.tdz")
    with pytest.raises(ValueError, match="rows_hint"):
        DatasetWriter(f"{remote}-2", rows_hint=10)
    with pytest.raises(ValueError, match="name of a part"):
        DatasetWriter(f"{remote}-2", part="../x")
    with pytest.raises(FileNotFoundError, match="There is no dataset at"):
        DatasetReader(f"{remote}-2")
    with pytest.raises(TimeoutError, match="no rows"):
        DatasetReader(f"{remote}-2", wait=0.0)
    lazy = LazyStackedTensorDict(row(0), row(1), stack_dim=0)
    lazy.memmap(f"{remote}-3")
    with pytest.raises(ValueError, match="Cannot append"):
        DatasetWriter(f"{remote}-3")
    assert LOCK not in objects(f"{remote}-3")


def test_a_store_that_fails_keeps_the_rows(remote, monkeypatch):
    writer = DatasetWriter(remote)
    writer.append(row(0))
    writer.flush()
    put = type(writer._tree.place).put
    failing = [True]

    def broken(place, name, content, **how):
        if failing[0] and name.endswith("000002"):
            raise OSError(5, "the network is down")
        return put(place, name, content, **how)

    monkeypatch.setattr(type(writer._tree.place), "put", broken)
    writer.append(row(1))
    with pytest.raises(OSError, match="network"):
        writer.flush()
    assert load(remote)["n", "b"].tolist() == [0]
    assert writer.published_rows == 1
    failing[0] = False
    writer.append(row(2))
    writer.close()
    assert load(remote)["n", "b"].tolist() == [0, 1, 2]


def write_parts(url, parts, **options):
    for part, values in parts.items():
        with DatasetWriter(url, part=part, **options) as writer:
            writer.extend(rows(*values))


def test_parts_are_joined(remote):
    with DatasetWriter(remote) as writer:
        writer.append(row(0))
    write_parts(remote, {10: [4, 5], 2: [1, 2], "x": [6], 3: [3]})
    assert DatasetReader(f"{remote}.parts/10")["n", "b"][:].tolist() == [4, 5]
    # Their objects belong to saves, those of other places.
    assert not leftovers(remote)
    assert DatasetWriter.join(remote) == 7
    assert load(remote)["n", "b"].tolist() == list(range(7))
    assert objects(f"{remote}.parts") == []
    assert DatasetWriter.join(remote) == 7
    batches = [batch["n", "b"].tolist() for batch in BatchLoader(remote, 3)]
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]
    shuffled = BatchLoader(remote, 7, shuffle=True, seed=1)
    assert sorted(next(iter(shuffled))["a"][:, 0].tolist()) == list(range(7))
    with DatasetWriter(remote) as writer:
        writer.append(row(7))
    assert load(remote)["n", "b"].tolist() == list(range(8))
    assert not leftovers(remote)


def ragged(*lengths):
    return [
        {"a": torch.arange(length + 0.0), "s": "x" * length, "n": {"e": []}}
        for length in lengths
    ]


@pytest.mark.parametrize("first", [[], [2, 2], [3, 1]])
def test_parts_whose_columns_differ_are_joined(remote, first):
    lengths = [first, [2, 2], [3, 3], [1, 2], [0]]
    for part, given in enumerate(lengths):
        with DatasetWriter(remote, part=part) as writer:
            writer.extend(ragged(*given))
    count = sum(map(len, lengths))
    assert DatasetWriter.join(remote) == count
    loaded = load(remote)
    flat = [length for given in lengths for length in given]
    assert [len(loaded[at]["a"]) for at in range(count)] == flat
    assert list(loaded["s"]) == ["x" * length for length in flat]
    assert not leftovers(remote)


def test_a_join_reads_no_rows(s3, tmp_path):
    url = f"s3://bucket/{tmp_path.name}"
    proxy = Proxy(s3.endpoint, rate=0.0)
    options = s3.options(proxy.endpoint)
    try:
        write_parts(url, {0: [0, 1], 1: [2]}, storage_options=options)
        proxy.requests.clear()
        assert DatasetWriter.join(url, storage_options=options) == 3
        touched = [each for each in proxy.requests if "/000001" in each[1]]
        assert not touched
    finally:
        proxy.stop()
    assert load(url, storage_options=s3.options())["n", "b"].tolist() == [0, 1, 2]


def test_a_part_that_does_not_fit_leaves_all_as_it_was(remote):
    write_parts(remote, {0: [0]})
    with DatasetWriter(remote, part=1) as writer:
        writer.append({"other": torch.zeros(2)})
    before = contents(remote.rpartition("/")[0])
    with pytest.raises(ValueError, match="with the keys"):
        DatasetWriter.join(remote)
    assert contents(remote.rpartition("/")[0]) == before
    with pytest.raises(FileNotFoundError):
        load(remote)
    write_parts(remote, {0: [1]})
    with DatasetWriter(remote) as writer:
        writer.append(row(5))
    place_of(f"{remote}.parts/1").delete(["meta.json"])
    assert DatasetWriter.join(remote) == 3
    assert load(remote)["n", "b"].tolist() == [5, 0, 1]


def contents(url):
    place = place_of(url)
    return {found.name: place.get(found.name) for found in place.list()}


@pytest.mark.parametrize("is_published", [False, True])
def test_rows_after_a_killed_join_are_neither_lost_nor_doubled(
    remote, monkeypatch, is_published
):
    write_parts(remote, {0: [0, 1], 1: [2]})

    def killed(*arguments, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr(Place, "delete", killed)
    if not is_published:
        from tensordict.storage.remote import growing

        monkeypatch.setattr(growing, "put_switch", killed)
    with pytest.raises(KeyboardInterrupt):
        DatasetWriter.join(remote)
    monkeypatch.undo()
    gc.collect()
    with DatasetWriter(remote) as writer:
        writer.extend(rows(7, 8, 9))
    assert DatasetWriter.join(remote) == 6
    found = load(remote)["n", "b"].tolist()
    assert found == ([0, 1, 2, 7, 8, 9] if is_published else [7, 8, 9, 0, 1, 2])
    assert objects(f"{remote}.parts") == []


def test_a_part_that_grew_after_a_killed_join_is_an_error(remote, monkeypatch):
    write_parts(remote, {0: [0, 1]})

    def killed(self, *arguments, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr(Place, "delete", killed)
    with pytest.raises(KeyboardInterrupt):
        DatasetWriter.join(remote)
    monkeypatch.undo()
    gc.collect()
    write_parts(remote, {0: [2]})
    with pytest.raises(RuntimeError, match="has 3 rows, and a join that was killed"):
        DatasetWriter.join(remote)
    assert load(remote)["n", "b"].tolist() == [0, 1]
    assert len(DatasetReader(f"{remote}.parts/0")) == 3


def test_a_part_that_is_being_written_is_not_joined(remote):
    with DatasetWriter(remote, part=0) as writer:
        writer.append(row(0))
        writer.flush()
        with pytest.raises(RuntimeError, match="Another writer"):
            DatasetWriter.join(remote)
        writer.append(row(1))
    assert DatasetWriter.join(remote) == 2


@pytest.mark.parametrize("call", range(8))
def test_a_join_that_was_killed_goes_on(remote, monkeypatch, call):
    write_parts(remote, {0: [0, 1], 1: [2], 2: [3]})
    calls = iter(range(100))
    for name in ("put", "delete"):
        original = getattr(Place, name)

        def killed(*arguments, original=original, **how):
            if next(calls) == call:
                raise KeyboardInterrupt
            return original(*arguments, **how)

        monkeypatch.setattr(Place, name, killed)
    with pytest.raises(KeyboardInterrupt):
        DatasetWriter.join(remote)
    monkeypatch.undo()
    gc.collect()
    assert DatasetWriter.join(remote) == 4
    assert load(remote)["n", "b"].tolist() == [0, 1, 2, 3]
    remove_leftovers(place_of(remote), leftovers(remote))
    assert load(remote)["n", "b"].tolist() == [0, 1, 2, 3]


def test_what_a_writer_left_is_found(remote):
    writer = DatasetWriter(remote)
    writer.append(row(0))
    writer.flush()
    writer.append(row(1))
    tree = writer._tree
    tree._send()
    tree._wait()
    assert not find_leftovers(place_of(remote))
    for name in objects(remote):
        if name.endswith((RECORD, LOCK)):
            record = json.loads(place_of(remote).get(name)) | {"process": ENDED}
            place_of(remote).put(name, json.dumps(record).encode())
    found = find_leftovers(place_of(remote))
    names = sorted(name for each in found for name in each.objects)
    assert [name.rpartition("/")[2] for name in names] == ["000002", LOCK]
    remove_leftovers(place_of(remote), found)
    assert load(remote)["n", "b"].tolist() == [0]
    writer.abandon()


def with_unpublished_object(url):
    """Return a writer with a published row 0, and an object of the row 1 that is not."""
    writer = DatasetWriter(url)
    writer.append(row(0))
    writer.flush()
    writer.append(row(1))
    writer._tree._send()
    writer._tree._wait()
    writer.append(row(2))
    return writer


def test_clean_spares_a_writer_that_runs_on_this_machine(remote):
    writer = with_unpublished_object(remote)
    before = objects(remote)
    (record,) = [name for name in before if name.endswith(RECORD)]
    fields = json.loads(place_of(remote).get(record)) | {"time": 0}
    place_of(remote).put(record, json.dumps(fields).encode())
    assert main(["clean", remote, "--older-than", "0"]) == 0
    assert objects(remote) == before
    writer.close()
    assert load(remote)["n", "b"].tolist() == [0, 1, 2]


def test_rows_that_clean_removed_are_not_published(remote):
    writer = with_unpublished_object(remote)
    (record,) = [name for name in objects(remote) if name.endswith(RECORD)]
    fields = json.loads(place_of(remote).get(record)) | {"host": "elsewhere"}
    place_of(remote).put(record, json.dumps(fields).encode())
    manifest = place_of(remote).get(SWITCH)
    assert main(["clean", remote, "--older-than", "0"]) == 0
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"000002 .*is gone.*`tensordict clean`"):
            writer.flush()
    assert place_of(remote).get(SWITCH) == manifest
    writer.abandon()
    with DatasetWriter(remote) as writer:
        writer.append(row(3))
    assert load(remote)["n", "b"].tolist() == [0, 3]


def test_parts_whose_objects_are_gone_are_not_joined(remote):
    with DatasetWriter(remote) as writer:
        writer.append(row(0))
    for part in range(2):
        with DatasetWriter(remote, part=part) as writer:
            writer.append(row(part + 1))
    manifest = read_manifest(place_of(f"{remote}.parts").get(f"1/{SWITCH}"))
    (key, *_) = [key for key in manifest.keys() if key.endswith("000001")]  # noqa: SIM118
    gone = place_of(f"{remote}.parts/1").reach(key)
    content = gone.get()
    gone.delete([""])
    before = objects(remote)
    with pytest.raises(RuntimeError, match=r"000001 of a part is gone.*parts/1"):
        DatasetWriter.join(remote)
    assert load(remote)["n", "b"].tolist() == [0]
    assert set(before) <= set(objects(remote))
    gone.put("", content)
    assert DatasetWriter.join(remote) == 3
    assert load(remote)["n", "b"].tolist() == [0, 1, 2]


def test_a_long_writer_says_that_it_runs(remote, monkeypatch):
    writer = DatasetWriter(remote)
    writer.append(row(0))
    tree = writer._tree
    tree._send()
    tree._wait()
    (record,) = [name for name in objects(remote) if name.endswith(RECORD)]
    before = place_of(remote).get(record)
    later = time.monotonic() + 2 * growing.RECORD_S
    monkeypatch.setattr(growing.time, "monotonic", lambda: later)
    writer.append(row(1))
    writer.flush()
    assert json.loads(place_of(remote).get(record))["time"] > json.loads(before)["time"]
    assert load(remote)["n", "b"].tolist() == [0, 1]
    writer.append(row(2))
    tree._send()
    tree._wait()
    place_of(remote).delete(tree._unpublished)
    writer.append(row(3))
    much_later = later + 2 * growing.RECORD_S
    monkeypatch.setattr(growing.time, "monotonic", lambda: much_later)
    with pytest.raises(RuntimeError, match="is gone"):
        writer.flush()
    writer.abandon()
    assert load(remote)["n", "b"].tolist() == [0, 1]


def test_rows_get_through_a_bad_network(s3, tmp_path):
    proxy = Proxy(s3.endpoint, rate=0.2, seed=3)
    options = s3.options(proxy.endpoint) | {
        "retry_config": {
            "max_retries": 20,
            "backoff": {"init_backoff": timedelta(milliseconds=5)},
        }
    }
    url = f"s3://bucket/{tmp_path.name}"
    try:
        for start in range(0, 40, 10):
            with DatasetWriter(url, storage_options=options) as writer:
                for number in range(start, start + 10):
                    writer.append(row(number))
                    if number % 3 == 0:
                        writer.flush()
        reader = DatasetReader(url, storage_options=options)
        assert reader["n", "b"][:].tolist() == list(range(40))
    finally:
        proxy.stop()
    assert len(proxy.met) > 10
    assert not leftovers(url, **s3.options())


def test_commands_take_datasets(remote, tmp_path, capsys):
    with DatasetWriter(remote) as writer:
        for start in (0, 2):
            writer.extend(rows(start, start + 1))
            writer.flush()
    assert main(["inspect", remote]) == 0
    assert "[4, 3]" in capsys.readouterr().out
    assert main(["verify", remote]) == 0
    assert main(["cp", remote, str(tmp_path / "copy")]) == 0
    copied = TensorDict.load_memmap(tmp_path / "copy")
    assert (copied == rows(0, 1, 2, 3)).all()
    with DatasetWriter(tmp_path / "copy") as writer:
        writer.append(row(4))
    assert main(["cp", str(tmp_path / "copy"), f"{remote}-2"]) == 0
    assert load(f"{remote}-2")["n", "b"].tolist() == list(range(5))
    assert main(["diff", remote, f"{remote}-2"]) == 1
    assert main(["cp", remote, f"{remote}-3"]) == 0
    assert read_manifest(place_of(f"{remote}-3").get(SWITCH)) is None
    assert load(f"{remote}-3")["n", "b"].tolist() == list(range(4))
    assert main(["clean", remote]) == 0
    assert "no leftovers" in capsys.readouterr().out


def test_sources_write_to_urls(remote):
    def made(number):
        return {"n": torch.tensor(number), "s": str(number)}

    assert DatasetWriter.from_iterable(remote, range(3), transform=made) == 3
    more = DatasetWriter.from_iterable(remote, range(5), transform=made, resume=True)
    assert more == 5
    loaded = TensorDict.load_memmap(remote)
    assert loaded["n"][:].tolist() == [0, 1, 2, 3, 4]
    assert list(loaded["s"]) == ["0", "1", "2", "3", "4"]


def test_a_cache_keeps_blocks_of_objects(remote, tmp_path):
    with DatasetWriter(remote) as writer:
        for start in range(4):
            writer.extend(rows(2 * start, 2 * start + 1))
            writer.flush()
    loaded = TensorDict.load_memmap(remote, cache_dir=tmp_path / "cache")
    for _ in range(2):
        assert loaded[[7, 0, 3]]["n", "b"].tolist() == [7, 0, 3]
    assert os.listdir(tmp_path / "cache")
