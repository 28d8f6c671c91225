"""Torch functions of collections: torch.*, torch.func, autograd, and checkpoints."""

from __future__ import annotations

import torch
from scenario import scenario
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tensordict import TensorDict, TensorDictParams, lazy_stack, tensorclass


@tensorclass
class Point:
    x: torch.Tensor
    y: torch.Tensor


def nested() -> TensorDict:
    return TensorDict(
        {"a": torch.arange(6.0).view(2, 3), "n": {"b": torch.ones(2)}}, batch_size=[2]
    )


def point() -> Point:
    return Point(x=torch.arange(2.0), y=torch.ones(2), batch_size=[2])


@scenario
def stack_and_cat():
    td = nested()
    stacked = torch.stack([td, td + 1], dim=1)
    return stacked, torch.cat([td, td + 1], dim=0), stacked.names


@scenario
def stack_of_tensorclasses():
    stacked = torch.stack([point(), point()])
    return stacked, type(stacked) is Point, torch.cat([point(), point()])


@scenario
def stack_into_out():
    out = torch.stack([nested() * 0, nested() * 0])
    a = out["a"]
    result = torch.stack([nested(), nested()], out=out)
    return result is out, a


@scenario
def stack_of_other_keys():
    return torch.stack([nested(), nested().exclude("a")])


@scenario
def stack_of_other_batch_sizes():
    return torch.stack([nested(), nested()[:1]])


@scenario
def likes_of_a_collection():
    td = nested()
    made = torch.ones_like(td), torch.zeros_like(td), torch.full_like(td, 3.0)
    return made, torch.empty_like(td).shape, torch.zeros_like(td, dtype=torch.int64)


@scenario
def random_likes():
    td = nested()
    normal, uniform = torch.randn_like(td), torch.rand_like(td)
    return normal["a"].shape, bool((uniform["a"] < 1).all()), normal.batch_size


@scenario
def shapes():
    td = nested()
    return (
        torch.unsqueeze(td, 0),
        torch.squeeze(td.unsqueeze(0)),
        torch.reshape(td, (1, 2)),
        torch.permute(td.unsqueeze(0), (1, 0)),
        torch.flatten(td.unsqueeze(0), 0, 1),
        torch.transpose(td.unsqueeze(0), 0, 1),
    )


@scenario
def parts():
    td = nested()
    return torch.split(td, 1), torch.chunk(td, 2), torch.unbind(td, 0)


@scenario
def elementwise():
    td = nested()
    return torch.exp(td), torch.add(td, 1), torch.mul(td, td), torch.clamp(td, 1, 2)


@scenario
def elementwise_with_out_of_reach():
    return torch.special.entr(nested())


@scenario
def sums_and_means():
    td = nested()
    return torch.sum(td), torch.mean(td, dim=0), torch.std(td, dim=0), torch.sum(td, 0)


@scenario
def where():
    mask = torch.tensor([True, False])
    return torch.where(mask, nested(), nested() * 0), torch.where(mask, nested(), 0.0)


@scenario
def gather():
    return torch.gather(nested(), 0, torch.tensor([1, 1]))


@scenario
def clone_and_detach():
    td = nested()
    td["a"].requires_grad_()
    copied = torch.clone(td)
    detached = td.detach()
    return (
        copied["a"].requires_grad,
        detached["a"].requires_grad,
        detached["a"].data_ptr() == td["a"].data_ptr(),
    )


@scenario
def allclose_and_equal():
    td = nested()
    return torch.allclose(td["a"], td["a"]), (td == td).all(), (td != td).any()


@scenario
def is_tensor_and_numel():
    td = nested()
    return torch.is_tensor(td), td.numel(), len(td), td.ndim


@scenario
def masked_select():
    return torch.masked_select(nested(), torch.tensor([True, False]))


@scenario
def roll_flip_and_tile():
    td = nested()
    return torch.roll(td, 1, 0), torch.flip(td, (0,)), torch.tile(td, (2,))


@scenario
def bmm_that_has_no_form_for_collections():
    return torch.bmm(nested(), nested())


@scenario
def losses():
    td = nested()
    return (
        functional.mse_loss(td, td + 1),
        functional.l1_loss(td, td * 0),
        functional.smooth_l1_loss(td, td * 0, reduction="none"),
    )


@scenario
def softmax_of_a_batch_dim():
    return nested().softmax(0)


@scenario
def an_operator_with_a_tensor_on_the_left():
    td = nested()
    left = torch.tensor([1.0, 2.0])
    return left * td, 1 - td, left + td


@scenario
def a_unary_torch_function_keeps_locks():
    td = nested().lock_()
    return torch.exp(td).is_locked, torch.stack([td, td]).is_locked


@scenario
def functions_of_a_tensorclass():
    p = point()
    result = torch.exp(p)
    return result, type(result) is Point, torch.zeros_like(p), torch.unsqueeze(p, 0)


@scenario
def functions_of_a_lazy_stack():
    stack = lazy_stack([nested(), nested() + 1])
    return (
        torch.exp(stack)["a"],
        torch.cat([stack, stack]).batch_size,
        torch.zeros_like(stack)["n", "b"],
        torch.unbind(stack, 0)[1],
    )


@scenario
def gradients_of_leaves():
    td = nested().requires_grad_()
    loss = (td["a"] ** 2).sum() + td["n", "b"].sum()
    grads = torch.autograd.grad(loss, td)
    return grads, type(grads).__name__


@scenario
def gradients_of_several_outputs():
    td = nested().requires_grad_()
    return torch.autograd.grad(td * 2, td, grad_outputs=torch.ones_like(td))


@scenario
def gradients_that_are_not_used():
    td = nested().requires_grad_()
    out = TensorDict(a=td["a"].sum(), n={"b": torch.zeros((), requires_grad=True) * 1})
    ones = torch.ones_like(out)
    return torch.autograd.grad(out, td, grad_outputs=ones, allow_unused=True)


@scenario
def second_derivatives():
    td = TensorDict(a=torch.tensor(3.0)).requires_grad_()
    ones = torch.ones_like(td)
    first = torch.autograd.grad(td**3, td, grad_outputs=ones, create_graph=True)
    return torch.autograd.grad(first, td, grad_outputs=ones)


@scenario
def backward_and_grad():
    td = nested().requires_grad_()
    (td * td).sum(reduce=True).backward()
    grad = td.grad
    td.zero_grad()
    return grad, td["a"].grad


@scenario
def func_grad_of_a_collection():
    td = nested()
    return torch.func.grad(lambda td: (td["a"] ** 2).sum())(td)


@scenario
def func_grad_and_value():
    td = nested()
    return torch.func.grad_and_value(lambda td: (td * td).sum(reduce=True))(td)


@scenario
def func_vjp_and_jvp():
    td = TensorDict(a=torch.tensor([1.0, 2.0]))
    out, pull = torch.func.vjp(lambda td: td["a"] ** 2, td)
    pushed = torch.func.jvp(lambda td: td["a"] ** 2, (td,), (torch.ones_like(td),))
    return out, pull(torch.ones(2))[0], pushed


@scenario
def func_jacrev():
    td = TensorDict(a=torch.tensor([1.0, 2.0]))
    return torch.func.jacrev(lambda td: td["a"] ** 2)(td)["a"]


@scenario
def vmap_over_rows():
    td = nested()
    return torch.vmap(lambda row: row["a"].sum() + row["n", "b"])(td)


@scenario
def vmap_that_gives_collections():
    return torch.vmap(lambda row: row + 1)(nested())


@scenario
def vmap_over_another_dim():
    td = nested().unsqueeze(0).expand(3, 2).clone()
    result = torch.vmap(lambda column: column["a"].sum(), in_dims=1)(td)
    return result, torch.vmap(lambda c: c + 1, in_dims=1, out_dims=1)(td).batch_size


@scenario
def vmap_of_params_over_functional_call():
    modules = [nn.Linear(3, 1) for _ in range(3)]
    params = TensorDict.from_modules(*modules)
    x = torch.ones(2, 3)

    def call(params, x):
        flat = params.flatten_keys(".").to_dict()
        return torch.func.functional_call(modules[0], flat, (x,))

    out = torch.vmap(call, (0, None))(params, x)
    return torch.allclose(out, torch.stack([module(x) for module in modules]))


@scenario
def functional_call_with_a_collection():
    module = nn.Sequential(nn.Linear(3, 1))
    params = TensorDict.from_module(module).data * 0
    flat = params.flatten_keys(".")
    return torch.func.functional_call(module, flat.to_dict(), (torch.ones(2, 3),))


@scenario
def a_checkpointed_function():
    td = nested().requires_grad_()

    def work(td):
        return td.exp().sum(reduce=True)

    out = checkpoint(work, td, use_reentrant=False)
    out.backward()
    return torch.allclose(td.grad["a"], td["a"].exp()), out.detach()


@scenario
def no_grad_and_inference_mode():
    td = nested().requires_grad_()
    with torch.no_grad():
        first = (td + 1)["a"].requires_grad
    with torch.inference_mode():
        second = (td + 1)["a"].is_inference()
    return first, second


@scenario
def an_optimizer_of_params():
    params = TensorDictParams(TensorDict(w=torch.ones(2), n={"b": torch.zeros(1)}))
    optimizer = torch.optim.SGD(params.parameters(), lr=0.1)
    (params["w"].sum() + 2 * params["n", "b"].sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    return params.data, params["w"].grad


@scenario
def clipping_gradients():
    params = TensorDictParams(TensorDict(w=torch.ones(4)))
    (params["w"] * 10).sum().backward()
    norm = nn.utils.clip_grad_norm_(params.parameters(), 1.0)
    return norm, params["w"].grad


@scenario
def a_default_device_context():
    with torch.device("meta"):
        td = TensorDict(a=torch.ones(2))
    return td["a"].device.type, td.device


@scenario
def a_function_mode_sees_calls():
    from torch.overrides import TorchFunctionMode

    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", "?"))
            return func(*args, **(kwargs or {}))

    td = nested()
    with Mode():
        torch.stack([td, td])
    return "stack" in seen


@scenario
def a_subclass_of_tensor_as_leaf():
    class Mine(torch.Tensor):
        pass

    td = TensorDict(a=torch.ones(2).as_subclass(Mine), batch_size=[2])
    return type(td["a"]).__name__, type((td + 1)["a"]).__name__, td[0]["a"].item()
