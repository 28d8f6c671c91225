"""A size that nobody has the memory for is an exception, and not the end of the process."""

import os

import pytest
import torch

from separate_process import check_separately
from tensordict import TensorDict


def test_huge_batch_sizes(tmp_path):
    check_separately(
        """
        for size in (2**40, 2**62):
            views = TensorDict({}, [size, 2])._get_sub_tensordict((slice(None), 0))
            nested = TensorDict({"n": TensorDict({}, [size])}, [size])
            stack = LazyStackedTensorDict(*[TensorDict({}, [size])] * 2, stack_dim=1)
            for td in (TensorDict({}, [size]), nested, views, stack):
                assert next(iter(td)).batch_size == td.batch_size[1:]
                for make in (
                    lambda: td.unbind(0),
                    lambda: td.tolist(),
                    lambda: td.split(1),
                    lambda: td.chunk(size),
                    lambda: td.tensor_split(size),
                ):
                    with pytest.raises(MemoryError):
                        make()
        """,
        tmp_path,
    )


@pytest.mark.parametrize("name", ["meta.json", "a.tdz", "a.safetensors", "a.bin"])
def test_files_of_a_length_that_no_memory_has(tmp_path, name):
    # Their bytes are holes.
    path = tmp_path / "saved"
    if name == "meta.json":
        TensorDict({"a": torch.ones(2)}, []).memmap(path)
        path = path / name
    else:
        path = tmp_path / name
        td = TensorDict({"a": torch.ones(2)}, [])
        td.consolidate(path) if name == "a.bin" else td.save(path)
    os.truncate(path, 1 << 43)
    target = path.parent if name == "meta.json" else path
    with pytest.raises((RuntimeError, OSError, MemoryError, ValueError)):
        TensorDict.load(target)
