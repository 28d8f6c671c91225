"""Arrays of NumPy and JAX over the memory of tensors, and the other way round."""

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from tensordict import TensorDict, from_dlpack, lazy_stack, tensorclass, to_dlpack

EVERYWHERE = (
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32),
    *(torch.int8, torch.int16, torch.int32),
    *(torch.float16, torch.float32, torch.complex64),
)
WIDE = (torch.int64, torch.uint64, torch.float64, torch.complex128)
SHORT = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


@tensorclass
class Pair:
    a: torch.Tensor
    b: str


class Foreign:
    """An array of a library that has DLPack and nothing else."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.dtype = tensor.dtype

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__()

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def values(dtype):
    return (torch.arange(6).view(2, 3) % 2).to(dtype)


@pytest.mark.parametrize("dtype", [*EVERYWHERE, *WIDE], ids=str)
def test_numpy_shares_both_ways(dtype):
    td = TensorDict(n={"a": values(dtype)}, batch_size=[2])
    arrays = to_dlpack(td)
    assert arrays["n"]["a"].ctypes.data == td["n", "a"].data_ptr()
    back = from_dlpack(arrays, batch_size=[2])
    assert back["n", "a"].dtype == dtype
    assert back["n", "a"].data_ptr() == td["n", "a"].data_ptr()


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_numpy_lacks_short_floats(dtype):
    with pytest.raises(TypeError, match=rf"{dtype} at \('n', 'a'\)"):
        to_dlpack(TensorDict(n={"a": values(dtype)}))


def test_any_library_with_dlpack():
    tensor = torch.arange(3)
    td = from_dlpack({"a": Foreign(tensor)}, auto_batch_size=True)
    assert td["a"].data_ptr() == tensor.data_ptr()
    assert TensorDict.from_any({"a": Foreign(tensor)})["a"].tolist() == [0, 1, 2]
    module = types.SimpleNamespace(__name__="mine", from_dlpack=Foreign)
    assert to_dlpack(td, module)["a"].tensor is td["a"]
    with pytest.raises(TypeError, match="from_dlpack function"):
        to_dlpack(td, object())
    with pytest.raises(ValueError, match="'cupy', 'jax', 'numpy'"):
        to_dlpack(td, "torch")
    with pytest.raises(TypeError, match="collection"):
        to_dlpack({})


def test_arrays_that_are_copied():
    locked = np.arange(3)
    locked.flags.writeable = False
    arrays = {
        "locked": locked,
        "reversed": np.arange(3)[::-1],
        "swapped": np.arange(3, dtype=">i4"),
    }
    td = from_dlpack(arrays, auto_batch_size=True, names=["row"])
    assert td["reversed"].tolist() == [2, 1, 0]
    assert td["swapped"].tolist() == [0, 1, 2]
    td["locked"] += 1
    assert locked.tolist() == [0, 1, 2]
    assert td.names == ["row"]


def test_what_is_no_array_goes_by_the_rules_of_entries():
    texts = np.array(["x", "y"])
    td = from_dlpack({"s": "x", "n": 3, "t": texts, "a": np.zeros(2)}, batch_size=[])
    assert td["s"] == "x"
    assert td["n"] == 3
    assert list(td["t"]) == ["x", "y"]
    assert from_dlpack(np.arange(2), device="cpu").tolist() == [0, 1]


@pytest.mark.parametrize(
    "td",
    [
        lazy_stack(
            [TensorDict(a=torch.ones(2), b="x"), TensorDict(a=torch.ones(2), b="y")]
        ),
        Pair(a=torch.ones(2, 2), b="x", batch_size=[2]),
        TensorDict(a=torch.ones(3, 2), b="x", batch_size=[3])._get_sub_tensordict(
            slice(2)
        ),
    ],
    ids=["stack", "class", "view"],
)
def test_all_collections(td):
    arrays = to_dlpack(td)
    assert arrays["a"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert arrays["b"] in ("x", ["x", "y"])


def test_what_has_no_array():
    with pytest.raises(TypeError, match="'a'.*detach"):
        to_dlpack(TensorDict(a=torch.ones(2, requires_grad=True)))
    rows = [torch.ones(1), torch.ones(2)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    with pytest.raises(TypeError, match="'a'.*pad"):
        to_dlpack(TensorDict(a=nested))
    conjugate = torch.tensor([1j]).conj()
    assert to_dlpack(TensorDict(a=conjugate))["a"].tolist() == [-1j]


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    for name, module in (("jax", "jax.numpy"), ("cupy", "cupy")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=f"pip install {name}"):
            to_dlpack(TensorDict(), name)


def test_arrays_of_jax():
    # JAX has threads, and warns of every fork that follows in its process.
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    cases = Path(__file__).with_name("jax_cases.py")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            cases,
        ],
        cwd=cases.parents[2],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
