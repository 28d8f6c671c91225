"""Write the archives of this directory with the published release."""

import shutil
from pathlib import Path

import torch

from tensordict import TensorDict

HERE = Path(__file__).parent / "archives_0_15_3"


def main() -> None:
    """Write all archives anew."""
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    parts = [torch.zeros(2, 3), torch.ones(1, 4), torch.zeros(1, 1)]
    td = TensorDict(
        {
            "obs": torch.arange(6.0).view(3, 2),
            "nested": TensorDict(
                {"r": torch.arange(3), "none": torch.zeros(3, 0)}, [3]
            ),
            "ragged": torch.nested.nested_tensor(parts),
        },
        [3],
        names=["time"],
    )
    for name in ("stored", "deflate", "bzip2", "lzma"):
        td.memmap(HERE / f"{name}.tdz", compression=name)
