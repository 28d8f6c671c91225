"""Write an MDS dataset with release 0.15.3, and what its ``to_mds`` answers.

The folder ``mds_0_15_3`` has the files and ``answers.json``: the encodings that follow from
entries, or the class of the error.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch

from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack

HERE = Path(__file__).parent / "mds_0_15_3"

NUMBERS = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "bfloat16", "complex64"),
)


def dataset():
    """The collection that is in the files."""
    return TensorDict(
        {
            "image": torch.arange(12, dtype=torch.uint8).view(2, 2, 3),
            "state": torch.arange(6, dtype=torch.float64).view(2, 3),
            "count": torch.tensor([3, -4]),
            "small": torch.tensor([1.5, 2.5], dtype=torch.float16),
            "name": NonTensorStack("Rex", "Fidö"),
            "raw": NonTensorStack(b"\x00a", b""),
            "list": NonTensorStack([1, [2]], ["x"]),
            "n.b": torch.ones(2, 1),
        },
        [2],
    )


def programs():
    """Collections by name, of which each is written on its own."""
    made = {}
    for name in NUMBERS:
        dtype = getattr(torch, name)
        made[f"scalars of {name}"] = TensorDict(
            a=torch.zeros(2, dtype=dtype), batch_size=[2]
        )
        made[f"arrays of {name}"] = TensorDict(
            a=torch.zeros(2, 3, dtype=dtype), batch_size=[2]
        )
    for value in ("x", b"x", 1, 1.5, True, [1], {"a": 1}, (1,)):
        made[f"values of {value!r}"] = TensorDict(
            a=NonTensorData(value, batch_size=[2]), batch_size=[2]
        )
    made["texts and None"] = TensorDict(a=NonTensorStack("x", None), batch_size=[2])
    made["nested"] = TensorDict(n={"b": torch.zeros(2)}, batch_size=[2])
    made["no batch dims"] = TensorDict(a=torch.zeros(2))
    made["two batch dims"] = TensorDict(a=torch.zeros(2, 3), batch_size=[2, 3])
    made["no rows"] = TensorDict(a=torch.zeros(0, 3), batch_size=[0])
    made["ragged"] = lazy_stack(
        [TensorDict(a=torch.zeros(2), d="a"), TensorDict(a=torch.zeros(3), d="b")]
    )
    made["keys that differ"] = lazy_stack(
        [TensorDict(a=torch.zeros(2)), TensorDict(b=torch.zeros(2))]
    )
    return made


def answer(td):
    """The encodings of the columns with the number of samples, or the class of the error."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            td.to_mds(out=folder)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            return type(error).__name__
        shards = json.loads(Path(folder, "index.json").read_text())["shards"]
        names, kinds = shards[0]["column_names"], shards[0]["column_encodings"]
        return [dict(zip(names, kinds, strict=True)), sum(s["samples"] for s in shards)]


def main() -> None:
    """Write the files anew."""
    shutil.rmtree(HERE, ignore_errors=True)
    dataset().to_mds(out=str(HERE / "plain"))
    dataset().to_mds(out=str(HERE / "packed"), compression="zstd:3", hashes=["sha1"])
    answers = {name: answer(td) for name, td in programs().items()}
    text = json.dumps(answers, indent=1, sort_keys=True) + "\n"
    (HERE / "answers.json").write_text(text)
