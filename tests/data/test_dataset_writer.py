"""``DatasetWriter``: rows that appear whole, whatever happens to the writer."""

import errno
import os
import random
import shutil
import signal
import threading

import pytest
import torch

from separate_process import run_freshly
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    TensorDict,
    lazy_stack,
    tensorclass,
)
from tensordict.data import DatasetReader, DatasetWriter
from tensordict.storage.growing import file as files
from tensordict.storage.growing.file import GrowingFile

KILLS = int(os.environ.get("TENSORDICT_KILLS", "8"))
"""The number of times that a writer is killed. `make torture` sets more."""


def row(value: int) -> TensorDict:
    return TensorDict(
        a=torch.full((3,), value),
        n=TensorDict(b=torch.tensor(value), c=TensorDict(d=torch.full((2,), value))),
    )


def rows(*values: int) -> TensorDict:
    return torch.stack([row(value) for value in values])


def load(path) -> TensorDict:
    return TensorDict.load_memmap(path)


def test_rows_batches_and_lists(tmp_path):
    with DatasetWriter(tmp_path / "x") as writer:
        writer.append(row(0))
        writer.extend(rows(1, 2))
        writer.extend([row(3), row(4)])
        writer.extend([])
        writer.append({"a": torch.full((3,), 5), "n": {"b": 5, "c": {"d": [5, 5]}}})
        assert len(writer) == 6
        assert writer.published_rows == 0
    loaded = load(tmp_path / "x")
    assert type(loaded) is TensorDict
    assert loaded["n"].batch_size == (6,)
    assert (loaded == rows(*range(6))).all()
    assert sorted(os.listdir(tmp_path / "x")) == ["a.memmap", "meta.json", "n"]
    assert os.listdir(tmp_path) == ["x"]
    # Room that was set aside is given back.
    assert os.path.getsize(tmp_path / "x" / "a.memmap") == 6 * 3 * 8


def test_readers_see_what_was_published(tmp_path):
    with DatasetWriter(tmp_path / "x") as writer:
        reader = DatasetReader(tmp_path / "x")
        assert len(reader) == 0
        with pytest.raises(FileNotFoundError, match="no rows yet"):
            reader[0]
        writer.append(row(0))
        assert not reader.refresh()
        writer.flush()
        assert reader.refresh()
        first = reader.data
        writer.extend(rows(1, 2))
        assert not reader.refresh()
        writer.flush()
        assert reader.refresh()
        assert reader["n", "b"].tolist() == [0, 1, 2]
        assert (first == rows(0)).all()
        assert reader[1]["a"].tolist() == [1, 1, 1]


def test_a_dataset_goes_on_from_what_was_published(tmp_path):
    writer = DatasetWriter(tmp_path)
    writer.append(row(0))
    writer.flush()
    writer.append(row(9))
    writer.abandon()
    with DatasetWriter(tmp_path, like=row(0)) as writer:
        assert len(writer) == 1
        writer.append(row(1))
    assert load(tmp_path)["n", "b"].tolist() == [0, 1]


def test_a_save_gets_further_rows(tmp_path):
    rows(0, 1).save(tmp_path)
    with DatasetWriter(tmp_path) as writer:
        writer.append(row(2))
    assert load(tmp_path)["n", "b"].tolist() == [0, 1, 2]


def test_columns_become_ragged_when_rows_differ(tmp_path):
    with DatasetWriter(tmp_path) as writer:
        for length in (2, 2, 3, 0):
            tensor = torch.arange(length * 2).view(length, 2)
            writer.append({"a": tensor, "b": torch.ones(2), "n": {"c": tensor[:, 0]}})
            writer.flush()
    loaded = load(tmp_path)
    assert isinstance(loaded, LazyStackedTensorDict)
    assert [len(each["a"]) for each in loaded] == [2, 2, 3, 0]
    assert loaded[2]["n", "c"].tolist() == [0, 2, 4]
    assert loaded["b"].shape == (4, 2)
    with DatasetWriter(tmp_path) as writer:
        writer.extend(loaded)
    assert load(tmp_path)[6]["a"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_texts_and_other_values(tmp_path):
    values = [{"k": (1, 2)}, None, 2.5, {1: "x"}, {"!": [1]}, "text"]
    with DatasetWriter(tmp_path) as writer:
        for number, value in enumerate(values):
            data = NonTensorData(value)
            text = "é\ud800" * number
            writer.append(TensorDict(v=data, n=TensorDict(t=NonTensorData(text))))
    loaded = load(tmp_path)
    assert type(loaded) is TensorDict
    assert list(loaded["v"]) == values
    assert loaded[3]["n", "t"] == "é\ud800" * 3
    assert list(loaded[torch.tensor([2, 0])]["v"]) == [2.5, {"k": (1, 2)}]
    assert list(loaded[1:3]["v"]) == [None, 2.5]
    assert type(loaded.clone()["v"]) is type(loaded["v"])
    loaded.memmap(tmp_path / "plain")
    plain = TensorDict.load_memmap(tmp_path / "plain", allow_pickle=True)
    assert list(plain["v"]) == values
    with DatasetWriter(tmp_path) as writer, pytest.raises(TypeError, match="set"):
        writer.append(TensorDict(v=NonTensorData({1}), n=TensorDict(t="x")))
    with (
        DatasetWriter(tmp_path) as writer,
        pytest.raises(TypeError, match="column of str"),
    ):
        writer.append(TensorDict(v="x", n=TensorDict(t=NonTensorData(1))))
    assert load(tmp_path).batch_size == (6,)


def test_bytes(tmp_path):
    with DatasetWriter(tmp_path) as writer:
        writer.extend([{"b": b"\xff\x00"}, {"b": b""}])
    assert list(load(tmp_path)["b"]) == [b"\xff\x00", b""]


def test_a_tensorclass(tmp_path):
    @tensorclass
    class Sample:
        a: torch.Tensor
        s: str

    with DatasetWriter(tmp_path) as writer:
        for number in range(3):
            writer.append(Sample(a=torch.full((2,), number), s=str(number)))
    loaded = Sample.load_memmap(tmp_path)
    assert type(loaded) is Sample
    assert loaded.a.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert loaded[1].s == "1"
    with DatasetWriter(tmp_path) as writer, pytest.raises(ValueError, match="Sample"):
        writer.append(TensorDict(a=torch.zeros(2), s="x"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda: row(0).select("a"), ValueError, "with the keys"),
        (lambda: row(0).to(torch.float32), ValueError, "float32"),
        (
            lambda: row(0).set("a", torch.zeros(3, 1, dtype=torch.int64)),
            ValueError,
            "a",
        ),
        (lambda: torch.zeros(3), TypeError, "A row must be a collection"),
        (lambda: row(0).set("n", torch.zeros(3)), ValueError, "'n'"),
        (lambda: row(0).expand(2), ValueError, "batch size"),
        (lambda: row(0).set("a", "text"), ValueError, "non-tensor data"),
    ],
)
def test_a_row_that_does_not_fit_is_left_out(given, error, message, tmp_path):
    with DatasetWriter(tmp_path) as writer:
        writer.append(row(0))
        with pytest.raises(error, match=message):
            writer.append(given())
        writer.append(row(1))
    assert (load(tmp_path) == rows(0, 1)).all()


def test_what_a_row_is_like_is_said_before_there_are_any(tmp_path):
    with DatasetWriter(tmp_path, like=rows(0), rows_hint=1000) as writer:
        assert len(writer) == 0
    assert load(tmp_path).batch_size == (0,)
    assert load(tmp_path)["n", "c", "d"].shape == (0, 2)
    with DatasetWriter(tmp_path, rows_hint=1000) as writer:
        assert os.path.getsize(tmp_path / "a.memmap") == 1000 * 3 * 8
        writer.append(row(0))
    assert os.path.getsize(tmp_path / "a.memmap") == 3 * 8
    with pytest.raises(ValueError, match="keys"):
        DatasetWriter(tmp_path, like=TensorDict(z=torch.zeros(2)))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"shape": torch.zeros(2)}, "metadata"),
        ({"a": torch.zeros(2), "a.shape": torch.zeros(2)}, "rename"),
    ],
)
def test_keys_that_have_no_file(entries, message, tmp_path):
    with DatasetWriter(tmp_path) as writer, pytest.raises(RuntimeError, match=message):
        writer.append(entries)


def test_keys_are_escaped(tmp_path):
    key = "../a b"
    with DatasetWriter(tmp_path / "x") as writer:
        writer.append({key: torch.ones(2), "n/": {"..": "text"}})
    assert load(tmp_path / "x")[key].tolist() == [[1.0, 1.0]]
    assert load(tmp_path / "x")[0]["n/", ".."] == "text"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.bfloat16, torch.complex64, torch.float8_e5m2, torch.uint16],
)
def test_dtypes(dtype, tmp_path):
    tensor = torch.ones(4).to(dtype)
    with DatasetWriter(tmp_path) as writer:
        writer.append({"a": tensor})
        writer.append({"a": tensor[:2]})
    loaded = load(tmp_path)
    assert [each["a"].shape[0] for each in loaded] == [4, 2]
    assert (
        loaded[1]["a"].view(torch.uint8).tolist()
        == tensor[:2].view(torch.uint8).tolist()
    )
    assert loaded[[1, 0]][1]["a"].dtype is dtype


def test_views_that_torch_has_not_computed(tmp_path):
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    with DatasetWriter(tmp_path) as writer:
        writer.append({"a": tensor.conj(), "b": torch.arange(6).view(2, 3).T})
    loaded = load(tmp_path)
    assert loaded["a"][0].tolist() == [1 - 2j, 3 + 1j]
    assert loaded["b"][0].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_many_columns_are_not_kept_open(tmp_path):
    with DatasetWriter(tmp_path) as writer:
        for value in range(3):
            writer.append({f"k{at}": torch.tensor(value) for at in range(300)})
            writer.flush()
        assert len(os.listdir("/proc/self/fd")) < 200
    assert load(tmp_path)["k299"].tolist() == [0, 1, 2]


def test_one_writer_at_a_time(tmp_path):
    with DatasetWriter(tmp_path) as writer:
        with pytest.raises(RuntimeError, match="Another writer"):
            DatasetWriter(tmp_path)
        writer.append(row(0))
    with pytest.raises(ValueError, match="closed"):
        writer.append(row(0))
    writer.close()
    with DatasetWriter(tmp_path) as writer:
        assert len(writer) == 1


def test_what_is_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="not a save"):
        DatasetWriter(tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]
    TensorDict(a=torch.zeros(2)).save(tmp_path / "scalar")
    with pytest.raises(ValueError, match="first batch dimension"):
        DatasetWriter(tmp_path / "scalar")
    with DatasetWriter(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()


def test_threads_share_a_writer(tmp_path):
    with DatasetWriter(tmp_path) as writer:

        def work(value):
            for _ in range(20):
                writer.append(row(value))

        threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = load(tmp_path)
    assert found["n", "b"].bincount().tolist() == [20] * 4
    assert (found["a"] == found["n", "b"][:, None]).all()


def test_a_full_disk_loses_no_published_row(tmp_path, monkeypatch):
    real = os.pwrite
    is_full = False

    def write(descriptor, data, at):
        if is_full and len(data) > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, at)

    monkeypatch.setattr(files.os, "pwrite", write)
    with DatasetWriter(tmp_path) as writer:
        writer.append(row(0))
        writer.flush()
        writer.append(row(1))
        is_full = True
        with pytest.raises(OSError, match="No space"):
            writer.flush()
        assert load(tmp_path)["n", "b"].tolist() == [0]
        large = row(2).set("a", torch.zeros(1 << 18, dtype=torch.int64))
        with pytest.raises(OSError, match="No space"):
            writer.append(large)
        is_full = False
        writer.append(row(3))
    assert [each["n", "b"].item() for each in load(tmp_path)] == [0, 1, 3]
    assert [each["a"].tolist() for each in load(tmp_path)][2] == [3, 3, 3]


# Parts ---------------------------------------------------------------------------------


def test_parts_are_joined(tmp_path):
    path = tmp_path / "x"
    for part in (10, 2):
        with DatasetWriter(path, part=part) as writer:
            for value in range(3):
                writer.append(
                    {"a": torch.full((value + 1,), part), "t": f"{part} {value}"}
                )
    DatasetWriter(path, part="empty").close()
    assert not path.exists()
    assert DatasetWriter.join(path) == 6
    assert os.listdir(tmp_path) == ["x"]
    loaded = load(path)
    # Numbers are in their order, and not in that of texts.
    assert [each["t"] for each in loaded] == [
        f"{p} {v}" for p in (2, 10) for v in range(3)
    ]
    assert loaded[5]["a"].tolist() == [10, 10, 10]
    assert DatasetWriter.join(path) == 6
    with pytest.raises(ValueError, match="name of a part"):
        DatasetWriter(path, part="../x")


def test_a_join_that_was_killed_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "x"
    for part in range(3):
        with DatasetWriter(path, part=part) as writer:
            writer.extend(rows(part, part))
    real = DatasetWriter.flush
    calls = []

    def flush(writer):
        calls.append(writer)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(writer)

    monkeypatch.setattr(DatasetWriter, "flush", flush)
    monkeypatch.setattr(DatasetWriter, "close", DatasetWriter.abandon)
    with pytest.raises(KeyboardInterrupt):
        DatasetWriter.join(path)
    monkeypatch.undo()
    assert load(path)["n", "b"].tolist() == [0, 0]
    assert DatasetWriter.join(path) == 6
    assert load(path)["n", "b"].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_part_that_does_not_fit_leaves_all_as_it_was(tmp_path):
    path = tmp_path / "x"
    for part in range(2):
        with DatasetWriter(path, part=part) as writer:
            writer.extend(rows(part, part))
    with DatasetWriter(path, part=2) as writer:
        writer.append({"other": torch.zeros(2)})
    with pytest.raises(ValueError, match="with the keys"):
        DatasetWriter.join(path)
    assert not (path / "meta.json").exists()
    with DatasetWriter(path) as writer:
        writer.append(row(9))
    shutil.rmtree(f"{path}.parts/2")
    assert DatasetWriter.join(path) == 5
    assert load(path)["n", "b"].tolist() == [9, 0, 0, 1, 1]
    assert not (tmp_path / "x.parts").exists()


@pytest.mark.parametrize("part", [None, 1])
def test_rows_after_a_killed_join_are_an_error(tmp_path, monkeypatch, part):
    path = tmp_path / "x"
    for number in range(2):
        with DatasetWriter(path, part=number) as writer:
            writer.extend(rows(number, number))

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(DatasetWriter, "flush", killed)
    with pytest.raises(KeyboardInterrupt):
        DatasetWriter.join(path)
    monkeypatch.undo()
    with DatasetWriter(path, part=part) as writer:
        writer.append(row(7))
    with pytest.raises(
        RuntimeError, match="A join was killed, and rows were added since"
    ):
        DatasetWriter.join(path)
    assert len(load(f"{path}.parts/1")) == (3 if part else 2)


def test_a_part_that_is_being_written_is_not_joined(tmp_path):
    path = tmp_path / "x"
    with DatasetWriter(path, part=0) as writer:
        writer.append(row(0))
        writer.flush()
        with pytest.raises(RuntimeError, match="Another writer"):
            DatasetWriter.join(path)
    assert DatasetWriter.join(path) == 1


# Processes -----------------------------------------------------------------------------


def start(work) -> tuple[int, int]:
    """A process that works for ever, forked so that it imports nothing, and its report."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            work(write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    return child, read_end


def write_for_ever(path, report: int) -> None:
    with DatasetWriter(path) as writer:
        while True:
            value = len(writer)
            writer.append(
                TensorDict(
                    a=torch.full((value % 5 + 1,), value),
                    n=TensorDict(b=torch.tensor(value), t=str(value)),
                )
            )
            if value % 3 == 0:
                writer.flush()
                os.write(report, b".")


def check(found) -> int:
    """Check that all rows are whole; return their number."""
    count = found.batch_size[0]
    assert found["n", "b"].tolist() == list(range(count))
    if count:
        last = found[count - 1]
        assert last["n", "t"] == str(count - 1)
        assert last["a"].tolist() == [count - 1] * ((count - 1) % 5 + 1)
    return count


@pytest.mark.filterwarnings("ignore:This process")
def test_a_kill_leaves_whole_rows(tmp_path):
    chance = random.Random(0)
    before = 0
    for _ in range(KILLS):
        child, report = start(lambda out: write_for_ever(tmp_path / "x", out))
        done = 0
        # Somewhere in a later flush.
        for _ in range(chance.randrange(1, 8)):
            done += len(os.read(report, 1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(report)
        count = check(load(tmp_path / "x"))
        assert count >= before + done
        before = count
    with DatasetWriter(tmp_path / "x") as writer:
        assert len(writer) == before
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.filterwarnings("ignore:This process")
def test_a_reader_during_appends_sees_whole_rows(tmp_path):
    child, report = start(lambda out: write_for_ever(tmp_path, out))
    try:
        os.read(report, 1)
        reader = DatasetReader(tmp_path)
        seen = 0
        for _ in range(5 * KILLS):
            reader.refresh()
            assert check(reader.data) >= seen
            seen = len(reader)
            os.read(report, 1 << 16)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(report)
    assert seen > 5


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_process_holds_no_lock_and_writes_nothing(tmp_path):
    writer = DatasetWriter(tmp_path)
    writer.append(row(0))

    def work(report):
        try:
            writer.append(row(1))
        except RuntimeError as error:
            os.write(report, str(error).encode())
        writer.close()
        os.write(report, b"\n")
        signal.pause()

    child, report = start(work)
    try:
        said = b""
        while not said.endswith(b"\n"):
            said += os.read(report, 1000)
        assert b"belongs to the process" in said
        writer.close()
        with DatasetWriter(tmp_path) as writer:
            assert len(writer) == 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(report)


def test_lazy_stacks_of_trajectories(tmp_path):
    made = [
        TensorDict(obs=torch.rand(n, 2), n=TensorDict(r=torch.rand(n), batch_size=[n]))
        for n in (3, 1)
    ]
    for each in made:
        each.batch_size = [len(each["obs"])]
    with DatasetWriter(tmp_path) as writer:
        writer.append(made[0])
        writer.append(made[1])
        writer.extend(lazy_stack(made))
    loaded = load(tmp_path)
    assert loaded.batch_size == (4, -1)
    assert [each.batch_size[0] for each in loaded] == [3, 1, 3, 1]
    assert loaded[1]["n"].batch_size == (1,)
    assert (loaded[2] == made[0]).all()


def test_the_interpreter_may_end_without_a_close(tmp_path):
    program = (
        "import sys, torch\n"
        "from tensordict.data import DatasetWriter\n"
        "writer = DatasetWriter(sys.argv[1])\n"
        "writer.append({'a': torch.zeros(2)})\n"
        "writer.flush()\n"
        "writer.append({'a': torch.zeros(2)})\n"
    )
    done = run_freshly(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert load(tmp_path).batch_size == (1,)


def test_durable_writes_reach_the_disk_first(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def call(*args, name=name, real=real):
            done.append(name)
            return real(*args)

        monkeypatch.setattr(os, name, call)
    with DatasetWriter(tmp_path, durable=True) as writer:
        writer.append({"a": torch.ones(3), "b": "x"})
    # The files of three columns, the metadata, and the directory after it.
    assert done == [*["fsync"] * 4, "replace", "fsync"]


def test_saved_nested_tensors_stay_what_they_are(tmp_path):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    td = TensorDict(a=nested, batch_size=[2])
    td.memmap(tmp_path)
    with DatasetWriter(tmp_path) as writer:
        writer.extend(td)
    loaded = load(tmp_path)
    assert type(loaded) is TensorDict
    assert [len(part) for part in loaded["a"].unbind(0)] == [2, 3, 2, 3]


ROWS_THAT_DIFFER = {
    "gradient": lambda: torch.ones(3, requires_grad=True),
    "gaps": lambda: torch.arange(6.0)[::2],
    "turned": lambda: torch.ones(3).expand(3),
    "another shape": lambda: torch.ones(5),
    "conjugated": lambda: torch.ones(3).conj(),
}


@pytest.mark.parametrize("kind", ROWS_THAT_DIFFER)
@pytest.mark.parametrize("make", [dict, TensorDict])
def test_rows_one_by_one_are_those_of_a_batch(tmp_path, kind, make):
    """The short way of a row that is just like those before leaves others to the long one."""
    rows = [
        {"a": torch.full((3,), float(at)), "n": torch.tensor(at)} for at in range(4)
    ]
    rows.insert(2, {"n": torch.tensor(9), "a": ROWS_THAT_DIFFER[kind]()})
    with DatasetWriter(tmp_path / "x") as writer:
        for fields in rows:
            writer.append(make(fields))
        writer.flush()
        rows[0]["a"].fill_(7)
    data = TensorDict.load_memmap(tmp_path / "x")
    assert data["n"].tolist() == [0, 1, 9, 2, 3]
    expected = [[0.0] * 3, *(fields["a"].tolist() for fields in rows[1:])]
    assert [found["a"].tolist() for found in data] == expected


def test_a_row_like_those_before_that_cannot_be_written_is_left_out(
    tmp_path, monkeypatch
):
    fields = {"a": torch.ones(3), "b": torch.tensor(1)}
    with DatasetWriter(tmp_path / "x") as writer:
        writer.append(fields)
        writer.append(fields)

        def failing(self, data):
            if self.path.endswith("b.memmap"):
                raise OSError(28, "No space")
            self.add(data)

        monkeypatch.setattr(GrowingFile, "add_short", failing)
        with pytest.raises(OSError, match="No space"):
            writer.append(fields)
        monkeypatch.undo()
        for wrong in ({"a": torch.ones(3)}, {**fields, "c": torch.ones(1)}):
            with pytest.raises(ValueError, match="keys"):
                writer.append(wrong)
        with pytest.raises(ValueError, match="torch.int64"):
            writer.append({**fields, "a": torch.arange(3)})
        assert len(writer) == 2
        writer.append({"a": torch.zeros(3), "b": torch.tensor(2)})
    data = TensorDict.load_memmap(tmp_path / "x")
    assert data["a"].sum(1).tolist() == [3, 3, 0]
    assert data["b"].tolist() == [1, 1, 2]


@pytest.mark.parametrize("transform", [None, lambda item: item])
def test_items_that_are_tuples_need_a_function(tmp_path, transform):
    items = torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.arange(3))
    with pytest.raises(TypeError, match=r"got tuple\. Pass transform="):
        DatasetWriter.from_iterable(tmp_path / "x", items, transform=transform)
    assert (
        DatasetWriter.from_iterable(
            tmp_path / "y", items, transform=lambda item: {"x": item[0], "y": item[1]}
        )
        == 3
    )
    assert TensorDict.load_memmap(tmp_path / "y")["y"].tolist() == [0, 1, 2]
