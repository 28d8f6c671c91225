"""Write tables with the published release, and read those that this package wrote.

``test_tables.py`` reads the files of this directory. `read` is for the release: it reads
the files that ``python test_tables.py FOLDER`` wrote under this package.
"""

import shutil
from pathlib import Path

import torch

from tensordict import NonTensorStack, TensorDict

HERE = Path(__file__).parent / "tables_0_15_3"
KINDS = ("csv", "json", "parquet")


def numbers() -> TensorDict:
    """Leaves that all of the files can hold."""
    return TensorDict(
        i=torch.tensor([2**53 + 1, -1, 0]),
        u=torch.tensor([2**64 - 1, 0, 1], dtype=torch.uint64),
        b=torch.tensor([True, False, True]),
        n={"d": torch.tensor([0.5, 1e-3, -2.25], dtype=torch.float64)},
        batch_size=[3],
    )


def dtypes() -> TensorDict:
    """Leaves whose dtypes a file of Parquet keeps."""
    names = "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32"
    leaves = {
        name: torch.tensor([0, 1, 1]).to(getattr(torch, name)) for name in names.split()
    }
    return TensorDict(leaves, batch_size=[3])


def texts() -> TensorDict:
    """Texts, of which one is missing."""
    td = TensorDict(batch_size=[3])
    td["s"] = NonTensorStack("x", None, 'é,"y"')
    return td


def read(folder: Path) -> None:
    """Read what this package wrote."""
    for kind in KINDS:
        td = getattr(TensorDict, f"from_{kind}")(
            folder / f"numbers.{kind}", separator="."
        )
        expected = numbers()
        for key in expected.keys(True, True):
            assert td[key].dtype == expected[key].dtype, (kind, key)
            assert td[key].tolist() == expected[key].tolist(), (kind, key)
    td = TensorDict.from_parquet(folder / "dtypes.parquet")
    for key, leaf in dtypes().items():
        assert td[key].dtype == leaf.dtype
        assert td[key].tolist() == leaf.tolist()
    found = TensorDict.from_parquet(folder / "texts.parquet").get("s").tolist()
    assert found == ["x", None, 'é,"y"']


def write(folder: Path) -> None:
    """Write all files anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for kind in KINDS:
        getattr(numbers(), f"to_{kind}")(folder / f"numbers.{kind}", separator=".")
        getattr(texts(), f"to_{kind}")(folder / f"texts.{kind}")
    numbers().to_json(folder / "lines.json", separator=".", lines=True)
    dtypes().to_parquet(folder / "dtypes.parquet")


def main() -> None:
    """Write the files of this directory."""
    write(HERE)
