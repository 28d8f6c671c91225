"""Collections in files of HDF5 and Zarr."""

from __future__ import annotations

import torch
from scenario import scenario

from tensordict import NonTensorStack, PersistentTensorDict, TensorDict, from_h5

TEXT = "a text that was written is read as a text; the release gives bytes in HDF5"


def some():
    return TensorDict(
        a=torch.arange(6.0).reshape(3, 2),
        n=TensorDict(b=torch.arange(3), batch_size=[3]),
        batch_size=[3],
    )


def what(td):
    return td.to_tensordict(), td.batch_size, td.names, type(td).__name__


@scenario
def h5_round_trip(tmp_path):
    td = some().to_h5(tmp_path / "x.h5")
    td.close()
    return what(from_h5(tmp_path / "x.h5", batch_size=[3]))


@scenario(ordered=False)
def zarr_round_trip(tmp_path):
    td = some()
    td.names = ["time"]
    td.to_zarr(tmp_path / "x.zarr")
    return what(TensorDict.from_zarr(tmp_path / "x.zarr"))


@scenario
def parts(tmp_path):
    td = some().to_h5(tmp_path / "x.h5")
    part = td[1:]
    return (
        part["a"], part.get(("n", "b")), part.batch_size, type(part).__name__,
        td[0].to_tensordict(), td[torch.tensor([2, 0])]["a"], td[:, None].batch_size,
        td.get_at("a", 1),
    )  # fmt: skip


@scenario
def writes(tmp_path):
    td = some().to_h5(tmp_path / "x.h5")
    td["z"] = torch.ones(3)
    td["n", "c"] = torch.zeros(3, 2)
    td["m", "d"] = torch.ones(3, dtype=torch.int8)
    td.set_at_("a", 7.0, 0)
    td.update({"z": torch.zeros(3, 4)})
    td.rename_key_("z", "y")
    td[1] = TensorDict(a=torch.zeros(2))
    td.del_("m")
    td["n"].add_(1)
    return what(td)


@scenario(ordered=False)
def writes_to_zarr(tmp_path):
    td = some().to_zarr(tmp_path / "x.zarr")
    td["z"] = torch.ones(3)
    td["n", "c"] = torch.zeros(3, 2)
    td.set_("a", torch.zeros(3, 2))
    td.add_(1)
    td.zero_()
    return what(td)


@scenario
def what_is_computed(tmp_path):
    td = some().to_h5(tmp_path / "x.h5")
    return (
        td + 1, td.apply(lambda leaf: leaf * 2), td.sum(0), torch.stack([td, td]),
        torch.cat([td, td]), td.reshape(1, 3), td.unbind(0), td.split(2), td == td,
        td.flatten_keys("."), td.double(), td.to_dict(), td.empty(),
    )  # fmt: skip


@scenario
def keys_and_entries(tmp_path):
    td = some().to_h5(tmp_path / "x.h5")
    return (
        sorted(td.keys()), set(td.keys(True, True)), ("n", "b") in td.keys(True), len(td),
        td.get("zz"), td.get("zz", 1), td.entry_class("a").__name__, td.is_empty(),
        td.entry_class("n").__name__, type(td["n"]).__name__, td.get_item_shape("a"),
    )  # fmt: skip


@scenario
def a_missing_key(tmp_path):
    some().to_h5(tmp_path / "x.h5").set_("zz", torch.zeros(3))


@scenario
def a_value_that_does_not_fit(tmp_path):
    some().to_h5(tmp_path / "x.h5").set("a", torch.zeros(2))


@scenario
def a_lock(tmp_path):
    td = some().to_h5(tmp_path / "x.h5").lock_()
    td.set_("a", torch.zeros(3, 2))
    td.set("new", torch.zeros(3))


@scenario
def refused_view(tmp_path):
    some().to_h5(tmp_path / "x.h5").view(1, 3)


@scenario
def refused_unsqueeze(tmp_path):
    some().to_h5(tmp_path / "x.h5").unsqueeze(0)


@scenario
def refused_memmap_(tmp_path):
    some().to_h5(tmp_path / "x.h5").memmap_()


@scenario
def refused_pin_memory(tmp_path):
    some().to_h5(tmp_path / "x.h5").pin_memory()


@scenario
def refused_grad(tmp_path):
    some().to_h5(tmp_path / "x.h5").set("a", torch.zeros(3, 2, requires_grad=True))


@scenario
def a_size_that_does_not_fit(tmp_path):
    some().to_h5(tmp_path / "x.h5").close()
    from_h5(tmp_path / "x.h5", batch_size=[5])


@scenario
def two_sizes(tmp_path):
    some().to_h5(tmp_path / "x.h5").close()
    from_h5(tmp_path / "x.h5", batch_size=[3], auto_batch_size=True)


@scenario
def auto_batch_size(tmp_path):
    some().to_h5(tmp_path / "x.h5").close()
    td = from_h5(tmp_path / "x.h5", auto_batch_size=True)
    return td.batch_size, td["n"].batch_size


@scenario
def an_empty_file_is_filled(tmp_path):
    td = PersistentTensorDict(filename=tmp_path / "x.h5", batch_size=[3], mode="w")
    td["a", "b"] = torch.zeros(3, 4)
    td["a", "b"] += 1
    return what(td), td["a"].batch_size, td.mode, td.backend, td.kwargs


@scenario
def from_a_dictionary(tmp_path):
    td = PersistentTensorDict.from_dict(
        {"a": torch.zeros(3, 4), "b": {"c": torch.ones(3)}}, tmp_path / "x.h5"
    )
    return what(td), td["b"].batch_size


@scenario
def values_for_each_row(tmp_path):
    td = some()
    td["s"] = NonTensorStack("x", "y", "z")
    td["i"] = NonTensorStack(1, 2, 3)
    td = td.to_h5(tmp_path / "x.h5")
    return list(td["s"]), list(td["i"]), td[1]["s"], list(td[1:]["s"])


@scenario
def values_in_zarr(tmp_path):
    td = some()
    for key, value in {
        "t": "text",
        "d": {"k": [1, None]},
        "o": (1, 2),
        "n2": 3,
    }.items():
        td.set_non_tensor(key, value)
    td = td.to_zarr(tmp_path / "x.zarr")
    return td["t"], td["d"], td["o"], td["n2"], td[0]["t"], td.get("t").batch_size


@scenario(reason=TEXT, ours=lambda result: result == ("text", "text"))
def a_text_in_h5(tmp_path):
    td = some().set_non_tensor("t", "text").to_h5(tmp_path / "x.h5")
    return td["t"], td[0]["t"]


@scenario(
    reason="to_h5 notes the batch size and the names",
    ours=lambda result: result == ((3,), ["time"]),
)
def what_h5_keeps(tmp_path):
    td = TensorDict(a=torch.zeros(3, 2), batch_size=[3], names=["time"])
    td.to_h5(tmp_path / "x.h5").close()
    td = from_h5(tmp_path / "x.h5")
    return td.batch_size, td.names


@scenario(
    reason="the release writes nothing, and says nothing",
    ours=lambda error: isinstance(error, OSError) and "x.h5" in str(error),
)
def in_place_in_a_file_for_reading(tmp_path):
    some().to_h5(tmp_path / "x.h5").close()
    td = from_h5(tmp_path / "x.h5", batch_size=[3])
    td.add_(1)
    return td["a"]


@scenario(
    reason="the release has no select of a file",
    ours=lambda result: set(result.keys(True, True)) == {("n", "b")},
)
def selected(tmp_path):
    return some().to_h5(tmp_path / "x.h5").select("n")


@scenario(
    reason="the release makes groups of a key with a slash",
    ours=lambda error: isinstance(error, ValueError) and "a/b" in str(error),
)
def a_key_with_a_slash(tmp_path):
    td = TensorDict({"a/b": torch.zeros(3)}, [3]).to_h5(tmp_path / "x.h5")
    return set(td.keys(True, True))
