"""MDS datasets that release 0.15.3 wrote, and what it answers."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from tensordict import from_mds

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
try:
    import topic_mds
finally:
    sys.path.remove(str(FOLDER))

# Streaming leaves it to the collector to close the files that it unpacks.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HERE = FOLDER / "mds_0_15_3"
ANSWERS = json.loads((HERE / "answers.json").read_text())

OURS = {
    **{
        f"scalars of {name}": [{"a": name}, 2]
        for name in ("uint8", "int8", "int16", "int32")
    },
    "nested": [{"n.b": "float32"}, 2],
    "two batch dims": [{"a": "ndarray"}, 2],
}
"""The cases in which our answer differs: dtypes are kept, and what fails there is
written."""


@pytest.fixture(autouse=True)
def streaming():
    return pytest.importorskip("streaming")


@pytest.mark.parametrize("folder", ["plain", "packed"])
def test_files_of_the_release(folder, tmp_path):
    # Reading unpacks files, beside the packed ones.
    copy = shutil.copytree(HERE / folder, tmp_path / "copy")
    found = from_mds(copy, separator=None)
    expected = topic_mds.dataset()
    assert found.batch_size == expected.batch_size
    assert set(found.keys()) == set(expected.keys())
    for key, value in expected.items():
        other = found._get_entry(key, None)
        if isinstance(value, torch.Tensor):
            assert value.dtype == other.dtype
            assert torch.equal(value, other)
        else:
            assert list(value.tolist()) == list(other.tolist())
    assert torch.equal(from_mds(copy)["n", "b"], expected["n.b"])


@pytest.mark.parametrize("name", ANSWERS)
def test_the_encodings_are_those_of_the_release(name):
    found = topic_mds.answer(topic_mds.programs()[name])
    expected = OURS.get(name, ANSWERS[name])
    if isinstance(expected, str):
        # The classes differ: an error here names the key before anything is written.
        assert found in ("TypeError", "ValueError")
    else:
        assert found == expected
