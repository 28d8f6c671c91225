"""Files of HDF5 alone."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tensordict import NonTensorStack, PersistentTensorDict, TensorDict, from_h5

h5py = pytest.importorskip("h5py")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.h5"


def write(path):
    td = TensorDict(a=torch.arange(6.0).reshape(3, 2), n={"b": torch.ones(3)})
    td.auto_batch_size_(1).to_h5(path).close()


@pytest.mark.parametrize("size", [0, 1, 100, -1])
def test_a_file_that_is_cut_is_named(path, size):
    write(path)
    content = path.read_bytes()
    path.write_bytes(content[:size])
    with pytest.raises(OSError, match="data.h5.*(empty|not an HDF5 file|cut)"):
        from_h5(path)
    assert path.read_bytes() == content[:size]


def test_a_file_of_another_kind_is_named(path):
    path.write_text("no file of HDF5 at all")
    for mode in ("r", "r+", "a"):
        with pytest.raises(OSError, match="data.h5.*not an HDF5 file"):
            from_h5(path, mode=mode)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "missing" / "data.h5"
    with pytest.raises(FileNotFoundError, match="missing"):
        TensorDict(a=torch.zeros(2)).to_h5(path)


def test_a_file_that_is_open_elsewhere_is_named(path):
    write(path)
    program = (
        "import h5py, sys\n"
        "with h5py.File(sys.argv[1], 'r+'):\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        try:
            assert other.stdout.readline() == b"open\n"
            for mode in ("r", "r+"):
                with pytest.raises(OSError, match="data.h5.*open elsewhere"):
                    from_h5(path, mode=mode)
        finally:
            other.communicate(b"\n", timeout=60)
    from_h5(path).close()


def test_a_file_that_this_process_has_open_is_named(path):
    write(path)
    with from_h5(path), pytest.raises(OSError, match="data.h5"):
        PersistentTensorDict(filename=path, mode="w")
    with from_h5(path) as td:
        # It takes the place of the one that is open, which stays what it is.
        TensorDict(c=torch.zeros(1)).to_h5(path).close()
        assert set(td.keys()) == {"a", "n"}


def test_a_group_that_is_open_is_left_open(path):
    write(path)
    with h5py.File(path, "r+") as file:
        with PersistentTensorDict(group=file["n"], batch_size=[3], mode="r") as td:
            assert td["b"].tolist() == [1, 1, 1]
            td["c"] = torch.zeros(3)
            assert td.file == file["n"]
        assert "c" in file["n"]


def test_what_others_change_in_an_open_file_is_seen(path):
    write(path)
    with from_h5(path, mode="r+") as td:
        td["a"]
        del td.file["a"]
        assert "a" not in td
        td.file["a"] = np.arange(3)
        assert td["a"].tolist() == [0, 1, 2]
        td.file.create_dataset("rows", data=np.zeros(3), maxshape=(None,))
        assert td["rows"].shape == (3,)
        td.file["rows"].resize((5,))
        assert td["rows"].shape == (5,)


def test_arrays_of_others(path):
    with h5py.File(path, "w") as file:
        file["big"] = np.arange(3, dtype=">i4")
        file["flag"] = np.array([True, False, True])
        file["fixed"] = np.array([b"a", b"bb", b"c"])
        file["text"] = ["x", "y", "z"]
        file["one"] = "text"
        file["g/f"] = np.zeros((3, 2), dtype=np.float32)
        file["soft"] = h5py.SoftLink("/big")
        file["gone"] = h5py.SoftLink("/nothing")
        file["pair"] = np.zeros(3, dtype=[("x", "f4"), ("y", "i8")])
        file["none"] = h5py.Empty("f4")
    with from_h5(path) as td:
        assert td.batch_size == (3,)
        assert td["big"].tolist() == td["soft"].tolist() == [0, 1, 2]
        assert td[1]["big"] == 1
        assert td["flag"].dtype is torch.bool
        assert td["fixed"].tolist() == [b"a", b"bb", b"c"]
        assert td["text"].tolist() == [b"x", b"y", b"z"]
        assert td["one"] == b"text"
        assert td["pair"].dtype.names == ("x", "y")
        assert td["none"] is None
        assert "gone" not in td
        assert td.get("gone") is None
        assert td["g"].batch_size == (3, 2)
    with from_h5(path, non_tensor_as_stack=True) as td:
        assert isinstance(td.get("text"), NonTensorStack)
        assert td[1]["text"] == b"y"
        assert list(td[1:]["fixed"]) == [b"bb", b"c"]


def test_options_are_those_of_h5py(path):
    td = TensorDict(a=torch.zeros(100, 4), s=torch.tensor(1.0))
    td["t"] = "text"
    with td.to_h5(path, compression="gzip", chunks=True, shuffle=True) as found:
        assert found.file["a"].compression == "gzip"
        assert found.file["a"].chunks
        assert found["s"] == 1
        assert found["t"] == "text"
    with pytest.raises((TypeError, ValueError)):
        td.to_h5(path, compression="nonsense")
    with from_h5(path) as found:
        assert found["t"] == "text"
    assert os.listdir(path.parent) == ["data.h5"]


def test_a_new_file_has_the_permissions_of_the_one_that_it_replaces(path):
    write(path)
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    path.chmod(0o640)
    write(path)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_to_a_file_stays_one(path, tmp_path):
    write(path)
    link = Path(tmp_path / "link.h5")
    link.symlink_to(path)
    TensorDict(c=torch.zeros(1)).to_h5(link).close()
    assert link.is_symlink()
    with from_h5(path) as td:
        assert set(td.keys()) == {"c"}
