"""Programs between processes as users write them, with what every rank is to find."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from ranks import Ranks
from redis_server import RedisServer
from tensordict import (
    LazyStackedTensorDict,
    TensorClass,
    TensorDict,
    lazy_stack,
)

if TYPE_CHECKING:
    from pathlib import Path


class Sample(TensorClass):
    """The steps that an actor has seen, with a text."""

    obs: torch.Tensor
    task: str = "none"


def rounded(td: Any) -> dict[str, Any]:
    """The values of a flat collection, as they are printed."""
    return {
        key: [round(each, 4) for each in value.detach().reshape(-1).tolist()]
        for key, value in sorted(td.items())
    }


# A parameter server -----------------------------------------------------------------------


def parameter_server(rank: int) -> Any:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    weights = TensorDict.from_module(net).data
    for _ in range(2):
        if rank == 0:
            total = weights.clone().zero_()
            gradients = weights.clone().zero_()
            for worker in (1, 2):
                weights.send(dst=worker)
            for worker in (1, 2):
                gradients.recv(src=worker)
                total += gradients
            weights -= total * 0.1
            continue
        weights.recv(src=0)
        net.zero_grad()
        net(torch.full((4, 3), float(rank))).pow(2).mean().backward()
        TensorDict.from_module(net).grad.send(dst=0)
    return rounded(weights)


def test_a_parameter_server(three: Ranks) -> None:
    served = three.all(parameter_server)[0]
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    for _ in range(2):
        net.zero_grad()
        for worker in (1, 2):
            net(torch.full((4, 3), float(worker))).pow(2).mean().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= parameter.grad * 0.1
    assert served == rounded(TensorDict.from_module(net).data)


# An actor and a learner -------------------------------------------------------------------


def actor_and_learner(rank: int) -> Any:
    if rank == 0:
        for step in range(3):
            rollout = TensorDict(
                obs=torch.full((4, 3), float(step)),
                info={"done": torch.full((4,), step > 1), "env": "walker"},
                batch_size=[4],
            ).consolidate()
            if step == 0:
                rollout.init_remote(dst=1)
            else:
                rollout.send(dst=1, consolidated=True)
        return None
    rollout = TensorDict.from_remote_init(src=0)
    seen = [float(rollout["obs"].sum())]
    for _ in range(2):
        rollout.recv(src=0, consolidated=True)
        seen.append(float(rollout["obs"].sum()))
    return seen, rollout["info", "env"], bool(rollout["info", "done"].all())


def test_an_actor_and_a_learner(pair: Ranks) -> None:
    assert pair.all(actor_and_learner)[1] == ([0.0, 12.0, 24.0], "walker", True)


# A replay buffer on a server --------------------------------------------------------------


def replay_buffer(rank: int, address: dict[str, Any]) -> Any:
    from tensordict.store import TensorDictStore

    if rank == 0:
        rows = TensorDict(
            obs=torch.zeros(8, 3), reward=torch.zeros(8), task="walk", batch_size=[8]
        )
        buffer = TensorDictStore.from_tensordict(rows, td_id="replay", **address)
        for row in range(0, 8, 2):
            buffer[row : row + 2] = TensorDict(
                obs=torch.full((2, 3), float(row)),
                reward=torch.ones(2) * row,
                task="walk",
                batch_size=[2],
            )
        distributed.barrier()
        # The rows that the other one has written are read here.
        distributed.barrier()
        found = buffer["priority"].tolist()
        buffer.clear_redis()
        return found
    distributed.barrier()
    buffer = TensorDictStore.from_store(td_id="replay", **address)
    batch = buffer[torch.tensor([1, 4, 7])]
    buffer["priority"] = torch.arange(8.0)
    distributed.barrier()
    return batch["reward"].tolist(), batch["obs"].sum(-1).tolist(), batch["task"]


def test_a_replay_buffer_on_a_server(pair: Ranks) -> None:
    server = RedisServer()
    try:
        written, read = pair.all(replay_buffer, server.address)
    finally:
        server.stop()
    assert written == list(range(8))
    assert read == ([0.0, 4.0, 6.0], [0.0, 12.0, 18.0], "walk")


# Pipes ------------------------------------------------------------------------------------


def pipes(rank: int) -> Any:
    from tensordict._ucxx import TensorDictPipe, TensorDictServer

    async def serve() -> list[Any]:
        found: list[Any] = []
        async with TensorDictServer(0, host="127.0.0.1", authkey="secret") as server:
            port = torch.tensor([server.port])
            distributed.broadcast(port, src=0)
            async for pipe in server:
                async for sample in pipe:
                    told = type(sample).__name__, float(sample.obs.sum()), sample.task
                    found.append(told)
                    await pipe.asend(TensorDict(count=torch.tensor(len(found))))
                return found
        return found

    async def ask(port: int) -> list[int]:
        counts = []
        pipe = await TensorDictPipe.connect("127.0.0.1", port, authkey="secret")
        async with pipe:
            for step in range(3):
                task = "walk" if step < 2 else "run"
                sample = Sample(
                    obs=torch.full((2, 3), float(step)), task=task, batch_size=[2]
                )
                await pipe.asend(sample)
                counts.append(int((await pipe.arecv())["count"]))
        return counts

    if rank == 0:
        return asyncio.run(serve())
    port = torch.tensor([0])
    distributed.broadcast(port, src=0)
    return asyncio.run(ask(int(port)))


def test_pipes_with_texts(pair: Ranks) -> None:
    served, asked = pair.all(pipes)
    assert served == [
        ("Sample", 0.0, "walk"),
        ("Sample", 6.0, "walk"),
        ("Sample", 12.0, "run"),
    ]
    assert asked == [1, 2, 3]


# Rows of several processes ----------------------------------------------------------------


def episodes(rank: int, base: float) -> LazyStackedTensorDict:
    """Two episodes of different lengths."""
    return lazy_stack(
        [
            TensorDict(
                obs=torch.full((steps, 2), base + steps), note="new", batch_size=[steps]
            )
            for steps in (1 + rank, 3)
        ]
    )


def gathered(rank: int) -> Any:
    if rank != 0:
        return episodes(rank, float(rank)).gather_and_stack(dst=0)
    into = lazy_stack([episodes(1, -1.0), episodes(2, -1.0)])
    made = into.gather_and_stack(dst=0)
    return [
        [
            (list(episode["obs"].shape), float(episode["obs"][0, 0]))
            for episode in row.unbind(0)
        ]
        for row in made.unbind(0)
    ]


def test_lazy_stacks_are_gathered(three: Ranks) -> None:
    rows = three.all(gathered)[0]
    assert rows == [[([2, 2], 3.0), ([3, 2], 4.0)], [([3, 2], 5.0), ([3, 2], 5.0)]]


# Checkpoints ------------------------------------------------------------------------------


class Training(Stateful):
    """A model whose parameters are sharded, its collection of them, and statistics."""

    def __init__(self, value: float) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        from tensordict.checkpoint.dcp import CollectionState

        mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
        self.net = nn.Linear(4, 4)
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.fill_(value)
        fully_shard(self.net, mesh=mesh)
        self.weights = TensorDict.from_module(self.net)
        self.statistics = TensorDict(
            steps=torch.tensor(int(value)), best=f"of {value}", batch_size=[]
        )
        self.states = {
            "weights": CollectionState(self.weights.data),
            "statistics": CollectionState(self.statistics),
        }

    def state_dict(self) -> dict[str, Any]:
        return {name: each.state_dict() for name, each in self.states.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, each in self.states.items():
            each.load_state_dict(state_dict[name])


def checkpoint(rank: int, folder: str) -> Any:
    saved = Training(3.0)
    future = dcp.async_save({"training": saved}, checkpoint_id=folder)
    future.result()
    loaded = Training(1.0)
    dcp.load({"training": loaded}, checkpoint_id=folder)
    full = [value.full_tensor() for value in get_model_state_dict(loaded.net).values()]
    return (
        type(loaded.weights["weight"].data).__name__,
        [float(value.sum()) for value in full],
        int(loaded.statistics["steps"]),
        loaded.statistics["best"],
    )


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_a_training_is_saved_in_the_background(pair: Ranks, tmp_path: Path) -> None:
    answers = pair.all(checkpoint, str(tmp_path / "step"))
    assert answers == [("DTensor", [48.0, 12.0], 3, "of 3.0")] * 2


# A rank that dies -------------------------------------------------------------------------


def survivor(rank: int, folder: str) -> Any:
    weights = TensorDict(w=torch.ones(4), step=torch.tensor(0), batch_size=[])
    for step in range(4):
        if rank == 1 and step == 2:
            os._exit(1)
        try:
            weights.all_reduce()
        except RuntimeError as error:
            weights.memmap(folder)
            return type(error).__name__
        weights["step"].fill_(step)
    return None


def test_what_is_left_is_saved_where_another_rank_dies(tmp_path: Path) -> None:
    ranks = Ranks(2, tmp_path, seconds=30.0)
    try:
        answers = ranks.try_all(survivor, str(tmp_path / "left"))
    finally:
        ranks.close()
    assert answers[1] is None
    assert answers[0] in ("RuntimeError", "DistBackendError")
    left = TensorDict.load(tmp_path / "left")
    assert left["w"].tolist() == [4.0] * 4
    assert int(left["step"]) == 1


# Gradients of replicas --------------------------------------------------------------------


def replica(rank: int) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs = torch.arange(24.0).reshape(8, 3) / 24
    mine = inputs[rank::2]
    for _ in range(2):
        optimizer.zero_grad()
        net(mine).pow(2).mean().backward()
        gradients = TensorDict.from_module(net).grad
        gradients.all_reduce()
        gradients /= 2
        optimizer.step()
    return rounded(TensorDict.from_module(net).data.flatten_keys("."))


def test_gradients_of_replicas_are_those_of_one_process(pair: Ranks) -> None:
    first, second = pair.all(replica)
    assert first == second
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs = torch.arange(24.0).reshape(8, 3) / 24
    for _ in range(2):
        optimizer.zero_grad()
        net(inputs).pow(2).mean().backward()
        optimizer.step()
    expected = rounded(TensorDict.from_module(net).data.flatten_keys("."))
    for key, values in expected.items():
        assert first[key] == pytest.approx(values, abs=2e-4)
