"""Arrays of JAX over the memory of tensors: run by ``test_dlpack.py`` in a process of its own."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tensordict import (
    TensorClass,
    TensorDict,
    UnbatchedTensor,
    from_dlpack,
    to_dlpack,
)

SHARED = (
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32),
    *(torch.int8, torch.int16, torch.int32),
    *(torch.float16, torch.float32, torch.complex64),
    *(torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
)
WIDE = (torch.int64, torch.uint64, torch.float64, torch.complex128)


def values(dtype):
    return (torch.arange(6).view(2, 3) % 2).to(dtype)


@pytest.mark.parametrize("dtype", SHARED, ids=str)
def test_jax_shares_both_ways(dtype):
    td = TensorDict(n={"a": values(dtype)}, batch_size=[2])
    arrays = to_dlpack(td, "jax")
    assert arrays["n"]["a"].unsafe_buffer_pointer() == td["n", "a"].data_ptr()
    back = from_dlpack(arrays, copy=False)
    assert back["n", "a"].data_ptr() == td["n", "a"].data_ptr()
    for copied in (from_dlpack(arrays), TensorDict.from_any(arrays)):
        assert copied["n", "a"].dtype == back["n", "a"].dtype == dtype
        assert torch.equal(copied["n", "a"], td["n", "a"])


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_jax_does_not_narrow_in_silence(dtype):
    with pytest.raises(TypeError, match=rf"{dtype} at 'a'.*jax_enable_x64"):
        to_dlpack(TensorDict(a=values(dtype)), "jax")


def test_from_any_of_arrays_of_jax():
    array = jnp.arange(6).reshape(3, 2)
    td = TensorDict.from_any(
        {"a": array, "n": {"b": array[:, 0]}}, auto_batch_size=True
    )
    assert td.batch_size == (3,)
    assert td["n", "b"].tolist() == [0, 2, 4]
    assert TensorDict.from_dict({"a": array})["a"].dtype == torch.int32
    assert torch.equal(TensorDict.from_any(array), td["a"])


class Autocast(TensorClass["autocast"]):
    a: torch.Tensor


def test_a_write_does_not_reach_an_array_of_jax():
    array = jnp.arange(3)
    made = [
        *(TensorDict.from_any({"a": array}), TensorDict.from_dict({"a": array})),
        *(from_dlpack({"a": array}), TensorDict(a=np.asarray(array))),
        *(TensorDict(a=UnbatchedTensor(array)), Autocast(a=array)),
    ]
    for td in made:
        td.get("a")[:] = 7
        assert td.get("a").tolist() == [7, 7, 7]
    assert array.tolist() == [0, 1, 2]


def test_an_array_that_torch_lacks_stays_what_it_is():
    array = jnp.zeros(2, dtype="int4")
    assert TensorDict.from_any({"a": array})["a"] is array
    with pytest.raises(TypeError, match=r"dtype int4 at \('n', 'a'\)"):
        from_dlpack({"n": {"a": array}})


def test_rows_with_gaps():
    td = TensorDict(a=torch.arange(6).int().view(3, 2)[:, 1], batch_size=[3])
    assert to_dlpack(td)["a"].tolist() == [1, 3, 5]
    assert to_dlpack(td, "jax")["a"].tolist() == [1, 3, 5]
