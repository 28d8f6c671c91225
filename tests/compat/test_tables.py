"""Files of CSV, JSON and Parquet that release 0.15.3 wrote, and files for it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from topic_tables import HERE, KINDS, dtypes, numbers, texts, write  # noqa: E402

from tensordict import TensorDict  # noqa: E402

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def read(kind, path, **how):
    return getattr(TensorDict, f"from_{kind}")(path, **how)


def check(found, expected):
    assert list(found.keys(True, True)) == list(expected.keys(True, True))
    for key in expected.keys(True, True):
        assert found[key].dtype == expected[key].dtype
        assert found[key].tolist() == expected[key].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_the_release(kind):
    check(read(kind, HERE / f"numbers.{kind}", separator="."), numbers())


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_the_release(kind):
    assert read(kind, HERE / f"texts.{kind}")["s"] == ["x", None, 'é,"y"']


def test_lines_of_the_release():
    check(read("json", HERE / "lines.json", lines=True, separator="."), numbers())


def test_dtypes_of_the_release():
    check(read("parquet", HERE / "dtypes.parquet"), dtypes())


def test_what_is_written_is_what_the_release_writes(tmp_path):
    write(tmp_path / "ours")
    for name in (
        "numbers.csv",
        "texts.csv",
        "numbers.json",
        "texts.json",
        "lines.json",
    ):
        assert (tmp_path / "ours" / name).read_bytes() == (HERE / name).read_bytes()
    assert texts()["s"] == read("parquet", tmp_path / "ours" / "texts.parquet")["s"]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
