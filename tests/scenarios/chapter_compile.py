"""Compile: functions of collections under torch.compile, and what they give."""

from __future__ import annotations

from typing import Any

import torch
from scenario import scenario
from torch import nn

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    TensorClass,
    TensorDict,
    TensorDictParams,
    TypedTensorDict,
    lazy_stack,
    tensorclass,
)
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)


@tensorclass
class Point:
    x: torch.Tensor
    y: torch.Tensor
    label: str = "none"


class Step(TensorClass):
    obs: torch.Tensor
    reward: torch.Tensor


class State(TypedTensorDict):
    pos: torch.Tensor
    vel: torch.Tensor


def compiled(function: Any) -> Any:
    """The function, compiled as one graph."""
    torch._dynamo.reset()
    return torch.compile(function, backend="eager", fullgraph=True)


def counted(function: Any) -> tuple[Any, list[int]]:
    """The function, compiled in graphs that are counted in the list."""
    torch._dynamo.reset()
    graphs: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(1)
        return graph.forward

    return torch.compile(function, backend=backend), graphs


def nested() -> TensorDict:
    return TensorDict(
        {"a": torch.arange(6.0).view(2, 3), "n": {"b": torch.ones(2)}}, batch_size=[2]
    )


@scenario
def arithmetic_of_a_nested_collection():
    td = nested()
    return compiled(lambda td: (td + 1) * 2 - td)(td), td


@scenario
def entries_read_and_written():
    def step(td):
        td["c"] = td["a"].sum(-1) + td["n", "b"]
        td["n", "d"] = td["c"] * 2
        return td

    td = nested()
    return compiled(step)(td), td


@scenario
def a_collection_made_inside():
    def make(x):
        return TensorDict({"x": x, "n": {"y": x + 1}}, batch_size=[x.shape[0]])

    return compiled(make)(torch.ones(3, 2))


@scenario
def a_collection_of_keyword_arguments_made_inside():
    make = compiled(lambda x: TensorDict(x=x, y=-x, batch_size=[2], device="cpu"))
    return make(torch.ones(2))


@scenario
def keys_and_items_iterated():
    def total(td):
        out = 0
        for key, value in td.items(True, True):
            out = out + value.sum() * len(key)
        return out, list(td.keys()), sorted(map(str, td.keys(True, True)))

    return compiled(total)(nested())


@scenario
def indexing_in_every_form():
    def pick(td):
        mask = td["a"].sum(-1) > 4
        return td[0], td[:, None], td[..., 0], td[torch.tensor([1, 0])], mask

    return compiled(pick)(nested())


@scenario
def writing_at_an_index():
    def write(td):
        td[0] = td[1]
        td["n", "b"][1] = 5
        return td

    td = nested()
    return compiled(write)(td), td


@scenario
def shapes_changed():
    def shapes(td):
        wide = td.unsqueeze(0).expand(3, 2)
        return wide, wide.reshape(-1), wide.permute(1, 0), wide.flatten(0, 1).view(2, 3)

    return compiled(shapes)(nested())


@scenario
def stacks_and_parts():
    def join(td):
        stacked = torch.stack([td, td + 1])
        return stacked, torch.cat([td, td]), stacked.unbind(0)[1], td.split(1)[0]

    return compiled(join)(nested())


@scenario
def gathered_and_masked():
    def gather(td):
        return td.gather(0, torch.tensor([1])), td.masked_fill(
            torch.tensor([True, False]), 0
        )

    return compiled(gather)(nested())


@scenario
def a_locked_argument():
    td = nested().lock_()
    result = compiled(lambda td: td + 1)(td)
    return result.is_locked, result, td.is_locked


@scenario
def locked_and_unlocked_inside():
    def work(td):
        td = td.clone().lock_()
        locked = td.is_locked
        td.unlock_()
        td["c"] = td["a"] * 2
        return td, locked

    return compiled(work)(nested())


@scenario
def a_write_into_a_locked_collection():
    def work(td):
        td["c"] = td["a"]
        return td

    torch._dynamo.reset()
    return torch.compile(work, backend="eager")(nested().lock_())


@scenario(
    reason="in compiled code the release lets a nested collection be unlocked",
    ours=lambda result: "locked graph" in str(result),
)
def a_nested_collection_is_unlocked_after_a_compiled_lock():
    td = compiled(lambda td: TensorDict(n=td + 1).lock_())(nested())
    td["n"].unlock_()
    return td.is_locked, td["n"].is_locked


@scenario
def non_tensor_data_carried():
    td = nested()
    td["text"] = "hello"
    td["number"] = NonTensorData(3)

    def work(td):
        out = td.clone()
        out["a"] = out["a"] + 1
        return out, td["text"]

    return compiled(work)(td)


@scenario
def non_tensor_data_written():
    def work(td):
        td["text"] = "new"
        td.set_non_tensor("obj", (1, 2))
        return td

    td = compiled(work)(nested())
    return td["text"], td.get_non_tensor("obj"), td


@scenario
def a_branch_on_non_tensor_data():
    td = nested()
    td["mode"] = "double"

    def work(td):
        if td["mode"] == "double":
            return td["a"] * 2
        return td["a"] * 3

    fn, graphs = counted(work)
    first = fn(td)
    td["mode"] = "none"
    return first, fn(td), len(graphs)


@scenario
def a_tensorclass_read_and_made():
    def work(point):
        return Point(x=point.y, y=point.x + 1, label="out", batch_size=point.batch_size)

    point = Point(x=torch.ones(2), y=torch.zeros(2), batch_size=[2])
    result = compiled(work)(point)
    return result, type(result) is Point, result.label


@scenario
def a_tensorclass_written():
    def work(point):
        point.x = point.x * 3
        point.y += 1
        return point.x + point.y

    point = Point(x=torch.ones(2), y=torch.zeros(2), batch_size=[2])
    return compiled(work)(point), point


@scenario
def a_tensorclass_of_the_class_form():
    def work(step):
        later = step.clone()
        later.reward = later.reward + later.obs.sum(-1)
        return later[0], torch.stack([step, later])

    return compiled(work)(
        Step(obs=torch.ones(2, 3), reward=torch.zeros(2), batch_size=[2])
    )


@scenario
def a_typed_container():
    def work(state):
        return state["pos"] + state.vel, state.pos * 2

    state = State(pos=torch.ones(2), vel=torch.full((2,), 0.5), batch_size=[2])
    return compiled(work)(state)


@scenario
def a_typed_container_written():
    def work(state):
        state.pos = state.pos + state.vel
        return state

    state = State(pos=torch.ones(2), vel=torch.full((2,), 0.5), batch_size=[2])
    result = compiled(work)(state)
    return result["pos"], type(result) is State, state["pos"]


@scenario
def a_lazy_stack_read():
    stack = lazy_stack([nested(), nested() + 1])
    return compiled(lambda stack: (stack["a"], stack[1]["n", "b"], stack + 1))(stack)


@scenario
def a_lazy_stack_made_inside():
    def work(td):
        stack = LazyStackedTensorDict(td, td * 2, stack_dim=0)
        return stack["a"].sum(), stack.batch_size

    return compiled(work)(nested())


@scenario
def a_module_called():
    module = TensorDictModule(nn.Linear(3, 1), in_keys=["a"], out_keys=["out"])
    td = nested()
    expected = module(td.clone())
    result = compiled(module)(td)
    return torch.allclose(result["out"], expected["out"]), list(td.keys())


@scenario
def a_sequence_called():
    module = TensorDictSequential(
        TensorDictModule(nn.Linear(3, 4), in_keys=["a"], out_keys=["h"]),
        TensorDictModule(nn.Tanh(), in_keys=["h"], out_keys=["h"]),
        TensorDictModule(nn.Linear(4, 1), in_keys=["h"], out_keys=[("out", "y")]),
    )
    td = nested()
    fn, graphs = counted(module)
    result = fn(td)
    same = torch.allclose(result["out", "y"], module(nested())["out", "y"])
    return same, len(graphs), sorted(map(str, result.keys(True)))


@scenario
def a_module_called_with_tensors():
    module = TensorDictModule(nn.Linear(3, 1), in_keys=["a"], out_keys=["out"])
    result = compiled(module)(a=torch.ones(2, 3))
    return result.shape, torch.allclose(result, module(a=torch.ones(2, 3)))


@scenario
def a_probabilistic_module():
    module = ProbabilisticTensorDictSequential(
        TensorDictModule(
            lambda x: (x, x.abs() + 1), in_keys=["a"], out_keys=["loc", "scale"]
        ),
        ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"],
            out_keys=["action"],
            distribution_class=torch.distributions.Normal,
            return_log_prob=True,
        ),
    )
    torch._dynamo.reset()
    fn = torch.compile(module, backend="eager")
    with set_interaction_type(InteractionType.MEAN):
        result = fn(nested())
    return result["action"], sorted(map(str, result.keys()))


@scenario
def parameters_swapped_into_a_module():
    module = nn.Linear(3, 2)
    params = TensorDict.from_module(module).data * 0 + 1

    def call(params, x):
        with params.to_module(module):
            return module(x)

    return compiled(call)(params, torch.ones(2, 3)).detach()


@scenario
def parameters_as_a_collection():
    params = TensorDictParams(TensorDict(w=torch.ones(3), n={"b": torch.zeros(1)}))
    call = compiled(lambda params, x: x @ params["w"] + params["n", "b"])
    out = call(params, torch.ones(2, 3))
    out.sum().backward()
    return out.detach(), params.grad


@scenario
def many_parameters_with_vmap():
    modules = [nn.Linear(3, 2) for _ in range(3)]
    params = TensorDict.from_modules(*modules)
    x = torch.ones(4, 3)

    def call(params, x):
        with params.to_module(modules[0]):
            return modules[0](x)

    out = compiled(lambda params, x: torch.vmap(call, (0, None))(params, x))(params, x)
    return torch.allclose(out, torch.stack([module(x) for module in modules]))


@scenario
def updates():
    def work(td, other):
        td.update(other)
        td.update_({"a": other["a"] * 2})
        td.update({"n": {"c": other["a"]}})
        return td

    td = nested()
    other = TensorDict(a=torch.zeros(2, 3), z=torch.ones(2), batch_size=[2])
    return compiled(work)(td, other), td


@scenario
def in_place_arithmetic():
    def work(td):
        td.add_(1)
        td.mul_(td)
        td.zero_grad()
        return td.sqrt_()

    td = nested()
    a = td["a"]
    result = compiled(work)(td)
    return result, td["a"] is a, a


@scenario
def entries_selected_renamed_and_removed():
    def work(td):
        picked = td.select("a")
        rest = td.exclude("a")
        td = td.clone()
        td.rename_key_("a", "z")
        td.pop(("n", "b"))
        return picked, rest, td, "z" in td

    return compiled(work)(nested())


@scenario
def keys_flattened_and_restored():
    def work(td):
        flat = td.flatten_keys(".")
        return flat, flat.unflatten_keys(".")

    return compiled(work)(nested())


@scenario
def a_function_applied_to_leaves():
    def work(td):
        named = td.named_apply(lambda name, x: x + len(str(name)))
        return td.apply(lambda x: x * 2), named, td.apply(torch.add, td)

    return compiled(work)(nested())


@scenario
def reductions():
    def work(td):
        return td.sum(), td.mean(dim=0), td.sum(dim=0, reduce=False), td.norm()

    return compiled(work)(nested())


@scenario
def casts_and_devices():
    def work(td):
        return td.to(torch.float64), td.float().device, td.to("cpu"), td.int()

    return compiled(work)(nested())


@scenario(message=False)
def a_with_block_that_writes_back():
    def work(td):
        with td.flatten_keys(".") as flat:
            flat["x"] = flat["a"] + 1
        with td.view(-1) as same:
            same["y"] = same["x"].sum(-1)
        return td

    return compiled(work)(nested())


@scenario
def a_graph_break_in_the_middle():
    def work(td):
        td = td + 1
        torch._dynamo.graph_break()
        return td * 2

    fn, graphs = counted(work)
    return fn(nested()), len(graphs)


@scenario
def one_graph_for_calls_of_one_structure():
    fn, graphs = counted(lambda td: td + td["n", "b"].sum())
    fn(nested())
    fn(nested() * 3)
    before = len(graphs)
    bigger = nested()
    bigger["more"] = torch.ones(2)
    fn(bigger)
    return before, len(graphs)


@scenario
def gradients_through_a_compiled_function():
    td = nested().requires_grad_()
    loss = compiled(lambda td: (td * td).sum(reduce=True))(td)
    loss.backward()
    return td.grad


@scenario
def gradients_with_aot():
    torch._dynamo.reset()
    module = nn.Linear(3, 1)
    td_module = TensorDictModule(module, in_keys=["a"], out_keys=["out"])
    fn = torch.compile(
        lambda td: td_module(td)["out"].sum(), backend="aot_eager", fullgraph=True
    )
    fn(nested()).backward()
    return module.weight.grad


@scenario(
    reason="the release does not compile the truth of a comparison",
    ours=lambda result: result[2] is True and bool((result[1]["a"][1] == 0).all()),
)
def where_and_comparisons():
    def work(td):
        small = td < 3
        rows = torch.tensor([True, False])
        return small["a"], td.where(rows, td * 0), (td == td + 0).all()

    return compiled(work)(nested())


@scenario
def names_of_dims():
    td = TensorDict(a=torch.ones(2, 3), batch_size=[2, 3], names=["x", "y"])
    return compiled(lambda td: (td.transpose(0, 1), td.sum(0), (td + 1).names))(td)


@scenario
def an_empty_collection_filled():
    def work(x):
        td = TensorDict()
        td["a"] = x
        td.batch_size = [2]
        return td

    return compiled(work)(torch.ones(2))


@scenario
def a_missing_key():
    torch._dynamo.reset()
    fn = torch.compile(lambda td: (td.get("nope"), td.get("a")), backend="eager")
    return fn(nested())


@scenario(message=False)
def a_missing_key_read():
    torch._dynamo.reset()
    return torch.compile(lambda td: td["nope"], backend="eager")(nested())
