"""Saves that get further rows."""

import torch
from scenario import scenario

from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    append_memmap,
    lazy_stack,
    tensorclass,
)


@scenario
def a_log_of_steps_that_grows(tmp_path):
    path = tmp_path / "log"
    step = TensorDict({"loss": torch.zeros(1), "net": {"norm": torch.zeros(1, 2)}}, [1])
    step.save(path)
    for number in range(1, 4):
        append_memmap(path, step + number)
    loaded = TensorDict.load_memmap(path)
    return loaded.batch_size, loaded["net"].batch_size, loaded["loss"], loaded["net"]


@scenario
def what_was_loaded_before_keeps_its_rows(tmp_path):
    path = str(tmp_path / "x")
    TensorDict(a=torch.arange(3), batch_size=[3]).memmap(path)
    before = TensorDict.load_memmap(path)
    returned = append_memmap(path, TensorDict(a=torch.arange(2), batch_size=[2]))
    return returned, before["a"].tolist(), TensorDict.load(path)["a"].tolist()


@scenario
def rows_of_a_lazy_stack_and_of_a_view(tmp_path):
    td = TensorDict(a=torch.arange(6.0).view(3, 2), batch_size=[3])
    td.memmap(tmp_path)
    append_memmap(tmp_path, lazy_stack([td[0], td[2]]))
    append_memmap(tmp_path, td._get_sub_tensordict(slice(1, 3)))
    return TensorDict.load_memmap(tmp_path)["a"].tolist()


@scenario
def a_batch_of_two_dims_with_names(tmp_path):
    td = TensorDict(a=torch.ones(2, 3), batch_size=[2, 3], names=["time", "env"])
    td.memmap(tmp_path)
    append_memmap(tmp_path, td)
    loaded = TensorDict.load_memmap(tmp_path)
    return loaded.batch_size, loaded.names


@scenario
def an_empty_save_is_filled(tmp_path):
    td = TensorDict(a=torch.ones(2, 3), b=torch.arange(2), batch_size=[2])
    td[:0].memmap(tmp_path)
    append_memmap(tmp_path, td)
    append_memmap(tmp_path, td[:0])
    return TensorDict.load_memmap(tmp_path)


@scenario
def the_files_are_longer_and_the_metadata_counts(tmp_path):
    import json

    td = TensorDict(a=torch.ones(2, 3), batch_size=[2])
    td.memmap(tmp_path)
    append_memmap(tmp_path, td)
    fields = json.loads((tmp_path / "meta.json").read_text())
    return fields["a"], fields["shape"], (tmp_path / "a.memmap").stat().st_size


@scenario
def a_tensorclass_grows(tmp_path):
    @tensorclass
    class Step:
        obs: torch.Tensor
        note: str

    steps = Step(obs=torch.ones(2, 3), note="run", batch_size=[2])
    steps.memmap(tmp_path)
    append_memmap(tmp_path, steps)
    loaded = Step.load_memmap(tmp_path)
    return type(loaded).__name__, loaded.obs.shape, loaded.note


@scenario
def other_keys_are_refused(tmp_path):
    TensorDict(a=torch.ones(2), b=torch.ones(2), batch_size=[2]).memmap(tmp_path)
    append_memmap(tmp_path, TensorDict(a=torch.ones(2), batch_size=[2]))


@scenario
def another_dtype_is_refused(tmp_path):
    TensorDict(a=torch.ones(2), batch_size=[2]).memmap(tmp_path)
    append_memmap(tmp_path, TensorDict(a=torch.ones(2).double(), batch_size=[2]))


@scenario
def another_shape_is_refused(tmp_path):
    TensorDict(a=torch.ones(2, 3), batch_size=[2]).memmap(tmp_path)
    append_memmap(tmp_path, TensorDict(a=torch.ones(2, 4), batch_size=[2]))


@scenario
def another_batch_size_is_refused(tmp_path):
    TensorDict(a=torch.ones(2, 3), batch_size=[2, 3]).memmap(tmp_path)
    append_memmap(tmp_path, TensorDict(a=torch.ones(2, 3, 4), batch_size=[2, 3]))


@scenario
def a_row_is_no_batch(tmp_path):
    td = TensorDict(a=torch.ones(2, 3), batch_size=[2])
    td.memmap(tmp_path)
    append_memmap(tmp_path, td[0])


@scenario
def a_save_without_batch_dims(tmp_path):
    td = TensorDict(a=torch.ones(2, 3))
    td.memmap(tmp_path)
    append_memmap(tmp_path, td)


@scenario
def a_dict_is_no_row(tmp_path):
    TensorDict(a=torch.ones(2), batch_size=[2]).memmap(tmp_path)
    append_memmap(tmp_path, {"a": torch.ones(2)})


@scenario
def another_value_is_refused(tmp_path):
    def rows(value):
        value = NonTensorData(value, batch_size=[2])
        return TensorDict(a=torch.ones(2), v=value, batch_size=[2])

    rows("x").memmap(tmp_path)
    append_memmap(tmp_path, rows("x"))
    append_memmap(tmp_path, rows("y"))


@scenario
def a_stack_of_values_cannot_grow(tmp_path):
    td = TensorDict(a=torch.ones(2), v=NonTensorStack("x", "y"), batch_size=[2])
    td.memmap(tmp_path)
    append_memmap(tmp_path, td)


@scenario
def a_lazy_stack_cannot_grow(tmp_path):
    stack = lazy_stack([TensorDict(a=torch.ones(2)), TensorDict(a=torch.ones(3))])
    stack.memmap(tmp_path)
    append_memmap(tmp_path, stack)


@scenario
def a_directory_of_nothing(tmp_path):
    append_memmap(tmp_path, TensorDict(a=torch.ones(2), batch_size=[2]))


@scenario(
    reason="the release keeps the old batch size, which the tensors do not have any more",
    ours=lambda result: result == (torch.Size([4]), torch.Size([4, 3]), [1.0] * 4),
)
def a_mapped_collection_is_refreshed(tmp_path):
    td = TensorDict(a=torch.ones(2, 3), batch_size=[2]).memmap(tmp_path)
    append_memmap(tmp_path, td)
    td.memmap_refresh_()
    return td.batch_size, td["a"].shape, td["a"][:, 0].tolist()


@scenario(
    reason="the release refuses nested tensors; here they grow",
    ours=lambda result: result == (4, [2, 3, 2, 3]),
)
def nested_tensors_grow(tmp_path):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    td = TensorDict(a=nested, batch_size=[2])
    td.memmap(tmp_path)
    append_memmap(tmp_path, td)
    parts = TensorDict.load_memmap(tmp_path)["a"].unbind(0)
    return len(parts), [len(part) for part in parts]
