"""Saves as users make them: directories, archives, one file, safetensors, and back."""

from __future__ import annotations

import torch
from scenario import scenario

from tensordict import (
    MemoryMappedTensor,
    NonTensorStack,
    TensorClass,
    TensorDict,
    TensorDictParams,
    TypedTensorDict,
    from_consolidated,
    from_safetensors,
    lazy_stack,
    pack_memmap,
    tensorclass,
    to_safetensors,
    unpack_memmap,
)


@tensorclass
class Sample:
    image: torch.Tensor
    label: str = "none"


class Note(TensorClass):
    image: torch.Tensor
    label: str | None = None


class State(TypedTensorDict):
    position: torch.Tensor
    velocity: torch.Tensor | None = None


def data():
    return TensorDict(
        a=torch.arange(6.0).view(3, 2), n={"b": torch.ones(3)}, batch_size=[3]
    )


@scenario
def a_directory_and_back(tmp_path):
    td = data()
    saved = td.memmap(tmp_path / "save")
    loaded = TensorDict.load_memmap(tmp_path / "save")
    return saved.is_memmap(), saved.is_locked, td.is_memmap(), loaded, loaded.is_locked


@scenario
def in_place(tmp_path):
    td = data()
    result = td.memmap_(tmp_path / "save")
    return result is td, type(td["a"]), td.is_memmap(), td.is_locked


@scenario
def save_and_load_are_the_same(tmp_path):
    data().save(tmp_path / "save")
    return TensorDict.load(tmp_path / "save")


@scenario
def a_store_reaches_the_file(tmp_path):
    saved = data().memmap(tmp_path / "save")
    saved["a"][0] = 7
    saved["n", "b"].fill_(2)
    return TensorDict.load_memmap(tmp_path / "save")


@scenario
def a_store_with_mode_r_stays_here(tmp_path):
    data().memmap(tmp_path / "save")
    mine = TensorDict.load_memmap(tmp_path / "save", mode="r")
    mine["a"].fill_(7)
    return mine["a"], TensorDict.load_memmap(tmp_path / "save")["a"]


@scenario
def training_a_checkpoint_that_was_loaded_with_mode_r(tmp_path):
    model = torch.nn.Linear(2, 1)
    TensorDict.from_module(model).data.memmap(tmp_path / "model")
    loaded = TensorDict.load_memmap(tmp_path / "model", mode="r")
    loaded.to_module(model)
    model(torch.ones(2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    again = TensorDict.load_memmap(tmp_path / "model")
    return (again["weight"] == model.weight).any(), sorted(again.keys())


@scenario
def rows_of_a_dataset(tmp_path):
    row = TensorDict(x=torch.zeros(2), y=torch.zeros((), dtype=torch.int64))
    dataset = row.expand(5).memmap_like(tmp_path / "save")
    for index in range(5):
        dataset[index] = TensorDict(x=torch.ones(2) * index, y=torch.tensor(index))
    loaded = TensorDict.load_memmap(tmp_path / "save")
    return loaded[1:3], loaded[torch.tensor([4, 0])]["y"]


@scenario(ordered=False)
def a_further_entry(tmp_path):
    saved = data().memmap_(tmp_path / "save")
    saved.make_memmap("c", (3, 4), dtype=torch.int16).fill_(5)
    saved.make_memmap_from_tensor(("n", "d"), torch.ones(3))
    return TensorDict.load_memmap(tmp_path / "save")


@scenario
def a_further_entry_that_is_there(tmp_path):
    data().memmap_(tmp_path / "save").make_memmap("a", (3, 4), dtype=torch.int16)


@scenario
def an_entry_of_a_file_of_its_own(tmp_path):
    saved = data().memmap_(tmp_path / "save")
    path = tmp_path / "save" / "c.memmap"
    tensor = MemoryMappedTensor.from_tensor(torch.ones(3), filename=path)
    storage = tensor.untyped_storage()
    saved.make_memmap_from_storage("c", storage, (3,), dtype=torch.float32)
    return TensorDict.load_memmap(tmp_path / "save")["c"]


@scenario
def a_locked_save_takes_no_entry(tmp_path):
    data().memmap(tmp_path / "save")["z"] = torch.zeros(3)


@scenario
def saving_again_over_it(tmp_path):
    data().memmap(tmp_path / "save")
    (data() + 1).memmap(tmp_path / "save", existsok=True)
    return TensorDict.load_memmap(tmp_path / "save")


@scenario
def saving_again_is_refused(tmp_path):
    data().memmap(tmp_path / "save")
    data().memmap(tmp_path / "save", existsok=False)


@scenario
def nothing_there(tmp_path):
    TensorDict.load_memmap(tmp_path / "missing")


@scenario
def a_part_of_a_save(tmp_path):
    data().memmap(tmp_path / "save")
    return TensorDict.load_memmap(tmp_path / "save", subpath="n")


@scenario
def on_the_meta_device(tmp_path):
    data().memmap(tmp_path / "save")
    loaded = TensorDict.load_memmap(tmp_path / "save", device="meta")
    return loaded["a"].device, loaded["a"].shape


@scenario(
    reason="the files are read into the memory of ``out``, which stays its own",
    ours=lambda found: found[0] and found[1]["a"].sum() == 15,
)
def into_one_that_is_there(tmp_path):
    data().memmap(tmp_path / "save")
    out = data() * 0
    result = TensorDict.load_memmap(tmp_path / "save", out=out)
    return result is out, out


@scenario
def into_itself(tmp_path):
    data().memmap(tmp_path / "save")
    td = TensorDict(z=torch.zeros(3), batch_size=[3])
    td.load_memmap_(tmp_path / "save")
    return sorted(td.keys()), td["a"]


@scenario
def refreshed_after_a_write_elsewhere(tmp_path):
    saved = data().memmap(tmp_path / "save")
    TensorDict.load_memmap(tmp_path / "save")["a"].fill_(9)
    saved.memmap_refresh_()
    return saved["a"]


@scenario
def text_and_other_values(tmp_path):
    td = data()
    td["s"], td["l"] = "text", ["a", "b", "c"]
    td.set_non_tensor("d", {"k": [1, None]})
    td.memmap(tmp_path / "save")
    loaded = TensorDict.load_memmap(tmp_path / "save")
    return loaded, loaded["s"], loaded["l"], loaded["d"]


@scenario(
    reason="the release gives a list of the lists' items a dim of its own",
    ours=lambda found: found[0] == (2,) and found[1] == [[1, 2], [3, 4]],
)
def a_stack_of_lists(tmp_path):
    td = TensorDict(l=NonTensorStack([1, 2], [3, 4]), batch_size=[2])
    td.memmap(tmp_path / "save")
    loaded = TensorDict.load_memmap(tmp_path / "save")
    return tuple(loaded.get("l").batch_size), loaded["l"]


@scenario
def a_lazy_stack(tmp_path):
    stack = lazy_stack([data(), data() + 1], 1)
    stack.memmap(tmp_path / "save")
    loaded = TensorDict.load_memmap(tmp_path / "save")
    return type(loaded), loaded.stack_dim, loaded


@scenario
def a_ragged_lazy_stack(tmp_path):
    members = [TensorDict(a=torch.ones(n), s=f"{n}") for n in (1, 3)]
    lazy_stack(members).memmap(tmp_path / "save")
    loaded = TensorDict.load_memmap(tmp_path / "save")
    return [member["a"] for member in loaded.tensordicts], loaded["s"]


@scenario
def a_tensorclass(tmp_path):
    Sample(torch.ones(2, 3), label="cat", batch_size=[2]).memmap(tmp_path / "save")
    loaded = Sample.load_memmap(tmp_path / "save")
    plain = TensorDict.load_memmap(tmp_path / "save")
    return type(loaded) is Sample, loaded.image, loaded.label, type(plain) is Sample


@scenario
def an_unset_field(tmp_path):
    Note(image=torch.ones(2), batch_size=[2]).memmap(tmp_path / "save")
    loaded = Note.load_memmap(tmp_path / "save")
    return loaded.label, loaded.image


@scenario
def a_typed_container(tmp_path):
    State(position=torch.ones(3), batch_size=[3]).memmap(tmp_path / "save")
    loaded = TensorDict.load_memmap(tmp_path / "save")
    typed = State.from_tensordict(loaded)
    return loaded, typed.position


@scenario
def parameters(tmp_path):
    TensorDictParams(data()).data.memmap(tmp_path / "save")
    loaded = TensorDict.load_memmap(tmp_path / "save")
    return TensorDictParams(loaded.clone())["a"], type(loaded)


@scenario
def names_of_the_dims(tmp_path):
    td = data()
    td.names = ["time"]
    td.memmap(tmp_path / "save")
    return TensorDict.load_memmap(tmp_path / "save").names


@scenario
def keys_with_odd_characters(tmp_path):
    td = TensorDict({"a/b": torch.ones(1), "c d": torch.ones(1), ".": torch.ones(1)})
    td.memmap(tmp_path / "save")
    return TensorDict.load_memmap(tmp_path / "save")


@scenario
def every_dtype(tmp_path):
    names = "bool int8 int64 float16 bfloat16 float64 complex64".split()
    td = TensorDict({name: torch.ones(2, dtype=getattr(torch, name)) for name in names})
    td.memmap(tmp_path / "save")
    return TensorDict.load_memmap(tmp_path / "save")


@scenario
def an_archive(tmp_path):
    td = data()
    td["s"] = "text"
    td.memmap(tmp_path / "save.tdz")
    loaded = TensorDict.load_memmap(tmp_path / "save.tdz")
    return (tmp_path / "save.tdz").is_file(), loaded, loaded["s"]


@scenario
def an_archive_that_is_written_to(tmp_path):
    data().memmap(tmp_path / "save.tdz")
    loaded = TensorDict.load_memmap(tmp_path / "save.tdz", mode="r+")
    loaded["a"].fill_(7)
    return TensorDict.load_memmap(tmp_path / "save.tdz")["a"]


@scenario
def an_archive_of_zeros(tmp_path):
    like = data().memmap_like(tmp_path / "save.tdz")
    like["a"].fill_(5)
    loaded = TensorDict.load_memmap(tmp_path / "save.tdz")
    return loaded, like.is_memmap(), like.is_locked


@scenario
def packed_and_unpacked(tmp_path):
    data().memmap(tmp_path / "save")
    pack_memmap(tmp_path / "save", tmp_path / "packed.tdz")
    unpack_memmap(tmp_path / "packed.tdz", tmp_path / "again")
    archived = TensorDict.load_memmap(tmp_path / "packed.tdz")
    return archived, TensorDict.load_memmap(tmp_path / "again")


@scenario
def one_buffer(tmp_path):
    td = data()
    td["s"] = "text"
    buffered = td.consolidate()
    storages = {
        leaf.untyped_storage().data_ptr() for leaf in buffered.values(True, True)
    }
    return buffered, buffered["s"], len(storages)


@scenario(ordered=False)
def one_file(tmp_path):
    td = data()
    td["s"], td["l"] = "text", ["a", "b", "c"]
    td.consolidate(tmp_path / "file")
    loaded = from_consolidated(tmp_path / "file")
    return loaded, loaded["s"], loaded["l"]


@scenario
def one_file_of_a_stack(tmp_path):
    lazy_stack([data(), data() + 1]).consolidate(tmp_path / "file")
    loaded = from_consolidated(tmp_path / "file")
    return type(loaded), loaded


@scenario
def a_store_into_one_file(tmp_path):
    mapped = data().consolidate(tmp_path / "file")
    mapped["a"].fill_(7)
    return from_consolidated(tmp_path / "file")["a"]


@scenario
def jagged_entries_in_one_file(tmp_path):
    parts = [torch.ones(2), torch.ones(3) * 2]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    TensorDict(j=jagged, batch_size=[2]).consolidate(tmp_path / "file")
    loaded = from_consolidated(tmp_path / "file")
    return [part.tolist() for part in loaded["j"].unbind()], loaded["j"].layout


@scenario
def safetensors(tmp_path):
    td = data()
    td["s"] = "text"
    to_safetensors(td, tmp_path / "file.safetensors")
    loaded = from_safetensors(tmp_path / "file.safetensors")
    return loaded, loaded["s"]


@scenario
def safetensors_of_another_program(tmp_path):
    from safetensors.torch import save_file

    save_file({"layer.weight": torch.ones(2), "x": torch.zeros(1)}, tmp_path / "f")
    return from_safetensors(tmp_path / "f")


@scenario
def a_mapped_tensor(tmp_path):
    path = tmp_path / "x.memmap"
    tensor = MemoryMappedTensor.from_tensor(torch.arange(4.0), filename=path)
    tensor[0] = 10
    again = MemoryMappedTensor.from_filename(path, torch.float32, (4,))
    return again, type(again[1:]), type(again + 1)


@scenario
def a_mapped_tensor_over_a_file_that_exists(tmp_path):
    for _ in range(2):
        MemoryMappedTensor.from_tensor(torch.ones(2), filename=tmp_path / "x")
