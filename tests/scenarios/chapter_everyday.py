"""The work of a training loop: rollouts, batches, masks, gradients, dtypes."""

from __future__ import annotations

import torch
from scenario import scenario
from torch import nn

from tensordict import TensorDict, dense_stack_tds, lazy_stack, merge_tensordicts, pad
from tensordict.nn import TensorDictModule, TensorDictSequential


def step(at):
    return TensorDict(
        observation=torch.full((2, 3), at * 1.0),
        action=torch.zeros(2, 1),
        next=TensorDict(
            observation=torch.full((2, 3), at + 1.0),
            reward=torch.full((2, 1), at * 0.5),
            done=torch.tensor([[at == 2], [False]]),
            batch_size=[2],
        ),
        batch_size=[2],
    )


def rollout(count=4):
    return torch.stack([step(at) for at in range(count)], 1)


@scenario
def a_rollout_is_a_stack_of_steps():
    td = rollout()
    return (
        td.batch_size,
        td["next"].batch_size,
        td["next", "reward"][0, :, 0],
        td[:, -1],
    )


@scenario
def the_next_step():
    td = step(0)
    following = td["next"].exclude("reward").clone()
    following["action"] = torch.ones(2, 1)
    return following, td["next"].keys(), td["next"]["reward"]


@scenario
def a_flat_batch_and_minibatches():
    flat = rollout().reshape(-1)
    order = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
    return [flat[part]["observation"][:, 0] for part in order.split(4)]


@scenario
def returns_are_added():
    td = rollout()
    reward = td["next", "reward"]
    td["return"] = reward.flip(1).cumsum(1).flip(1)
    return td["return"][0, :, 0], sorted(td.keys())


@scenario
def done_trajectories_are_masked():
    td = rollout()
    done = td["next", "done"].squeeze(-1)
    return td[done]["observation"], td[~done].batch_size


@scenario
def a_buffer_is_filled():
    buffer = step(0).expand(5, 2).clone().zero_()
    for at in range(3):
        buffer[at] = step(at)
    buffer[3:] = torch.stack([step(7), step(8)])
    return buffer["observation"][:, 0, 0], buffer["next", "done"][:, 0, 0]


@scenario
def statistics_of_a_batch():
    td = rollout().select("observation", ("next", "reward"))
    normal = (td - td.mean()) / (td.std() + 1e-6)
    return td.mean(), td.sum(0).batch_size, normal["observation"].mean().abs() < 1e-5


@scenario
def a_policy_writes_actions():
    net = nn.Linear(3, 1)
    nn.init.ones_(net.weight)
    nn.init.zeros_(net.bias)
    policy = TensorDictModule(net, ["observation"], ["action"])
    td = policy(step(2))
    return td["action"].detach(), policy.in_keys, policy.out_keys


@scenario
def a_loss_and_its_gradient():
    net = nn.Linear(3, 1)
    nn.init.ones_(net.weight)
    value = TensorDictModule(net, ["observation"], ["value"])
    error = TensorDictModule(
        lambda v, r: (v - r).pow(2).mean(), ["value", ("next", "reward")], ["loss"]
    )
    td = TensorDictSequential(value, error)(step(1))
    td["loss"].backward()
    return (
        net.weight.grad.shape,
        td["value"].requires_grad,
        td.detach()["loss"].requires_grad,
    )


@scenario
def an_optimizer_step_on_parameters():
    net = nn.Linear(2, 1, bias=False)
    params = TensorDict.from_module(net)
    params.data.fill_("weight", 1.0)
    net(torch.ones(1, 2)).sum().backward()
    params.data.sub_(params.grad * 0.5)
    return net.weight.detach()


@scenario
def a_target_network_follows():
    net, target = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    online, slow = TensorDict.from_module(net).data, TensorDict.from_module(target).data
    online.fill_("weight", 1.0)
    slow.fill_("weight", 0.0)
    slow.lerp_(online, 0.25)
    return target.weight.detach()


@scenario
def dtypes_are_cast():
    td = step(0)
    return (
        td.to(torch.float64).dtype,
        td.float()["next", "done"].dtype,
        td.half()["action"].dtype,
    )


@scenario
def dtypes_of_another_collection():
    td = step(0)
    other = TensorDict(x=torch.zeros(1, dtype=torch.float64))
    return td.to(other=other)["action"].dtype, td["action"].dtype


@scenario
def devices():
    td = step(0)
    moved = td.to("cpu")
    return td.device, moved.device, moved.cpu().device, moved.clear_device_().device


@scenario
def a_device_of_no_memory():
    td = step(0).to("meta")
    return td.device, td["next", "reward"].device, td["observation"].shape


@scenario
def keys_are_renamed_and_regrouped():
    td = step(0)
    td.rename_key_("observation", "obs")
    flat = td.flatten_keys(".")
    return (
        sorted(flat.keys()),
        flat.unflatten_keys(".")["next"].batch_size,
        "obs" in td.keys(),
    )


@scenario
def keys_are_selected_and_split():
    td = step(0)
    chosen, rest = td.split_keys(["observation"])
    return (
        sorted(chosen.keys()),
        sorted(rest.keys()),
        td.exclude(("next", "done"))["next"].keys(),
    )


@scenario
def a_map_over_leaves_with_names():
    td = step(1)
    seen = []
    td.named_apply(lambda name, leaf: seen.append(name), nested_keys=True)
    return sorted(map(str, seen)), td.apply(lambda x: x.float().mean(), batch_size=[])


@scenario
def where_resets():
    td, fresh = step(2), step(0)
    done = td["next", "done"].squeeze(-1)
    return td.where(done, fresh)["observation"], fresh.where(done, td)["action"]


@scenario
def gathers_of_time_steps():
    td = rollout()
    index = torch.tensor([[3], [0]])
    return td.gather(1, index)["observation"][..., 0]


@scenario
def masked_fill_and_select():
    td = rollout().select("observation")
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[0, :2] = True
    return td.masked_fill(mask, -1.0)["observation"][0, :, 0], td.masked_select(
        mask
    ).batch_size


@scenario
def padding_of_trajectories():
    return pad(rollout(2), [0, 0, 0, 1], value=-1.0)["observation"][0, :, 0]


@scenario
def collections_are_merged():
    one, two = TensorDict(a=1, n={"x": 2}), TensorDict(b=3, n={"y": 4})
    return merge_tensordicts(one, two)


@scenario
def dense_stacks_of_lazy_stacks():
    lazy = lazy_stack([step(0), step(1)])
    return type(dense_stack_tds(lazy)).__name__, dense_stack_tds(
        [step(0), step(1)]
    ).batch_size


@scenario
def locks_in_a_loop():
    td = step(0).lock_()
    td.set_("action", torch.ones(2, 1))
    with td.unlock_():
        td["extra"] = torch.zeros(2)
    return td.is_locked, td["action"], sorted(td.keys())


@scenario
def a_locked_collection_takes_no_entry():
    step(0).lock_()["extra"] = torch.zeros(2)


@scenario
def the_truth_of_collections():
    td = step(0)
    return (td == td).all(), (td == step(1)).any(), td.isfinite().all(), td.is_empty()


@scenario
def the_truth_of_a_collection():
    return bool(step(0))


@scenario
def norms_and_clipping():
    td = TensorDict(a=torch.tensor([3.0, 4.0]), b=torch.tensor([6.0, 8.0]))
    return td.norm(), td.clamp(4, 7), td.clamp_max(5)["b"]


@scenario
def detached_and_cloned():
    weight = torch.ones(2, requires_grad=True)
    td = TensorDict(a=weight * 2)
    return (
        td.detach()["a"].requires_grad,
        td.clone()["a"].requires_grad,
        td.data["a"].requires_grad,
    )


@scenario
def size_in_memory():
    td = step(0)
    return td.bytes(), td.numel(), td.ndim, len(td), td.shape


@scenario
def dictionaries_and_back():
    td = step(0)
    back = TensorDict.from_dict(td.to_dict(), batch_size=[2])
    return (back == td).all(), type(td.to_dict()["next"]).__name__
