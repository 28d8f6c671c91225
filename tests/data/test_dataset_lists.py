"""Lists in rows: empty ones, which have no dtype of their own, and names of classes."""

import pytest
import torch

from tensordict import NonTensorData, TensorDict, lazy_stack, tensorclass
from tensordict.data import DatasetReader, DatasetWriter, gather
from tensordict.storage.growing import column, file

INT = torch.int64


def written(path, rows, how="append"):
    with DatasetWriter(path) as writer:
        if how == "extend":
            writer.extend(rows)
        for row in rows if how != "extend" else ():
            writer.append(row)
            if how == "flush":
                writer.flush()
    return TensorDict.load_memmap(path)


def values(data, key="ids"):
    rows = [row[key] for row in data]
    return [
        (row.dtype, row.tolist()) if isinstance(row, torch.Tensor) else row
        for row in rows
    ]


@pytest.fixture(params=["append", "extend", "flush"])
def how(request):
    return request.param


@pytest.mark.parametrize(
    ("lists", "dtype"),
    [
        ([[], [1]], INT),
        ([[1], []], INT),
        ([[], [], [1, 2], []], INT),
        ([[], [0.5]], torch.float32),
        ([[], [True]], torch.bool),
        ([[], []], torch.float32),
        ([(), (1,)], INT),
        ([[], torch.tensor([1, 2], dtype=torch.int16)], torch.int16),
    ],
)
def test_an_empty_list_has_the_dtype_of_its_column(tmp_path, how, lists, dtype):
    data = written(tmp_path, [{"ids": ids, "n": 0} for ids in lists], how)
    assert values(data) == [(dtype, list(ids)) for ids in lists]
    assert data["n"].tolist() == [0] * len(lists)


def test_empty_lists_of_texts(tmp_path, how):
    lists = [[], ["a"], [], ["b", "c"]]
    assert values(written(tmp_path, [{"ids": ids} for ids in lists], how)) == lists


def test_empty_lists_of_nested_entries(tmp_path, how):
    rows = [{"n": {"ids": []}}, {"n": {"ids": [2]}}]
    data = written(tmp_path, rows, how)
    assert values(data["n"]) == [(INT, []), (INT, [2])]
    assert gather(data, [1, 0], ragged="padded")["n", "ids"].tolist() == [[2], [0]]


def test_empty_lists_of_lists(tmp_path, how):
    lists = [[], [[1, 2], [3, 4]], [], [[5, 6]]]
    data = written(tmp_path, [{"ids": ids} for ids in lists], how)
    assert values(data) == [(INT, ids) for ids in lists]
    jagged = gather(data, range(4), ragged="jagged")["ids"]
    assert [part.tolist() for part in jagged.unbind()] == lists
    assert gather(data, [0, 3], ragged="padded")["ids"].tolist() == [[[0, 0]], [[5, 6]]]


def test_a_writer_that_is_opened_again_decides_the_dtype(tmp_path):
    old = written(tmp_path, [{"ids": []}] * 2)
    data = written(tmp_path, [{"ids": [7]}])
    assert values(data) == [(INT, []), (INT, []), (INT, [7])]
    assert values(old) == [(torch.float32, [])] * 2


def test_an_empty_list_is_no_number(tmp_path):
    with DatasetWriter(tmp_path / "a") as writer:
        writer.append({"ids": []})
        with pytest.raises(ValueError, match="a column of lists"):
            writer.append({"ids": 3})
        writer.append({"ids": [3]})
    assert values(TensorDict.load_memmap(tmp_path / "a")) == [(INT, []), (INT, [3])]
    with DatasetWriter(tmp_path / "b") as writer:
        writer.append({"ids": 3})
        with pytest.raises(ValueError, match="which is a tensor"):
            writer.append({"ids": []})
        with pytest.raises(ValueError, match=r"in another \(\[\]\)"):
            writer.extend([{"ids": 3}, {"ids": []}])
    assert TensorDict.load_memmap(tmp_path / "b")["ids"].tolist() == [3]


def test_a_value_among_tensors_is_named(tmp_path):
    with DatasetWriter(tmp_path) as writer:
        for wrong in ([1, None], None, [[1], [2, 3]], "text"):
            rows = [{"ids": [1]}, TensorDict(ids=NonTensorData(wrong))]
            with pytest.raises(ValueError, match="tensor in one row and a value"):
                writer.extend(rows)
        assert len(writer) == 0


def test_a_row_that_cannot_be_written_decides_nothing(tmp_path, monkeypatch):
    with DatasetWriter(tmp_path) as writer:
        writer.append({"ids": [], "z": torch.zeros(2)})
        add = file.GrowingFile.add
        own = column.Column.add

        def failing(self, fitted, count):
            own(self, fitted, count)
            if self.key == "z":
                raise OSError(28, "No space")

        monkeypatch.setattr(column.Column, "add", failing)
        with pytest.raises(OSError, match="No space"):
            writer.append({"ids": [1, 2], "z": torch.ones(2)})
        monkeypatch.undo()
        assert file.GrowingFile.add is add
        writer.append({"ids": [0.5], "z": torch.ones(2)})
    data = TensorDict.load_memmap(tmp_path)
    assert values(data) == [(torch.float32, []), (torch.float32, [0.5])]


@tensorclass
class Row:
    a: torch.Tensor


def test_rows_of_another_shape_than_those_that_were_announced(tmp_path):
    for name, like in (
        ("one", TensorDict(a=torch.ones(2))),
        ("batch", TensorDict(a=torch.ones(5, 2), batch_size=[5])),
        ("none", TensorDict(a=torch.ones(0, 2), batch_size=[0])),
        ("class", Row(torch.ones(2))),
    ):
        with DatasetWriter(tmp_path / name, like=like) as writer:
            row = torch.arange(3.0)
            writer.append(Row(row) if name == "class" else {"a": row})
            writer.extend([Row(row)] if name == "class" else [{"a": row[:1]}])
        data = TensorDict.load_memmap(tmp_path / name)
        assert data[0].get("a").tolist() == [0, 1, 2]
        assert len(data) == 2


def test_rows_of_another_dtype_say_their_own_shape(tmp_path):
    with DatasetWriter(tmp_path) as writer:
        writer.append({"a": torch.ones(2)})
        words = r"dtype torch.int64 and shape \(2,\).*\.to\(torch.float32\)"
        with pytest.raises(ValueError, match=words):
            writer.append({"a": torch.arange(2)})
        with pytest.raises(
            ValueError, match=r"shape \(2, 1\).*number of their dimensions"
        ):
            writer.append({"a": torch.ones(2, 1)})
        writer.append({"a": torch.ones(3)})
        with pytest.raises(ValueError, match=words):
            writer.append({"a": torch.arange(2)})
        with pytest.raises(ValueError, match=r"torch.int64 and shape \[\[1\], \[2\]\]"):
            writer.extend(lazy_stack([TensorDict(a=torch.arange(n)) for n in (1, 2)]))
        assert len(writer) == 2


# Hugging Face -------------------------------------------------------------------------


def from_features(path, rows, features=None, **options):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list(rows, features=features)
    DatasetWriter.from_hugging_face(path, made, **options)
    return TensorDict.load_memmap(path)


def test_a_dict_of_splits_is_refused(tmp_path):
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict(train=datasets.Dataset.from_list([{"a": 1}]))
    with pytest.raises(TypeError, match="got DatasetDict.*splits"):
        DatasetWriter.from_hugging_face(tmp_path / "data", splits)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("lists", [[[1], []], [[], [1]], [[], []]])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_features_say_the_dtype_of_empty_lists(tmp_path, lists, num_workers):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(ids=datasets.Sequence(datasets.Value("int32")))
    rows = [{"ids": ids} for ids in lists]
    data = from_features(tmp_path, rows, features, num_workers=num_workers)
    assert values(data) == [(INT, ids) for ids in lists]


def test_features_of_nested_lists_and_of_structures(tmp_path):
    rows = [
        {"m": [], "s": {"x": []}, "t": [], "e": ""},
        {"m": [[0.5, 1.5]], "s": {"x": [1]}, "t": ["a"], "e": "b"},
    ]
    data = from_features(tmp_path, rows)
    assert data[0]["m"].shape == (0, 2)
    assert data[1]["m"].tolist() == [[0.5, 1.5]]
    assert values(data["s"], "x") == [(INT, []), (INT, [1])]
    assert values(data, "t") == [[], ["a"]]
    assert values(data, "e") == ["", "b"]


def test_streamed_rows(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list([{"ids": []}, {"ids": [1]}]).to_iterable_dataset()
    DatasetWriter.from_hugging_face(tmp_path, made)
    assert values(TensorDict.load_memmap(tmp_path)) == [(INT, []), (INT, [1])]


def test_names_of_classes_are_kept(tmp_path):
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features(
        label=label, n={"kind": label}, several=datasets.Sequence(label)
    )
    rows = [
        {"label": 0, "n": {"kind": 1}, "several": [0, 1]},
        {"label": 1, "n": {"kind": 0}, "several": []},
    ]
    from_features(tmp_path / "x", rows, features)
    reader = DatasetReader(tmp_path / "x")
    assert reader.class_names == {
        "label": ["cat", "dog"],
        ("n", "kind"): ["cat", "dog"],
        "several": ["cat", "dog"],
    }
    back = reader.to_hf()
    assert back.features["label"].names == ["cat", "dog"]
    assert back.features["n"]["kind"].names == ["cat", "dog"]
    assert back.features["several"].feature.names == ["cat", "dog"]
    assert back[:]["label"] == [0, 1]
    assert back[0]["several"] == [0, 1]
    DatasetWriter.from_hugging_face(tmp_path / "again", back)
    assert DatasetReader(tmp_path / "again").class_names == reader.class_names


def test_names_of_classes_of_other_sources(tmp_path):
    names = {"label": ["no", "yes"]}
    row = {"label": 1}
    for part in range(2):
        with DatasetWriter(tmp_path / "x", part=part, class_names=names) as writer:
            writer.append(row)
    DatasetWriter.join(tmp_path / "x")
    assert DatasetReader(tmp_path / "x").class_names == names
    with pytest.raises(ValueError, match="would not mean the same"):
        DatasetWriter(tmp_path / "x", class_names={"label": ["yes", "no"]})
    with pytest.raises(KeyError, match="'other', which is not an entry"):
        DatasetWriter(tmp_path / "x", class_names={"other": ["yes", "no"]})
    with DatasetWriter(tmp_path / "x") as writer:
        writer.append(row)
    assert DatasetReader(tmp_path / "x").class_names == names
    with DatasetWriter(tmp_path / "class", class_names={"a": ["x"]}) as writer:
        writer.append(Row(torch.tensor(0)))
    assert DatasetReader(tmp_path / "class").class_names == {"a": ["x"]}


# Readers ------------------------------------------------------------------------------


def test_a_path_without_a_dataset_is_an_error_at_once(tmp_path):
    written(tmp_path / "digits", [{"a": 1}])
    with pytest.raises(FileNotFoundError, match=r"one named 'digits'.*wait=True"):
        DatasetReader(tmp_path / "digit")
    with pytest.raises(FileNotFoundError, match="the directory contains no dataset"):
        DatasetReader(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="it is a file"):
        DatasetReader(tmp_path / "file")
    with pytest.raises(TimeoutError, match="no rows after 0.0 s"):
        DatasetReader(tmp_path / "digit", wait=0)


def test_a_reader_waits_for_a_writer(tmp_path, monkeypatch):
    def publish(seconds):
        written(tmp_path / "x", [{"a": 1}])

    monkeypatch.setattr("tensordict.data.writer.reader.time.sleep", publish)
    reader = DatasetReader(tmp_path / "x", wait=True)
    assert reader["a"].tolist() == [1]
    # One that is there is not waited for.
    monkeypatch.setattr("tensordict.data.writer.reader.time.sleep", None)
    assert len(DatasetReader(tmp_path / "x", wait=True)) == 1


def test_a_writer_without_rows_is_a_dataset(tmp_path):
    with DatasetWriter(tmp_path / "x"):
        reader = DatasetReader(tmp_path / "x")
        assert len(reader) == 0
        with pytest.raises(FileNotFoundError, match="no rows yet"):
            _ = reader.data
