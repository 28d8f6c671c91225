"""Directories that older releases, or other programs, wrote."""

from __future__ import annotations

import json
import pickle

import torch
from scenario import scenario

from tensordict import TensorDict, lazy_stack, tensorclass

TD = "<class 'tensordict._td.TensorDict'>"
OLD_TD = "<class 'tensordict.tensordict.TensorDict'>"
LAZY = "<class 'tensordict._lazy.LazyStackedTensorDict'>"
VALUE = "<class 'tensordict.tensorclass.NonTensorData'>"
VALUES = "<class 'tensordict.tensorclass.NonTensorStack'>"


@tensorclass
class Sample:
    image: torch.Tensor
    label: str = "none"


def write(folder, fields):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(json.dumps(fields))
    return folder


def leaf(shape, **fields):
    return {"device": "cpu", "shape": shape, "dtype": "torch.float32", **fields}


def level(folder, size, kind=TD, device="cpu", **entries):
    """Write a level of version 0: no version, no class, no names."""
    write(folder, {**entries, "shape": size, "device": device, "_type": kind})
    for key, entry in entries.items():
        if "dtype" in entry:
            numbers = torch.arange(
                torch.Size(entry["shape"]).numel(), dtype=torch.float32
            )
            (folder / f"{key}.memmap").write_bytes(numbers.numpy().tobytes())
    return folder


def value(folder, data):
    fields = {"_type": VALUE, "data": data, "_metadata": None, "_is_non_tensor": True}
    return write(folder, fields)


def values(folder, items, **fields):
    for number, item in enumerate(items):
        value(folder / str(number), item)
    return write(folder, {"_type": VALUES, "stack_dim": 0, **fields})


@scenario
def a_level_of_version_0(tmp_path):
    folder = level(tmp_path / "save", [3], a=leaf([3, 2]))
    return TensorDict.load_memmap(folder)


@scenario
def with_is_nested(tmp_path):
    folder = level(tmp_path / "save", [3], a=leaf([3, 2], is_nested=False))
    return TensorDict.load_memmap(folder)


@scenario
def the_first_name_of_the_class(tmp_path):
    folder = level(tmp_path / "save", [3], kind=OLD_TD, a=leaf([3]))
    return type(TensorDict.load_memmap(folder))


@scenario(ordered=False)
def nested_levels(tmp_path):
    folder = level(tmp_path / "save", [3], n={"type": "TensorDict"}, a=leaf([3]))
    level(folder / "n", [3, 1], b=leaf([3, 1]))
    loaded = TensorDict.load_memmap(folder)
    return loaded, loaded["n"].batch_size


@scenario
def a_device_of_none(tmp_path):
    folder = level(tmp_path / "save", [3], device="None", a=leaf([3]))
    loaded = TensorDict.load_memmap(folder)
    return loaded.device, loaded


@scenario
def fields_before_entries(tmp_path):
    folder = level(tmp_path / "save", [3], a=leaf([3]))
    fields = json.loads((folder / "meta.json").read_text())
    write(folder, dict(reversed(fields.items())))
    return TensorDict.load_memmap(folder)


@scenario
def compact_text(tmp_path):
    folder = level(tmp_path / "save", [3], a=leaf([3]))
    fields = json.loads((folder / "meta.json").read_text())
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    (folder / "meta.json").write_text(text, encoding="utf8")
    return TensorDict.load_memmap(folder)


@scenario
def a_file_that_is_longer(tmp_path):
    folder = level(tmp_path / "save", [3], a=leaf([3]))
    with (folder / "a.memmap").open("ab") as file:
        file.write(b"more")
    return TensorDict.load_memmap(folder)


@scenario
def raw_file_names(tmp_path):
    folder = write(
        tmp_path / "save", {"a b": leaf([1]), "shape": [], "device": "cpu", "_type": TD}
    )
    (folder / "a b.memmap").write_bytes(torch.ones(1).numpy().tobytes())
    return TensorDict.load_memmap(folder)


@scenario
def files_that_nobody_named(tmp_path):
    folder = level(tmp_path / "save", [3], a=leaf([3]))
    (folder / "z.memmap").write_bytes(b"1234")
    (folder / "notes.txt").write_text("mine")
    return sorted(TensorDict.load_memmap(folder).keys())


@scenario(message=False)
def a_later_version(tmp_path):
    folder = level(tmp_path / "save", [3], a=leaf([3]))
    fields = json.loads((folder / "meta.json").read_text())
    write(folder, {**fields, "_format_version": 99})
    TensorDict.load_memmap(folder)


@scenario
def a_class_that_is_not_there(tmp_path):
    folder = level(tmp_path / "save", [3], kind="<class 'gone.Gone'>", a=leaf([3]))
    TensorDict.load_memmap(folder)


@scenario
def a_lazy_stack_of_version_0(tmp_path):
    folder = write(tmp_path / "save", {"_type": LAZY, "stack_dim": 0})
    for number in range(3):
        level(folder / str(number), [2], a=leaf([2]))
    loaded = TensorDict.load_memmap(folder)
    return type(loaded), loaded, loaded.stack_dim


@scenario
def a_lazy_stack_along_another_dim(tmp_path):
    folder = write(tmp_path / "save", {"_type": LAZY, "stack_dim": 1})
    for number in range(2):
        level(folder / str(number), [3], a=leaf([3]))
    return TensorDict.load_memmap(folder)


@scenario(ordered=False)
def a_value(tmp_path):
    folder = level(tmp_path / "save", [2], s={"type": "NonTensorData"}, a=leaf([2]))
    value(folder / "s", {"k": [1, None]})
    loaded = TensorDict.load_memmap(folder)
    return loaded, loaded["s"], loaded.get("s").batch_size


@scenario
def a_value_that_was_pickled(tmp_path):
    folder = level(tmp_path / "save", [2], s={"type": "NonTensorData"})
    fields = {"_type": VALUE, "_metadata": None, "_is_non_tensor": True}
    write(folder / "s", fields)
    (folder / "s" / "other.pickle").write_bytes(pickle.dumps({"data": {1, 2}}))
    return TensorDict.load_memmap(folder, allow_pickle=True)["s"]


@scenario(ordered=False)
def values_with_a_directory_each(tmp_path):
    folder = level(tmp_path / "save", [2], s={"type": "NonTensorStack"}, a=leaf([2]))
    values(folder / "s", ["x", "y"], device=None)
    loaded = TensorDict.load_memmap(folder)
    return loaded, loaded["s"], type(loaded.get("s")), loaded[1]["s"]


@scenario
def equal_values_with_a_directory_each(tmp_path):
    folder = level(tmp_path / "save", [2], s={"type": "NonTensorStack"})
    values(folder / "s", ["x", "x"])
    loaded = TensorDict.load_memmap(folder)
    return loaded["s"], type(loaded.get("s")), loaded.get("s").device


@scenario
def lists_with_a_directory_each(tmp_path):
    folder = level(tmp_path / "save", [2], s={"type": "NonTensorStack"})
    values(folder / "s", [[1, 2], [3, 4]])
    loaded = TensorDict.load_memmap(folder)
    return loaded.get("s").batch_size, loaded["s"]


@scenario
def stacks_with_a_directory_each(tmp_path):
    folder = level(tmp_path / "save", [2, 2], s={"type": "NonTensorStack"})
    write(folder / "s", {"_type": VALUES, "stack_dim": 0})
    values(folder / "s" / "0", ["a", "b"])
    values(folder / "s" / "1", ["c", "d"])
    loaded = TensorDict.load_memmap(folder)
    return loaded.get("s").batch_size, loaded["s"]


@scenario
def values_alone_with_a_directory_each(tmp_path):
    loaded = TensorDict.load_memmap(values(tmp_path / "save", ["x", 1]))
    return loaded.tolist(), type(loaded), loaded.batch_size


@scenario
def values_as_a_lazy_stack(tmp_path):
    folder = level(tmp_path / "save", [2], s={"type": "LazyStackedTensorDict"})
    values(folder / "s", ["x", "y"], _type=LAZY)
    return TensorDict.load_memmap(folder).get("s").tolist()


@scenario(message=False)
def values_of_another_length(tmp_path):
    folder = level(tmp_path / "save", [2], s={"type": "NonTensorStack"})
    values(folder / "s", ["x", "y", "z"])
    TensorDict.load_memmap(folder)


@scenario
def values_in_one_file(tmp_path):
    folder = level(tmp_path / "save", [2], s={"type": "NonTensorStack"})
    fields = {"_type": VALUES, "stack_dim": 0, "device": None}
    write(folder / "s", {**fields, "data": ["x", None]})
    return TensorDict.load_memmap(folder)["s"]


@scenario(
    reason="the release makes a dim of the lists",
    ours=lambda found: found[0] == (2,) and found[1] == [[1, 2], [3, 4]],
)
def lists_in_one_file(tmp_path):
    folder = level(tmp_path / "save", [2], s={"type": "NonTensorStack"})
    fields = {"_type": VALUES, "stack_dim": 0, "device": None}
    write(folder / "s", {**fields, "data": [[1, 2], [3, 4]]})
    loaded = TensorDict.load_memmap(folder)
    return tuple(loaded.get("s").batch_size), loaded["s"]


@scenario
def a_tensorclass_with_values_at_the_top(tmp_path):
    kind = f"<class '{Sample.__module__}.Sample'>"
    folder = write(tmp_path / "save", {"_type": kind, "label": "old"})
    level(folder / "_tensordict", [2], image=leaf([2, 3]))
    loaded = Sample.load_memmap(folder)
    return loaded.image, loaded.label


@scenario(
    reason="the release makes a collection that cannot be",
    ours=lambda error: "'a' has shape [3, 2]" in str(error) and "[2]" in str(error),
)
def a_shape_that_does_not_begin_with_the_batch_size(tmp_path):
    return TensorDict.load_memmap(level(tmp_path / "save", [2], a=leaf([3, 2])))


@scenario(
    reason="the release makes a collection that cannot be",
    ours=lambda error: "'n' has shape [3]" in str(error) and "[2]" in str(error),
)
def a_nested_batch_size_that_does_not_begin_with_it(tmp_path):
    folder = level(tmp_path / "save", [2], n={"type": "TensorDict"})
    level(folder / "n", [3], a=leaf([3]))
    return TensorDict.load_memmap(folder)


@scenario(ordered=False)
def saved_anew(tmp_path):
    folder = level(tmp_path / "save", [2], s={"type": "NonTensorStack"}, a=leaf([2]))
    values(folder / "s", ["x", "y"])
    TensorDict.load_memmap(folder).clone().memmap(tmp_path / "again")
    loaded = TensorDict.load_memmap(tmp_path / "again")
    return loaded, loaded["s"]


@scenario
def stacked_with_one_of_today(tmp_path):
    folder = level(tmp_path / "save", [2], a=leaf([2]))
    old = TensorDict.load_memmap(folder)
    return lazy_stack([old, TensorDict(a=torch.ones(2), batch_size=[2], device="cpu")])
