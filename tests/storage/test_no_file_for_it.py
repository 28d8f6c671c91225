"""Tensors that no file has the form for: the error names the entry, nothing is written."""

import os

import pytest
import torch

from tensordict import TensorDict, to_safetensors

TENSORS = {
    "meta": lambda: torch.empty(2, device="meta"),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
}
SAVES = {
    "tree": lambda td, path: td.memmap(path),
    "threads": lambda td, path: td.memmap(path, num_threads=2),
    "archive": lambda td, path: td.memmap(path.with_suffix(".tdz")),
    "consolidated": lambda td, path: td.consolidate(path),
    "buffered": lambda td, path: td.consolidate(path, use_buffer=True),
    "safetensors": lambda td, path: to_safetensors(td, path, shards=2),
}


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("tensor", TENSORS)
def test_the_error_names_the_entry(tmp_path, tensor, save):
    td = TensorDict(a=torch.ones(2), n={"m": TENSORS[tensor]()})
    if save == "safetensors" and tensor != "meta":
        error, text = TypeError, r"\('n', 'm'\)|'n.m'"
    else:
        error, text = (NotImplementedError, RuntimeError), r"\(the entry \('n', 'm'\)\)"
    with pytest.raises(error, match=text):
        SAVES[save](td, tmp_path / "x")
    assert os.listdir(tmp_path) == []
