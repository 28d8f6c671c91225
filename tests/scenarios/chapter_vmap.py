"""torch.vmap with collections: reads, writes, dims, nested, randomness."""

from __future__ import annotations

import torch
from scenario import scenario

from tensordict import TensorDict, TensorDictParams, lazy_stack, tensorclass
from tensordict.nn import TensorDictModule


@tensorclass
class Point:
    x: torch.Tensor
    y: torch.Tensor


def data():
    return TensorDict(
        a=torch.arange(6.0).view(2, 3),
        n=TensorDict(b=torch.ones(2, 3), batch_size=[2, 3]),
        batch_size=[2, 3],
    )


def stacked():
    return lazy_stack(
        [TensorDict(a=torch.full((3,), v * 1.0), batch_size=[3]) for v in (0, 1)]
    )


def write(td):
    td["c"] = td["a"] * 2
    return td


@scenario
def a_function_that_reads():
    return torch.vmap(lambda td: td["a"].sum())(data())


@scenario
def a_function_that_sees_one_element():
    sizes = []

    def call(td):
        sizes.append((tuple(td.batch_size), tuple(td["n"].batch_size)))
        return td + 1

    return torch.vmap(call)(data()), sizes


@scenario
def a_function_that_writes():
    td = data()
    return torch.vmap(write)(td), sorted(td.keys())


@scenario(
    reason="the release takes -1 for a dim of the leaves, not of the batch",
    ours=lambda found: found[0] == found[2] == (3, 2) and found[3] == (2, 3),
)
def other_dims():
    td = data()
    return (
        torch.vmap(write, 1)(td).batch_size,
        torch.vmap(write, 1, 1)(td)["c"],
        torch.vmap(write, 0, 1)(td).batch_size,
        torch.vmap(write, -1, -1)(td).batch_size,
    )


@scenario
def a_dim_that_is_not_mapped():
    scale = TensorDict(s=torch.tensor(3.0))
    return torch.vmap(lambda td, other: td["a"] * other["s"], (0, None))(data(), scale)


@scenario
def a_collection_and_a_tensor():
    return torch.vmap(lambda td, x: td + x, (0, 0))(data(), torch.arange(2.0))


@scenario
def a_tuple_of_results():
    return torch.vmap(lambda td: (td, td["a"].sum()))(data())


@scenario
def nested_maps():
    return torch.vmap(torch.vmap(lambda td: td["a"] + td["n", "b"]))(data())


@scenario
def nested_maps_that_write():
    return torch.vmap(torch.vmap(write))(data())


@scenario
def a_stack_is_read():
    return torch.vmap(lambda td: td["a"] + 1)(stacked())


@scenario
def a_stack_is_written():
    stack = stacked()
    result = torch.vmap(write)(stack)
    return result, type(result).__name__, sorted(stack.keys())


@scenario
def a_stack_is_written_with_another_dim():
    result = torch.vmap(write, 0, 1)(stacked())
    return result, result.stack_dim


@scenario
def a_stack_is_mapped_along_the_dim_of_its_members():
    result = torch.vmap(write, 1, 1)(stacked())
    return result, result.stack_dim


@scenario
def a_stack_is_written_in_place():
    stack = stacked()
    torch.vmap(lambda td: td.set_("a", td["a"] + 5)["a"])(stack)
    return stack["a"]


@scenario
def a_collection_is_written_in_place():
    td = data()
    torch.vmap(lambda td: td.set_("a", td["a"] + 5)["a"])(td)
    return td["a"]


@scenario
def a_class_is_mapped():
    point = Point(x=torch.arange(3.0), y=torch.ones(3), batch_size=[3])
    result = torch.vmap(lambda p: Point(x=p.x + p.y, y=p.y, batch_size=[]))(point)
    return result, type(result).__name__


@scenario
def a_module_over_a_stack_of_parameters():
    module = torch.nn.Linear(2, 1, bias=False)
    params = TensorDict.from_module(module).detach()
    params = torch.stack([params * 0, params * 0 + 1])

    def call(params, x):
        with params.to_module(module):
            return module(x)

    return torch.vmap(call, (0, None))(params, torch.ones(3, 2))


@scenario
def parameters_of_a_stack():
    params = TensorDictParams(
        TensorDict(w=torch.ones(2, 3), batch_size=[2]), no_convert=True
    )
    return torch.vmap(lambda p, x: p["w"] * x, (0, None))(params, torch.tensor(2.0))


@scenario
def a_module_of_collections():
    module = TensorDictModule(lambda a: a.sum(), ["a"], ["total"])
    return torch.vmap(module)(data().exclude("n"))


@scenario
def gradients_under_a_map():
    td = TensorDict(w=torch.ones(3), batch_size=[])

    def loss(td, x):
        return (td["w"] * x).sum()

    return torch.vmap(torch.func.grad(loss), (None, 0))(
        td, torch.arange(6.0).view(2, 3)
    )


@scenario
def a_result_with_a_new_collection():
    return torch.vmap(lambda td: TensorDict(total=td["a"].sum(), half=td["a"] / 2))(
        data()
    )


@scenario
def names_under_a_map():
    td = data()
    td.names = ["time", "env"]
    seen = []
    result = torch.vmap(lambda td: seen.append(td.names) or td.clone())(td)
    return seen, result.names


@scenario
def random_numbers_of_the_same_seed():
    return torch.vmap(lambda td: td["a"] + torch.rand(()), randomness="same")(data())


@scenario
def random_numbers_are_an_error():
    return torch.vmap(lambda td: td["a"] + torch.rand(()))(data())


@scenario
def sizes_that_do_not_fit():
    return torch.vmap(lambda one, two: one["a"])(data(), torch.ones(5))


@scenario(message=False)
def a_dim_that_is_not_there():
    return torch.vmap(lambda td: td["a"], 2)(data())


@scenario
def a_locked_collection():
    td = data().lock_()
    result = torch.vmap(lambda td: td + 1)(td)
    return result.is_locked, result["a"]


@scenario
def text_under_a_map():
    td = TensorDict(a=torch.arange(2), s="x", batch_size=[2])
    return torch.vmap(lambda td: td["a"] if td["s"] == "x" else -td["a"])(td)
