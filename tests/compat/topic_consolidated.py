"""Write the consolidated files and pickles of this directory with the published release.

`test_consolidated.py` writes the values down again.
"""

import pickle
import shutil
from pathlib import Path

import torch

from tensordict import TensorDict

HERE = Path(__file__).parent / "consolidated_0_15_3"

DTYPES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 "
    "float64 complex64"
).split()


def plain() -> TensorDict:
    """Tensors, a nested collection, an empty tensor, names."""
    nested = TensorDict({"r": torch.arange(3), "none": torch.zeros(3, 0)}, [3])
    return TensorDict(
        {
            "obs": torch.arange(6.0).view(3, 2),
            "nested": nested,
            "done": torch.tensor([True, False, True]),
        },
        [3],
        names=["time"],
    )


def main() -> None:
    """Write all files anew."""
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    plain().consolidate(HERE / "plain")
    plain().lock_().consolidate(HERE / "locked")
    items = torch.arange(4).view(2, 2) % 2
    TensorDict({name: items.to(getattr(torch, name)) for name in DTYPES}).consolidate(
        HERE / "dtypes"
    )
    jagged = torch.nested.nested_tensor_from_jagged(
        torch.arange(5.0), torch.tensor([0, 2, 5])
    )
    holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(5.0), torch.tensor([0, 2, 5]), torch.tensor([1, 2])
    )
    TensorDict({"j": jagged, "h": holes}, [2]).consolidate(HERE / "jagged")
    # Changed by a second save in place, which pads the text with spaces.
    again = plain().consolidate(HERE / "again")
    again.unlock_()
    del again["nested"]
    again.consolidate(HERE / "again")
    (HERE / "plain.pkl").write_bytes(pickle.dumps(plain().consolidate()))
    torch.save(plain().consolidate(), HERE / "plain.pt")
