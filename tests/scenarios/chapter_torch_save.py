"""``torch.save`` and ``torch.load``, with ``weights_only``, which is torch's default."""

from __future__ import annotations

import io

import torch
from scenario import scenario

from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    TensorDictParams,
    TypedTensorDict,
    UnbatchedTensor,
    lazy_stack,
    tensorclass,
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


class Tagged(TensorDict):
    """A class of a program."""


def data():
    return TensorDict(
        a=torch.arange(6.0).view(3, 2), n={"b": torch.ones(3)}, batch_size=[3]
    )


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def again(value, **options):
    return torch.load(saved(value), **options)


SAFE_ONLY_HERE = "what the package pickles of its own is read with weights_only=True"


@scenario
def a_plain_one_by_default():
    loaded = again(data())
    return loaded, type(loaded), loaded.is_locked


@scenario
def a_file_on_the_disk(tmp_path):
    td = data()
    td.names = ["time"]
    torch.save(td, tmp_path / "td.pt")
    loaded = torch.load(tmp_path / "td.pt")
    return loaded, loaded.names


@scenario
def mapped_by_torch(tmp_path):
    torch.save(data(), tmp_path / "td.pt")
    return torch.load(tmp_path / "td.pt", mmap=True)


@scenario
def to_another_device():
    loaded = again(data().to("cpu"), map_location="meta")
    return loaded["a"].device, loaded.device


@scenario
def a_locked_one():
    loaded = again(data().lock_())
    return loaded.is_locked, loaded["n"].is_locked


@scenario
def text_and_numbers():
    td = data()
    td["s"] = "hello"
    td.set_non_tensor("i", 3)
    td.set_non_tensor("f", 2.5)
    td.set_non_tensor("yes", True)
    loaded = again(td)
    return loaded, loaded["s"], loaded["i"], loaded["f"], loaded["yes"]


@scenario
def none_lists_and_mappings():
    td = TensorDict(batch_size=[2])
    td["none"] = None
    td["list"] = ["a", "b"]
    td.set_non_tensor("mapping", {"k": [1, None, {"z": 2}]})
    td.set_non_tensor("pair", (1, "x"))
    loaded = again(td)
    return loaded, loaded["none"], loaded["list"], loaded["mapping"], loaded["pair"]


@scenario
def a_value_alone():
    loaded = again(NonTensorData("x", batch_size=[2]))
    return loaded.data, loaded.batch_size, type(loaded)


@scenario
def a_stack_alone():
    loaded = again(NonTensorStack("a", 1, None))
    return loaded.tolist(), loaded.batch_size, type(loaded)


@scenario
def a_stack_of_equal_values():
    loaded = again(NonTensorStack("a", "a"))
    return loaded.tolist(), type(loaded)


@scenario
def a_stack_of_lists():
    td = TensorDict(l=NonTensorStack([1, 2], [3, 4]), batch_size=[2])
    return again(td).get("l").batch_size, again(td)["l"]


@scenario
def stacks_of_stacks():
    stack = NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d"))
    return again(stack).batch_size, again(stack).tolist()


@scenario(reason=SAFE_ONLY_HERE, ours=lambda found: found == ("m", "MetaData"))
def metadata():
    loaded = again(TensorDict(m=MetaData("m"), batch_size=[2]))
    return loaded["m"], type(loaded.get("m")).__name__


@scenario
def a_lazy_stack():
    stack = LazyStackedTensorDict(data(), data() + 1, stack_dim=1)
    loaded = again(stack)
    return loaded, loaded.stack_dim, type(loaded)


@scenario
def a_lazy_stack_with_text():
    stack = lazy_stack([TensorDict(a=torch.ones(2), s=f"{i}") for i in range(2)])
    return again(stack), again(stack)["s"]


@scenario
def a_ragged_lazy_stack():
    stack = lazy_stack([TensorDict(a=torch.ones(n)) for n in (1, 3)])
    return [member["a"] for member in again(stack).tensordicts]


@scenario(reason=SAFE_ONLY_HERE, ours=lambda names: names == ["a", "n.b"])
def parameters():
    loaded = again(TensorDictParams(data()))
    return [name for name, _ in loaded.named_parameters()]


@scenario
def parameters_without_weights_only():
    loaded = again(TensorDictParams(data()), weights_only=False)
    return sorted(dict(loaded.named_parameters())), loaded["a"]


@scenario
def parameters_of_a_plain_one():
    td = TensorDict(p=torch.nn.Parameter(torch.ones(2)))
    loaded = again(td)
    return type(loaded["p"]), loaded["p"].requires_grad


@scenario(reason=SAFE_ONLY_HERE, ours=lambda found: found.tolist() == [1] * 7)
def an_unbatched_tensor():
    return again(TensorDict(u=UnbatchedTensor(torch.ones(7)), batch_size=[3]))["u"]


@scenario(reason=SAFE_ONLY_HERE, ours=lambda part: part["a"].shape == (2, 2))
def a_part():
    return again(data()._get_sub_tensordict(slice(0, 2)))


@scenario
def a_class_of_the_program_is_refused():
    again(Sample(torch.ones(2, 3), batch_size=[2]))


@scenario
def a_typed_container_is_refused():
    again(State(position=torch.ones(3)))


@scenario
def a_subclass_of_the_program_is_refused():
    again(Tagged(a=torch.ones(2)))


@scenario
def a_class_of_the_program_that_is_allowed():
    with torch.serialization.safe_globals([Note]):
        loaded = again(Note(image=torch.ones(2), label="x", batch_size=[2]))
    return loaded.image, loaded.label, type(loaded) is Note


@scenario
def a_typed_container_that_is_allowed():
    with torch.serialization.safe_globals([State]):
        loaded = again(State(position=torch.ones(3), batch_size=[3]))
    return loaded.position, loaded.batch_size, type(loaded) is State


@scenario
def classes_without_weights_only():
    kinds = [
        Sample(torch.ones(2, 3), label="x", batch_size=[2]),
        Note(image=torch.ones(2), batch_size=[2]),
        State(position=torch.ones(3), batch_size=[3]),
        Tagged(a=torch.ones(2)),
    ]
    loaded = [again(kind, weights_only=False) for kind in kinds]
    return loaded, [type(a) is type(b) for a, b in zip(kinds, loaded, strict=True)]


@scenario
def a_set_as_a_value():
    td = TensorDict()
    td.set_non_tensor("s", {1, 2})
    return again(td)["s"]


@scenario
def a_complex_number_as_a_value():
    td = TensorDict()
    td.set_non_tensor("s", complex(1, 2))
    return again(td)["s"]


@scenario
def memory_mapped_is_refused(tmp_path):
    again(data().memmap(tmp_path / "save"))


@scenario
def memory_mapped_without_weights_only(tmp_path):
    saved_td = data().memmap(tmp_path / "save")
    loaded = again(saved_td, weights_only=False)
    saved_td["a"].fill_(7)
    return loaded["a"], loaded.is_memmap(), loaded.is_locked


@scenario
def a_memory_mapped_stack_without_weights_only(tmp_path):
    stack = lazy_stack([data(), data()]).memmap(tmp_path / "save")
    loaded = again(stack, weights_only=False)
    return loaded, loaded.is_memmap()


@scenario(
    reason="the release cannot pickle what was mapped without a path",
    ours=lambda found: found[0].sum() == 15 and found[1:] == (True, "text"),
)
def mapped_without_a_path():
    td = data()
    td["s"] = "text"
    loaded = again(td.memmap_())
    return loaded["a"], loaded.is_memmap(), loaded["s"]


@scenario
def consolidated():
    loaded = again(data().consolidate(metadata=True))
    return loaded, loaded.is_locked


@scenario
def consolidated_with_values():
    td = data()
    td["s"], td["l"] = "text", ["a", "b", "c"]
    loaded = again(td.consolidate(metadata=True))
    return loaded, loaded["s"], loaded["l"]


@scenario
def consolidated_stack():
    return again(lazy_stack([data(), data()]).consolidate(metadata=True))


@scenario
def in_a_dictionary_with_others():
    checkpoint = {
        "step": 3,
        "data": data(),
        "texts": TensorDict(s="x", batch_size=[2]),
        "state": data().state_dict(),
    }
    loaded = again(checkpoint)
    return loaded["step"], loaded["data"], loaded["texts"]["s"], loaded["state"]


@scenario
def a_shared_storage_is_saved_once():
    td = data()
    size = len(saved(td).getvalue())
    both = len(saved([td, td[:2], td.clone(False)]).getvalue())
    row, part, _ = again([td, td[:2], td.clone(False)])
    row["a"] += 1
    return part["a"], both < size + 4096


@scenario
def the_state_of_a_model_with_parameters():
    module = torch.nn.ModuleDict({"p": TensorDictParams(data())})
    state = again(module.state_dict())
    other = torch.nn.ModuleDict({"p": TensorDictParams(data() * 0)})
    other.load_state_dict(state)
    return other["p"]["a"], list(state)


@scenario
def a_state_with_values():
    td = data()
    td["s"] = "text"
    other = data() * 0
    other["s"] = "none"
    other.load_state_dict(again(td.state_dict()))
    return other, other["s"]


@scenario
def results_of_an_operation():
    td = data()
    kinds = [td.unsqueeze(0), td[0], td.view(3, 1), td.select("a"), td.flatten_keys()]
    return [again(kind) for kind in kinds]
