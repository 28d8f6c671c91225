"""Lazy stacks: members that differ, ragged entries, growing, updates and indexing."""

from __future__ import annotations

import torch
from scenario import scenario

from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    lazy_stack,
    maybe_dense_stack,
    pad_sequence,
)


def ragged():
    return lazy_stack(
        [TensorDict(x=torch.arange(n) * 1.0, y=torch.tensor(n)) for n in (2, 3)]
    )


def even(count=3):
    return lazy_stack(
        [
            TensorDict(a=torch.full((2,), float(at)), batch_size=[2])
            for at in range(count)
        ]
    )


@scenario
def a_stack_of_members_with_other_keys_shows_the_common_ones():
    stack = lazy_stack([TensorDict(a=1, b=2), TensorDict(a=3)])
    return stack, sorted(stack.keys()), stack["a"], stack[0]["b"]


@scenario
def an_entry_of_one_member_is_missing():
    stack = lazy_stack([TensorDict(a=1, b=2), TensorDict(a=3)])
    return stack["b"]


@scenario
def an_entry_of_one_member_has_a_default():
    stack = lazy_stack([TensorDict(a=1, b=2), TensorDict(a=3)])
    return stack.get("b", None), stack.get("b", "no")


@scenario
def ragged_entries_as_a_list():
    return ragged().get("x", as_list=True)


@scenario
def ragged_entries_padded():
    stack = ragged()
    left = stack.get("x", as_padded_tensor=True, padding_side="left")
    return stack.get("x", as_padded_tensor=True, padding_value=-1), left


@scenario
def ragged_entries_nested():
    nested = ragged().get("x", as_nested_tensor=True)
    return nested.is_nested, [row.tolist() for row in nested.unbind()]


@scenario
def ragged_entries_read_plainly():
    return ragged()["x"]


@scenario
def the_shape_of_ragged_entries():
    stack = ragged()
    return stack.get_item_shape("x"), stack.get_item_shape("y"), stack.batch_size


@scenario
def members_are_the_rows():
    members = [TensorDict(a=at) for at in range(3)]
    stack = lazy_stack(members)
    stack[1]["b"] = torch.tensor(5)
    stack["c"] = torch.arange(3)
    return stack[1] is members[1], members[1], members[2]["c"]


@scenario
def append_insert_and_extend():
    stack = LazyStackedTensorDict(stack_dim=0)
    for at in range(2):
        stack.append(TensorDict(a=at))
    stack.insert(0, TensorDict(a=7))
    stack.extend([TensorDict(a=8), TensorDict(a=9)])
    return stack, stack["a"], len(stack)


@scenario
def append_of_another_size():
    stack = even()
    stack.append(TensorDict(a=torch.zeros(4), batch_size=[4]))
    return stack


@scenario
def append_to_a_locked_stack():
    stack = even().lock_()
    stack.append(TensorDict(a=torch.zeros(2), batch_size=[2]))


@scenario
def slices_masks_and_lists():
    stack = even()
    mask = torch.tensor([True, False, True])
    return stack[:2], stack[mask], stack[[2, 0]], stack[:, 0], stack[-1]


@scenario
def a_slice_shares_its_members():
    stack = even()
    part = stack[1:]
    part["new"] = torch.ones(2, 2)
    return part[0] is stack[1], sorted(stack[1].keys()), sorted(stack.keys())


@scenario
def writes_at_an_index():
    stack = even()
    stack[0] = TensorDict(a=torch.ones(2) * 9, batch_size=[2])
    stack[1:, 0] = 5.0
    return stack["a"]


@scenario
def set_at_a_ragged_entry():
    stack = ragged()
    stack.set_at_("x", 9.0, 1)
    return stack[0]["x"], stack[1]["x"]


@scenario
def update_from_another_stack():
    stack = even(2)
    stack.update(lazy_stack([TensorDict(b=1), TensorDict(b=2, c=3)]))
    return stack, stack[1]


@scenario(
    reason="the release drops the members that are too many",
    ours=lambda error: isinstance(error, ValueError),
)
def update_with_more_members_is_refused():
    return even(2).update(even(3))


@scenario
def update_with_more_members_and_a_new_size():
    stack = even(2)
    members = list(stack.tensordicts)
    stack.update(even(4), update_batch_size=True)
    return stack, [stack[at] is members[at] for at in range(2)]


@scenario
def update_in_place_with_more_members():
    return even(2).update(even(3), update_batch_size=True, inplace=True)


@scenario
def a_stack_below_takes_another_size():
    td = TensorDict(n=even(2))
    td.update(TensorDict(n=even(3)), update_batch_size=True)
    return td, td["n"].batch_size


@scenario
def contiguous_and_to_tensordict():
    stack = even()
    return stack.contiguous(), stack.to_tensordict(), stack.densify()


@scenario
def densify_a_ragged_stack():
    dense = ragged().densify(layout=torch.jagged)
    return [row.tolist() for row in dense["x"].unbind()], dense["y"]


@scenario
def padding_a_ragged_batch_with_a_mask():
    members = [TensorDict(a=torch.ones(n, 2), batch_size=[n]) for n in (1, 2)]
    dense = lazy_stack(members).densify(layout=torch.jagged)
    return dense.to_padded_tensor(padding=-1, mask_key="mask")


@scenario
def arithmetic_of_ragged_members():
    stack = ragged()
    total = stack + stack
    total.mul_(2)
    return [member["x"] for member in total.unbind(0)]


@scenario
def stacks_of_stacks():
    outer = lazy_stack([even(2), even(2)], 1)
    return outer, outer["a"].shape, outer[0, 1], outer.stack_dim


@scenario
def shapes_of_a_stack():
    stack = even()
    return (
        stack.permute(1, 0)["a"],
        stack.unsqueeze(0).batch_size,
        stack.reshape(-1)["a"],
        stack.transpose(0, 1).batch_size,
        stack.split(2)[1],
    )


@scenario
def concatenation_of_stacks():
    return torch.cat([even(2), even(1)]), torch.cat([even(2), even(2)], 1)["a"]


@scenario
def where_of_a_stack():
    stack = even()
    mask = torch.tensor([True, False, True])
    return stack.where(mask.unsqueeze(-1).expand(3, 2), stack * 10)["a"]


@scenario
def pad_a_sequence_of_collections():
    items = [TensorDict(x=torch.ones(n, 2), batch_size=[n]) for n in (1, 3)]
    padded = pad_sequence(items, return_mask=True)
    return padded["x"], padded["masks", "x"], padded.batch_size


@scenario
def maybe_dense_stacks_densely_what_it_can():
    dense = maybe_dense_stack([TensorDict(a=1), TensorDict(a=2)])
    lazy = maybe_dense_stack([TensorDict(a=1), TensorDict(b=2)])
    return dense, type(lazy).__name__


@scenario(
    reason="the release cannot stack entries that differ in shape",
    ours=lambda result: [len(row) for row in result["x"]] == [2, 3],
)
def a_dictionary_of_a_ragged_stack():
    return ragged().to_dict()


@scenario
def a_list_of_a_ragged_stack():
    return ragged().tolist()


@scenario
def apply_reaches_each_member():
    shapes = []
    ragged().apply(lambda leaf: shapes.append(tuple(leaf.shape)))
    return sorted(shapes)


@scenario
def text_among_the_entries():
    stack = lazy_stack([TensorDict(a=0, s="x"), TensorDict(a=1, s="y")])
    stack[0]["s"] = "z"
    return stack["s"], stack[1:]["s"], stack.filter_non_tensor_data()


@scenario
def keys_of_a_dense_collection_with_a_ragged_stack():
    td = TensorDict(n=ragged(), z=0)
    return (
        sorted(map(str, td.keys(True))),
        len(td.keys(True)),
        ("n", "x") in td.keys(True),
    )
