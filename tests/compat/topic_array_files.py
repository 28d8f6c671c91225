"""Write files of HDF5 and Zarr with release 0.15.3.

The store of Zarr is packed as a zip file, from which it is read.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from tensordict import NonTensorData, NonTensorStack, TensorDict

FOLDER = Path(__file__).parent / "arrays_0_15_3"


def collection() -> TensorDict:
    """The collection that is in both files."""
    td = TensorDict(
        a=torch.arange(6.0).reshape(3, 2),
        n=TensorDict(
            b=torch.arange(24, dtype=torch.int16).reshape(3, 2, 4),
            c=torch.tensor([True, False, True]),
            batch_size=[3],
        ),
        h=torch.tensor([0.5, 1.5, 2.5], dtype=torch.float16),
        z=torch.tensor([1 + 2j, 0, -1j]),
        text=NonTensorData("héllo"),
        number=NonTensorData(3),
        array=NonTensorData([1, 2]),
        rows=NonTensorStack("x", "y", "z"),
        counts=NonTensorStack(1, 2, 3),
        batch_size=[3],
    )
    td.names = ["time"]
    return td


def only_zarr() -> TensorDict:
    """The cases that HDF5 does not hold in the release."""
    td = collection()
    td["mixed"] = NonTensorStack(1, "a", None)
    td["nothing"] = NonTensorData({"k": [1, None]})
    td["object"] = NonTensorData((1, 2))
    return td


def main() -> None:
    """Write the files."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    collection().to_h5(FOLDER / "data.h5").close()
    with tempfile.TemporaryDirectory() as folder:
        only_zarr().to_zarr(f"{folder}/data.zarr", chunks=(2,))
        shutil.make_archive(str(FOLDER / "data.zarr"), "zip", f"{folder}/data.zarr")
