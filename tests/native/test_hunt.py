"""No program can end the process, make it stand still, or make Rust panic: see ``hunt.py``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HUNT = Path(__file__).with_name("hunt.py")


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it forks")


@pytest.mark.timeout(3000)
def test_whatever_is_done_to_containers_raises_an_exception_at_worst(tmp_path):
    environment = dict(os.environ, OMP_NUM_THREADS="1", TMPDIR=str(tmp_path))
    # Freed memory is overwritten, so that a read of it is noticed.
    environment["PYTHONMALLOC"] = "debug"
    done = subprocess.run(
        [sys.executable, str(HUNT)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [line for line in told if "case" in line]
    assert (wrong, done.returncode) == ([], 0), done.stderr[-2000:]
    assert len(told) == 12, "each group came to its end"


def test_the_hunt_tries_every_public_operation():
    sys.path.insert(0, str(HUNT.parent))
    from programs import untried

    # These are for the compiler, other machines and devices that are not here, read other
    # files, come later, or are deprecated by torch; `share_memory_` is in tests/concurrent.
    assert untried() <= {
        "all_gather",
        "all_reduce",
        "arecv",
        "asend",
        "broadcast",
        "from_csv",
        "from_h5",
        "from_json",
        "from_pandas",
        "from_parquet",
        "from_polars",
        "from_ray_dataset",
        "from_zarr",
        "gather_and_stack",
        "irecv",
        "isend",
        "map",
        "map_iter",
        "recv",
        "send",
        "to_csv",
        "to_h5",
        "to_json",
        "to_mds",
        "to_pandas",
        "to_parquet",
        "to_polars",
        "to_ray_dataset",
        "to_store",
        "to_zarr",
        "clear_refs_for_compile_",
        "from_consolidated",
        "from_nontensordata",
        "from_remote_init",
        "from_schema",
        "hook_in",
        "hook_out",
        "init_remote",
        "load_",
        "make_memmap_from_storage",
        "pin_memory",
        "pin_memory_",
        "qint32",
        "qint8",
        "quint4x2",
        "quint8",
        "record_stream",
        "share_memory_",
        "stack_dim",
    }
