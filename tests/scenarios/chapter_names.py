"""Names of dims through every kind of operation."""

from __future__ import annotations

import torch
from scenario import scenario

from tensordict import LazyStackedTensorDict, TensorDict, lazy_stack

LOST = "the release loses the name of the stack dim"
WRONG = "the release gives the name to another dim"


def named():
    return TensorDict(
        x=torch.zeros(4, 2, 3),
        n=TensorDict(y=torch.zeros(4, 2, 3), batch_size=[4, 2, 3]),
        batch_size=[4, 2],
        names=["time", "env"],
    )


def stacked():
    members = [TensorDict(x=torch.zeros(2, 3), batch_size=[2]) for _ in range(4)]
    stack = lazy_stack(members)
    stack.names = ["time", "env"]
    return stack


@scenario
def names_are_given_and_changed():
    td = named()
    before = td.names
    td.names = ["t", None]
    return before, td.names, td["n"].names, td.names is td.names


@scenario
def too_few_names():
    named().names = ["t"]


@scenario
def names_twice():
    named().names = ["t", "t"]


@scenario
def names_of_nested_collections():
    td = named()
    td["n"].names = ["time", "env", "feature"]
    return td["n"].names, td.names


@scenario
def rename_and_refine():
    td = TensorDict(x=torch.zeros(2, 3), batch_size=[2, 3])
    td.refine_names("a", ...)
    return td.names, td.rename("u", "v").names, td.rename(a="w").names, td.names


@scenario
def names_of_indices():
    td = named()
    return (
        td[0].names,
        td[:, 0].names,
        td[None].names,
        td[[0, 1]].names,
        td[..., 0].names,
    )


@scenario
def names_of_masks():
    td = named()
    mask = torch.tensor([True, False, True, False])
    both = torch.ones(4, 2, dtype=torch.bool)
    return td[mask].names, td[both].names, td.masked_select(mask).names


@scenario
def names_of_new_dims():
    td = named()
    return (
        td.unsqueeze(0).names,
        td.unsqueeze(-1).names,
        td.unsqueeze(0).squeeze(0).names,
    )


@scenario
def names_of_moved_dims():
    td = named()
    return td.permute(1, 0).names, td.transpose(0, 1).names, td.permute(1, 0)["n"].names


@scenario
def names_of_other_shapes():
    td = named()
    return td.reshape(8).names, td.view(-1).names, td.flatten(0, 1).names


@scenario(reason=WRONG, ours=lambda found: found == [None, None, "env"])
def names_of_a_dim_that_is_split():
    return named().unflatten(0, (2, 2)).names


@scenario(reason=WRONG, ours=lambda found: found == ([None], ["time", "env"]))
def names_of_new_leaves():
    td = named()
    return td.new_zeros(2).names, td.new_ones(3, 5).names


@scenario
def names_of_stacks():
    td = named()
    lazy = lazy_stack([td, td], 1)
    return torch.stack([td, td]).names, torch.stack([td, td], 2).names, lazy.names


@scenario
def names_of_concatenations():
    td = named()
    return torch.cat([td, td]).names, torch.cat([td, td], 1)["n"].names


@scenario
def the_name_of_a_stack_dim():
    members = [TensorDict(x=torch.zeros(2), batch_size=[2], names=["env"])] * 3
    stack = LazyStackedTensorDict(*members, stack_dim=0, stack_dim_name="time")
    return stack.names, stack[0].names, stack[:2].names, stack[:, 0].names


@scenario
def names_of_a_stack_reach_its_members():
    stack = stacked()
    return stack.names, stack[0].names, stack.contiguous().names, stack.clone().names


@scenario(reason=LOST, ours=lambda found: found == [None, "time", "env"])
def names_of_a_stack_of_stacks():
    return torch.stack([stacked(), stacked()]).names


@scenario(reason=LOST, ours=lambda found: found == (["time", "env"],) * 2)
def names_of_joined_stacks():
    return torch.cat([stacked(), stacked()]).names, torch.cat([stacked()] * 2, 1).names


@scenario(reason=LOST, ours=lambda found: found == (["env"], ["time"]))
def names_of_the_parts_of_a_stack():
    return stacked().unbind(0)[0].names, stacked().unbind(1)[0].names


@scenario(reason=LOST, ours=lambda found: found == ["time", "env"])
def names_of_what_is_selected_from_a_stack():
    mask = torch.tensor([True, False, True, False])
    return stacked().masked_select(mask).names


@scenario
def names_of_arithmetic():
    td = named()
    return (td + 1).names, (td * td)["n"].names, (-td).names, (td == td).names


@scenario
def names_of_reductions():
    td = named()
    return td.sum(0).names, td.mean(1).names, td.sum(0, keepdim=True).names


@scenario
def names_of_copies():
    td = named()
    return (
        td.clone().names,
        td.to(torch.float64).names,
        td.select("x").names,
        td.empty().names,
    )


@scenario
def names_of_apply():
    td = named()
    kept = td.apply(lambda x: x + 1)
    given = td.apply(lambda x: x.sum(0), batch_size=[2], names=["env"])
    return kept.names, given.names, td.apply(lambda x: x[0], batch_size=[2]).names


@scenario
def names_of_expansion():
    td = named()
    return td.expand(3, 4, 2).names, td.repeat(2, 1).names, td[:1].expand(4, 2).names


@scenario
def names_of_splits():
    td = named()
    return [each.names for each in (*td.split(2), *td.chunk(2, 1), *td.unbind(1))]


@scenario
def names_of_what_is_written():
    td = named()
    td[0] = TensorDict(x=torch.ones(2, 3), batch_size=[2], names=["other"])
    td["m"] = TensorDict(z=torch.zeros(4, 2), batch_size=[4, 2])
    return td.names, td["m"].names


@scenario
def names_of_gather_and_where():
    td = named()
    mask = torch.ones(4, 2, dtype=torch.bool)
    return td.gather(0, torch.zeros(2, 2, dtype=torch.long)).names, td.where(
        mask, 0
    ).names


@scenario
def names_of_like():
    td = named()
    return torch.zeros_like(td).names, torch.ones_like(td)["n"].names


@scenario
def names_go_away():
    td = named()
    td.names = None
    return td.names, td["n"].names
