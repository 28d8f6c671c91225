"""The published release loads what the writers of datasets write.

It has to be there, and is run in a process of its own:
``TENSORDICT_RELEASE=/path/to/release pytest tests/compat/test_release_reads.py``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tensordict import TensorDict, lazy_stack
from tensordict.data import DatasetWriter

RELEASE = os.environ.get("TENSORDICT_RELEASE")

pytestmark = pytest.mark.skipif(
    RELEASE is None, reason="TENSORDICT_RELEASE does not say where the release is"
)

PROGRAM = """
import json, sys
from tensordict import TensorDict
import tensordict

assert tensordict.__version__.startswith("0.15.3"), tensordict.__version__
found = {}
for path in sys.argv[1:]:
    td = TensorDict.load_memmap(path)
    found[path] = {
        "size": list(td.batch_size),
        "values": {
            "/".join(key if isinstance(key, tuple) else (key,)): [
                row.tolist() for row in td.get(key).unbind(0)
            ]
            for key in td.keys(True, True)
        },
    }
print(json.dumps(found))
"""


def read_by_the_release(*paths: Path) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *map(str, paths)],
        env={**os.environ, "PYTHONPATH": str(RELEASE)},
        cwd=paths[0].parent,
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {path.name: found[str(path)] for path in paths}


def sample(length: int) -> TensorDict:
    return TensorDict(
        tokens=torch.arange(length),
        text=f"row {length}",
        n=TensorDict(image=torch.full((2, length), float(length))),
    )


def test_datasets_with_text_and_ragged_columns_are_loaded(tmp_path: Path) -> None:
    lengths = [3, 1, 2]
    rows = [sample(length) for length in lengths]
    lazy_stack(rows).memmap(tmp_path / "saved", ragged="columns")
    with DatasetWriter(tmp_path / "written") as writer:
        writer.extend(lazy_stack(rows[:2]))
        writer.append(rows[2])
    plain = TensorDict(x=torch.arange(6).view(3, 2), batch_size=[3])
    with DatasetWriter(tmp_path / "plain") as writer:
        writer.extend(plain)
        writer.append(plain[0])
    found = read_by_the_release(
        tmp_path / "saved", tmp_path / "written", tmp_path / "plain"
    )
    # To the release a text is its bytes.
    expected = {
        "tokens": [list(range(length)) for length in lengths],
        "text": [list(f"row {length}".encode()) for length in lengths],
        "n/image": [[[float(length)] * length] * 2 for length in lengths],
    }
    for name in ("saved", "written"):
        assert found[name] == {"size": [3], "values": expected}
    assert found["plain"]["values"] == {"x": [[0, 1], [2, 3], [4, 5], [0, 1]]}
