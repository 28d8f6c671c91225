"""Arrays of NumPy and JAX over the memory of tensors, and the other way round."""

import sys
import types

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


@pytest.mark.parametrize("dtype", [*EVERYWHERE, *SHORT], ids=str)
def test_jax_shares_both_ways(dtype):
    pytest.importorskip("jax")
    td = TensorDict(n={"a": values(dtype)}, batch_size=[2])
    arrays = to_dlpack(td, "jax")
    assert arrays["n"]["a"].unsafe_buffer_pointer() == td["n", "a"].data_ptr()
    for back in (from_dlpack(arrays), TensorDict.from_any(arrays)):
        assert back["n", "a"].dtype == dtype
        assert back["n", "a"].data_ptr() == td["n", "a"].data_ptr()


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_jax_does_not_narrow_in_silence(dtype):
    pytest.importorskip("jax")
    with pytest.raises(TypeError, match=rf"{dtype} at 'a'.*jax_enable_x64"):
        to_dlpack(TensorDict(a=values(dtype)), "jax")


def test_from_any_of_arrays_of_jax():
    jnp = pytest.importorskip("jax.numpy")
    array = jnp.arange(6).reshape(3, 2)
    td = TensorDict.from_any(
        {"a": array, "n": {"b": array[:, 0]}}, auto_batch_size=True
    )
    assert td.batch_size == (3,)
    assert td["n", "b"].tolist() == [0, 2, 4]
    assert td["a"].data_ptr() == array.unsafe_buffer_pointer()
    assert TensorDict.from_dict({"a": array})["a"].dtype == torch.int32
    assert torch.equal(TensorDict.from_any(array), td["a"])


def test_an_array_that_torch_lacks_stays_what_it_is():
    jnp = pytest.importorskip("jax.numpy")
    array = jnp.zeros(2, dtype="int4")
    assert TensorDict.from_any({"a": array})["a"] is array
    with pytest.raises(TypeError, match=r"dtype int4 at \('n', 'a'\)"):
        from_dlpack({"n": {"a": array}})


def test_rows_with_gaps():
    pytest.importorskip("jax")
    td = TensorDict(a=torch.arange(6).int().view(3, 2)[:, 1], batch_size=[3])
    assert to_dlpack(td)["a"].tolist() == [1, 3, 5]
    assert to_dlpack(td, "jax")["a"].tolist() == [1, 3, 5]


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
