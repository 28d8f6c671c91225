"""The first load in a process imports nothing, so that it costs what the next do."""

from __future__ import annotations

import torch

from separate_process import check_freshly
from tensordict import NonTensorStack, TensorDict

PROGRAM = """
import sys, torch, tensordict
folder = sys.argv[1]
before = set(sys.modules)
tensordict.load_memmap(folder + "/save")["s"]
tensordict.load_memmap(folder + "/save", mode="r")["text"]
tensordict.load(folder + "/save.tdz")
tensordict.from_consolidated(folder + "/save.cons")["s"]
tensordict.TensorDict(text="text")["text"]
print(sorted(set(sys.modules) - before))
"""


def test_the_first_load_imports_nothing(tmp_path):
    td = TensorDict(
        a=torch.ones(2), s=NonTensorStack("x", "y"), text="text", batch_size=[2]
    )
    td.memmap(tmp_path / "save")
    td.save(tmp_path / "save.tdz")
    td.consolidate(tmp_path / "save.cons")
    assert check_freshly(PROGRAM, tmp_path) == "[]\n"
