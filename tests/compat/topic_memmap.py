"""Write the folders of this directory with the published release.

The values are such that `test_memmap.py` can write them down again.
"""

import json
import shutil
from pathlib import Path

import torch

from tensordict import TensorDict, set_lazy_legacy

HERE = Path(__file__).parent / "memmap_0_15_3"

DTYPES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 "
    "float64 complex64 complex128"
).split()


def main() -> None:
    """Write all folders anew."""
    shutil.rmtree(HERE, ignore_errors=True)

    nested = TensorDict({"r": torch.arange(3)}, [3])
    plain = TensorDict(
        {
            "obs": torch.arange(6.0).view(3, 2),
            "nested": nested,
            "done": torch.tensor([True, False, True]),
        },
        [3],
        names=["time"],
    )
    plain.memmap(HERE / "plain")

    items = torch.arange(4).view(2, 2) % 2
    TensorDict({name: items.to(getattr(torch, name)) for name in DTYPES}).memmap(
        HERE / "dtypes"
    )

    keys = ["a/b", "", ".", "..", "a b", "é", "a.b", 'q"\n%', "CON"]
    odd = TensorDict({key: torch.tensor(i) for i, key in enumerate(keys)})
    odd["d/e"] = TensorDict({"..": torch.tensor(9)})
    odd.memmap(HERE / "keys")

    edges = TensorDict(
        {"empty": torch.zeros(0, 3), "scalar": torch.tensor(1.5), "none": TensorDict()}
    )
    edges.memmap(HERE / "edges")

    grown = TensorDict({"a": torch.zeros(3)}, [3]).memmap_(HERE / "grown")
    grown.make_memmap("b", (3, 2), dtype=torch.int16).fill_(7)
    grown.make_memmap(("n", "c"), (3,)).fill_(2)

    write_views()
    write_legacy()


def write_views() -> None:
    """The views of the lazy mode, one of them of another."""
    td = TensorDict(
        {"a": torch.arange(6).view(2, 3), "n": {"b": torch.ones(2, 3)}}, [2, 3]
    )
    with set_lazy_legacy(True):
        views = {
            "permute": td.permute(-1, 0),
            "squeeze": td[:, :1].squeeze(-1),
            "transpose": td.transpose(0, 1),
            "unsqueeze": td.unsqueeze(0),
            "view": td.view(3, 2),
            "twice": td.unsqueeze(0).permute(2, 0, 1),
        }
    for name, view in views.items():
        view.memmap(HERE / "views" / name)


def write_legacy() -> None:
    """The layout of version 0: raw names, no names of dims, no version, orjson style."""
    folder = HERE / "legacy"
    (folder / "n s").mkdir(parents=True)
    leaf = {"device": "cpu", "shape": [2], "dtype": "torch.int32"}
    fields = {
        "shape": [2],
        "device": "None",
        "_type": "<class 'tensordict._td.TensorDict'>",
    }
    # Fields before entries and no spaces: the order and the style are free.
    root = {**fields, "x y": leaf, "n s": {"type": "TensorDict"}, "é": leaf}
    text = json.dumps(root, separators=(",", ":"), ensure_ascii=False)
    (folder / "meta.json").write_text(text, encoding="utf8")
    (folder / "n s" / "meta.json").write_text(json.dumps({"b": leaf, **fields}))
    for number, name in enumerate(["x y", "é", "n s/b"]):
        values = torch.tensor([number, -1], dtype=torch.int32)
        (folder / f"{name}.memmap").write_bytes(values.numpy().tobytes() + b"more")
