"""Datasets that are made of folders, tables, and the formats of others."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch

from tensordict import TensorDict
from tensordict.data import DatasetWriter


def load(path) -> TensorDict:
    return TensorDict.load_memmap(path)


def squared(number: int) -> dict:
    return {"x": torch.full((number % 3,), number), "n": number * number}


@pytest.mark.parametrize(
    "how",
    [{}, {"num_workers": 2}, {"num_workers": 2, "backend": "processes"}],
    ids=["here", "threads", "processes"],
)
@pytest.mark.filterwarnings("ignore:This process")
def test_items_are_converted_in_their_order(how, tmp_path):
    count = DatasetWriter.from_iterable(tmp_path, range(70), transform=squared, **how)
    assert count == 70
    loaded = load(tmp_path)
    assert loaded["n"].tolist() == [number * number for number in range(70)]
    assert loaded[5]["x"].tolist() == [5, 5]


def test_a_killed_run_is_started_again(tmp_path):
    def failing(number):
        if number == 40:
            raise KeyboardInterrupt
        return squared(number)

    with pytest.raises(KeyboardInterrupt):
        DatasetWriter.from_iterable(tmp_path, range(70), transform=failing)
    assert load(tmp_path).batch_size == (32,)
    again = DatasetWriter.from_iterable(
        tmp_path, range(70), transform=squared, resume=True
    )
    assert again == 70
    assert load(tmp_path)["n"].tolist() == [number * number for number in range(70)]


def test_an_error_of_a_worker_arrives(tmp_path):
    def failing(number):
        msg = f"item {number}"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="item 0"):
        DatasetWriter.from_iterable(
            tmp_path / "x", range(3), transform=failing, num_workers=2
        )
    assert not (tmp_path / "x").exists()


def test_values_of_many_kinds_and_a_bar(tmp_path, capsys):
    item = {
        "array": np.arange(3),
        "number": np.float32(2.5),
        "list": [[1, 2], [3, 4]],
        "text": "x",
        "nested": {"flag": True, "none": None},
        "names": ["a", "b"],
    }
    DatasetWriter.from_iterable(tmp_path, [item] * 3, pbar=True)
    assert "3/3" in capsys.readouterr().err
    row = load(tmp_path)[2]
    assert row["array"].tolist() == [0, 1, 2]
    assert row["number"].dtype is torch.float32
    assert row["list"].shape == (2, 2)
    assert row["text"] == "x"
    assert row["nested", "flag"].item() is True
    assert row.get(("nested", "none")).data is None
    assert row["names"] == ["a", "b"]


def test_a_folder_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, size in (("cat", (4, 3)), ("dog", (2, 5))):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(2):
            pixels = np.full((*size, 3), number, np.uint8)
            image.fromarray(pixels).save(tmp_path / "in" / name / f"{number}.png")
    (tmp_path / "in" / "notes.txt").write_text("no image")
    count = DatasetWriter.from_folder(tmp_path / "x", tmp_path / "in", num_workers=2)
    assert count == 4
    loaded = load(tmp_path / "x")
    assert loaded["label"].tolist() == [0, 0, 1, 1]
    assert loaded[1]["file"] == "cat/1.png"
    assert loaded[1]["image"].shape == (3, 4, 3)
    assert loaded[3]["image"].shape == (3, 2, 5)
    assert (loaded[3]["image"] == 1).all()
    DatasetWriter.from_folder(tmp_path / "y", tmp_path / "in", size=(2, 2))
    assert load(tmp_path / "y")["image"].shape == (4, 3, 2, 2)
    with pytest.raises(FileNotFoundError, match="no files"):
        DatasetWriter.from_folder(tmp_path / "z", tmp_path / "in", suffixes=[".jpg"])


def test_a_folder_of_arrays(tmp_path):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full((number, 2), number))
    DatasetWriter.from_folder(tmp_path / "x", tmp_path)
    assert load(tmp_path / "x")[2]["array"].tolist() == [[2, 2], [2, 2]]
    assert "label" not in load(tmp_path / "x").keys()


def test_tables_of_arrow_and_files_of_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {
            "a": [1, 2, 3],
            "text": ["x", "yy", ""],
            "ragged": [[1.0, 2.0], [], [3.0]],
            "data": [b"\x00", b"", b"ab"],
            "st": [{"q": 1}, {"q": 2}, {"q": 3}],
        }
    )
    assert DatasetWriter.from_arrow(tmp_path / "x", table) == 3
    batches = table.to_batches(max_chunksize=2)
    assert DatasetWriter.from_arrow(tmp_path / "y", batches[:1]) == 2
    assert DatasetWriter.from_arrow(tmp_path / "y", batches, resume=True) == 3
    parquet.write_table(table, tmp_path / "t.parquet")
    count = DatasetWriter.from_parquet(
        tmp_path / "z", [tmp_path / "t.parquet"] * 2, columns=["a", "ragged"]
    )
    assert count == 6
    assert load(tmp_path / "z")["a"].tolist() == [1, 2, 3] * 2
    for name in "xy":
        row = load(tmp_path / name)[2]
        assert row["a"] == 3
        assert row["ragged"].tolist() == [3.0]
        assert (row["text"], row["data"]) == ("", b"ab")
        assert row["st", "q"] == 3
    with pytest.raises(ValueError, match="null"):
        DatasetWriter.from_arrow(tmp_path / "n", pa.table({"a": [1, None]}))


def test_a_dataset_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_dict(
        {"text": ["a", "bb", "c"], "tokens": [[1], [2, 3], [4]], "label": [0, 1, 0]}
    )
    count = DatasetWriter.from_hugging_face(tmp_path / "x", found, num_workers=2)
    assert count == 3
    streamed = found.to_iterable_dataset()
    assert DatasetWriter.from_hugging_face(tmp_path / "y", streamed) == 3
    for name in "xy":
        loaded = load(tmp_path / name)
        assert loaded[1]["tokens"].tolist() == [2, 3]
        assert loaded["label"].tolist() == [0, 1, 0]
        assert loaded[1]["text"] == "bb"


def test_shards_of_webdataset(tmp_path):
    image = pytest.importorskip("PIL.Image")
    files = []
    for number in range(3):
        made = io.BytesIO()
        image.new("L", (number + 1, 2), number).save(made, "png")
        array = io.BytesIO()
        np.save(array, np.arange(number + 1))
        files += [
            (f"s/{number}.png", made.getvalue()),
            (f"s/{number}.cls", str(number).encode()),
            (f"s/{number}.npy", array.getvalue()),
            (f"s/{number}.json", json.dumps({"k": number}).encode()),
            (f"s/{number}.raw", b"\xff"),
        ]
    with tarfile.open(tmp_path / "0.tar", "w") as opened:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            opened.addfile(member, io.BytesIO(data))
    count = DatasetWriter.from_webdataset(tmp_path / "x", tmp_path / "0.tar")
    assert count == 3
    row = load(tmp_path / "x")[2]
    assert row["png"].shape == (1, 2, 3)
    assert (row["cls"], row["json", "k"], row["raw"]) == (2, 2, b"\xff")
    assert row["npy"].tolist() == [0, 1, 2]
    assert row["__key__"] == "s/2"
