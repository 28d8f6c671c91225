"""Pickles: every container by every protocol, copies, and what processes send."""

from __future__ import annotations

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import cloudpickle
import torch
from scenario import scenario

from tensordict import (
    LazyStackedTensorDict,
    MemoryMappedTensor,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    TensorDictParams,
    TypedTensorDict,
    UnbatchedTensor,
    lazy_stack,
    set_lazy_legacy,
    tensorclass,
)


@tensorclass
class Sample:
    image: torch.Tensor
    label: str = "none"
    options: dict | None = None


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


def again(value, protocol=2):
    return pickle.loads(pickle.dumps(value, protocol))


@scenario
def every_protocol_of_a_plain_one():
    protocols = range(pickle.HIGHEST_PROTOCOL + 1)
    return [again(data(), protocol) for protocol in protocols]


@scenario
def names_and_device_are_kept():
    td = data().to("cpu")
    td.names = ["time"]
    loaded = again(td)
    return loaded, loaded.names, loaded.device, loaded["n"].names


@scenario
def a_lock_is_kept_and_can_be_opened():
    loaded = again(data().lock_())
    before = loaded.is_locked, loaded["n"].is_locked
    loaded.unlock_()
    loaded["z"] = torch.zeros(3)
    return before, loaded


@scenario
def a_nested_one_of_a_locked_one_stays_in_its_lock():
    again(data().lock_())["n"].unlock_()


@scenario
def text_numbers_none_and_lists():
    td = data()
    td["text"], td["none"] = "hello", None
    td["list"] = ["a", "b", "c"]
    td.set_non_tensor("number", 3)
    td.set_non_tensor("mapping", {"k": [1, 2]})
    loaded = again(td)
    return loaded, loaded["text"], loaded["list"], loaded["number"], loaded["mapping"]


@scenario
def a_value_alone_and_a_stack_alone():
    values = NonTensorData("x"), NonTensorData(3, batch_size=[2]), MetaData("m")
    stack = NonTensorStack("a", 1, None)
    return [again(value) for value in values], again(stack), again(stack).tolist()


@scenario
def a_stack_of_equal_lists():
    loaded = again(TensorDict(l=NonTensorStack([1, 2], [3, 4]), batch_size=[2]))
    return loaded.get("l").batch_size, loaded["l"]


@scenario
def values_of_two_dims():
    rows = NonTensorStack("a", "b"), NonTensorStack("c", "d")
    stack = NonTensorStack(*rows)
    return again(stack).batch_size, again(stack).tolist(), again(stack, 5).stack_dim


@scenario
def a_lazy_stack_with_its_dim_and_name():
    stack = LazyStackedTensorDict(data(), data() + 1, stack_dim=1)
    named = LazyStackedTensorDict(data(), data(), stack_dim=0, stack_dim_name="t")
    loaded = again(named)
    return again(stack), again(stack).stack_dim, loaded.names, type(loaded)


@scenario
def a_ragged_lazy_stack():
    members = [TensorDict(a=torch.ones(n), s=f"{n}") for n in (1, 3)]
    loaded = again(lazy_stack(members), 5)
    return loaded.batch_size, [m["a"] for m in loaded.tensordicts], loaded["s"]


@scenario
def a_locked_lazy_stack():
    loaded = again(lazy_stack([data(), data()]).lock_())
    return loaded.is_locked, loaded.tensordicts[0].is_locked


@scenario
def a_tensorclass_with_text_and_a_mapping():
    sample = Sample(torch.ones(2, 3), label="cat", options={"k": [1]}, batch_size=[2])
    loaded = again(sample)
    return type(loaded) is Sample, loaded.image, loaded.label, loaded.options


@scenario
def an_unset_field_is_still_unset():
    loaded = again(Note(image=torch.ones(2), batch_size=[2]), 4)
    return loaded.label, loaded.image, loaded.is_locked


@scenario
def a_stack_of_tensorclasses():
    notes = [Note(image=torch.ones(2) * i, label=f"{i}") for i in range(2)]
    loaded = again(lazy_stack(notes))
    return type(loaded).__name__, loaded.image, loaded[1].label, loaded.batch_size


@scenario
def a_tensorclass_in_a_collection():
    td = TensorDict(s=Sample(torch.ones(2, 3), batch_size=[2]), batch_size=[2])
    return type(again(td)["s"]) is Sample, again(td)["s"].label


@scenario
def a_typed_container():
    state = State(position=torch.ones(3, 2), batch_size=[3], names=["t"])
    loaded = again(state)
    return type(loaded) is State, loaded.position, loaded.velocity, loaded.names


@scenario
def a_locked_typed_container():
    loaded = again(State(position=torch.ones(3), batch_size=[3], lock=True))
    return type(loaded) is State, loaded.is_locked


@scenario
def typed_containers_inside_and_stacked():
    states = [State(position=torch.ones(2) * i) for i in range(2)]
    inside = again(TensorDict(s=states[1]))
    stack = again(lazy_stack(states))
    return type(inside["s"]) is State, inside["s"].position, stack["position"]


@scenario
def attributes_of_a_typed_container():
    state = State(position=torch.ones(3), batch_size=[3])
    loaded = again(state)
    loaded["extra"] = torch.zeros(3)
    return sorted(loaded.keys()), sorted(state.keys())


@scenario
def attributes_of_a_subclass():
    td = Tagged(a=torch.ones(2))
    td.comment = "mine"
    loaded = again(td)
    return type(loaded) is Tagged, loaded.comment, loaded["a"]


@scenario
def parameters_are_parameters_again():
    params = TensorDictParams(data())
    loaded = again(params)
    names = [name for name, _ in loaded.named_parameters()]
    return names, loaded["a"].requires_grad, type(loaded["a"]), loaded["n", "b"]


@scenario
def tied_parameters_stay_tied():
    weight = torch.nn.Parameter(torch.ones(2))
    loaded = again(TensorDictParams(TensorDict(a=weight, b=weight)))
    return loaded["a"] is loaded["b"], len(list(loaded.parameters()))


@scenario
def parameters_in_a_module():
    module = torch.nn.ModuleDict({"p": TensorDictParams(data())})
    loaded = again(module)
    return sorted(loaded.state_dict()), loaded["p"]["a"]


@scenario
def parameters_and_buffers_of_a_plain_one():
    td = TensorDict(
        p=torch.nn.Parameter(torch.ones(2)), b=torch.nn.Buffer(torch.ones(2))
    )
    loaded = again(td)
    return type(loaded["p"]), loaded["p"].requires_grad, loaded["b"]


@scenario
def one_tensor_twice_is_one_tensor_after():
    tensor = torch.ones(2)
    loaded = again(TensorDict(a=tensor, n={"b": tensor}))
    loaded["a"] += 1
    return loaded["n", "b"]


@scenario
def an_unbatched_tensor():
    td = TensorDict(u=UnbatchedTensor(torch.ones(7)), batch_size=[3])
    loaded = again(td)
    return loaded["u"], type(loaded.get("u")).__name__, loaded.batch_size


@scenario
def a_part_and_its_source():
    part = data()._get_sub_tensordict(slice(0, 2))
    loaded = again(part)
    loaded["a"] = torch.zeros(2, 2)
    return loaded["a"], loaded.batch_size, type(loaded).__name__


@scenario
def views_of_the_lazy_mode():
    td = TensorDict(a=torch.arange(6).view(2, 3), batch_size=[2, 3])
    with set_lazy_legacy(True):
        views = td.permute(1, 0), td.view(6), td.unsqueeze(0)
    return [again(view)["a"] for view in views]


@scenario
def memory_mapped_is_a_reference(tmp_path):
    saved = data().memmap(tmp_path / "save")
    loaded = again(saved)
    saved["a"].fill_(7)
    return loaded["a"], loaded.is_memmap(), loaded.is_locked, type(loaded["a"])


@scenario
def memory_mapped_stack_class_and_typed(tmp_path):
    stack = again(lazy_stack([data(), data()]).memmap(tmp_path / "a"))
    sample = again(Sample(torch.ones(2, 3), batch_size=[2]).memmap(tmp_path / "b"))
    state = again(State(position=torch.ones(3), batch_size=[3]).memmap(tmp_path / "c"))
    found = [one.is_memmap() for one in (stack, sample, state)]
    return found, stack["a"], sample.image, state.position, state.is_locked


@scenario
def a_loaded_save(tmp_path):
    td = data()
    td["s"] = "text"
    td.memmap(tmp_path / "save")
    loaded = again(TensorDict.load_memmap(tmp_path / "save"))
    return loaded, loaded.is_memmap(), loaded["s"]


@scenario(
    reason="the release cannot pickle what was mapped without a path",
    ours=lambda found: (
        found[0].tolist() == [[0, 1], [2, 3], [4, 5]] and found[1:] == (True, True)
    ),
)
def mapped_without_a_path():
    loaded = again(data().memmap_())
    return loaded["a"], loaded.is_memmap(), loaded.is_locked


@scenario(
    reason="the release cannot pickle what was mapped without a path",
    ours=lambda found: found.tolist() == [1, 1],
)
def a_mapped_tensor_without_a_file():
    return again(MemoryMappedTensor.from_tensor(torch.ones(2)))


@scenario
def shared_memory():
    loaded = again(data().share_memory_())
    return loaded, loaded.is_shared(), loaded.is_locked


@scenario
def consolidated():
    td = data()
    td["s"] = "text"
    found = []
    for options in ({}, {"metadata": True}):
        loaded = again(td.consolidate(**options), 5)
        found += [loaded, loaded["s"], loaded.is_locked]
    return found


@scenario
def consolidated_stack_and_class():
    stack = again(lazy_stack([data(), data()]).consolidate(metadata=True))
    sample = Sample(torch.ones(2, 3), label="x", batch_size=[2]).consolidate()
    return stack, type(again(sample)) is Sample, again(sample).label


@scenario
def deepcopy_copies_and_copy_shares():
    td = data().lock_()
    deep, shallow = copy.deepcopy(td), copy.copy(td)
    return deep["a"] is td["a"], shallow["a"] is td["a"], deep.is_locked, deep


@scenario
def deepcopy_of_many_kinds():
    kinds = [
        lazy_stack([data(), data()]),
        NonTensorStack("a", "b"),
        TensorDict(s="x", batch_size=[2]),
        Note(image=torch.ones(2), label="l", batch_size=[2]),
        State(position=torch.ones(2), batch_size=[2]),
    ]
    copies = [copy.deepcopy(kind) for kind in kinds]
    return copies, [type(a) is type(b) for a, b in zip(kinds, copies, strict=True)]


@scenario
def by_value_with_cloudpickle():
    @tensorclass
    class Local:
        x: torch.Tensor
        s: str = "t"

    local = Local(torch.ones(2), batch_size=[2])
    loaded = pickle.loads(cloudpickle.dumps(local))
    stack = pickle.loads(cloudpickle.dumps(lazy_stack([data(), data()])))
    return loaded.x, loaded.s, loaded.batch_size, stack["a"].shape


@scenario
def as_multiprocessing_sends_them():
    kinds = [
        data(),
        lazy_stack([data(), data()]),
        TensorDict(s="x", l=["a", "b"], batch_size=[2]),
        Note(image=torch.ones(2), label="l", batch_size=[2]),
        State(position=torch.ones(2), batch_size=[2]),
    ]
    return [pickle.loads(bytes(ForkingPickler.dumps(kind))) for kind in kinds]


@scenario
def in_a_list_with_others_of_the_same_storage():
    td = data()
    row, whole = again([td[0], td], 5)
    return row, whole, row.batch_size


@scenario
def a_result_with_gradient():
    leaf = torch.ones(2, requires_grad=True)
    return again(TensorDict(a=leaf))["a"].requires_grad


@scenario
def a_stream_of_pickles():
    file = io.BytesIO()
    for index in range(3):
        pickle.dump(TensorDict(i=torch.tensor(index)), file)
    file.seek(0)
    return [pickle.load(file)["i"] for _ in range(3)]
