"""Learn to balance a pole with PPO, from rollouts in a memory-mapped buffer.

Steps a batch of cart poles at once and writes each step to a buffer of memory-mapped
files. Then computes advantages of the buffer, and updates a policy on shuffled rows with
the clipped objective of PPO. Prints for each iteration how long the poles stand.
"""

import argparse
import math
import tempfile

import torch
from torch import nn

from tensordict import TensorDict, TensorDictBase
from tensordict.data import BatchLoader
from tensordict.nn import TensorDictModule, TensorDictSequential

DISCOUNT, SMOOTHING, CLIP = 0.98, 0.95, 0.2


class CartPoles:
    """A batch of carts, each with a pole that falls unless the cart is pushed well."""

    def __init__(self, count: int) -> None:
        self.state = torch.empty(count, 4).uniform_(-0.05, 0.05)
        self.age = torch.zeros(count)

    def step(self, action: torch.Tensor) -> TensorDict:
        """Push each cart left (0) or right (1); restart the carts whose pole fell."""
        _, speed, angle, spin = self.state.unbind(-1)
        force = 20.0 * action - 10.0
        push = (force + 0.05 * spin**2 * angle.sin()) / 1.1
        turn = 9.8 * angle.sin() - angle.cos() * push
        turn = turn / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        move = push - 0.05 * turn * angle.cos() / 1.1
        self.state = self.state + 0.02 * torch.stack([speed, move, spin, turn], -1)
        self.age += 1
        fell = (self.state[:, 2].abs() > math.radians(12)) | (
            self.state[:, 0].abs() > 2.4
        )
        stood = self.age >= 200
        done = fell | stood
        result = TensorDict(
            reward=(~fell).float(),
            done=done,
            length=self.age.clone(),
            batch_size=done.shape,
        )
        fresh = torch.empty_like(self.state).uniform_(-0.05, 0.05)
        self.state = torch.where(done[:, None], fresh, self.state)
        self.age[done] = 0
        return result


def new_actor() -> TensorDictSequential:
    """Make a network that reads ``observation`` and writes ``logits`` and ``value``."""
    body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    return TensorDictSequential(
        TensorDictModule(body, ["observation"], ["hidden"]),
        TensorDictModule(nn.Linear(64, 2), ["hidden"], ["logits"]),
        TensorDictModule(nn.Linear(64, 1), ["hidden"], ["value"]),
    )


@torch.no_grad()
def collect(
    poles: CartPoles, actor: TensorDictSequential, buffer: TensorDictBase
) -> float:
    """Fill ``buffer`` [poles, steps] in place; return the mean episode length."""
    for step in range(buffer.batch_size[1]):
        seen = actor(TensorDict(observation=poles.state, batch_size=poles.age.shape))
        chosen = torch.distributions.Categorical(logits=seen["logits"])
        action = chosen.sample()
        row = poles.step(action)
        row["observation"] = seen["observation"]
        row["value"] = seen["value"].squeeze(-1)
        row["action"] = action
        row["log_prob"] = chosen.log_prob(action)
        buffer[:, step] = row  # Writes to the files.
    lengths = buffer["length"][buffer["done"]]
    return lengths.mean().item() if len(lengths) else float(buffer.batch_size[1])


@torch.no_grad()
def add_advantages(
    poles: CartPoles, actor: TensorDictSequential, buffer: TensorDictBase
) -> TensorDict:
    """Return the rows of the buffer as one batch, with advantages and returns."""
    last = actor(TensorDict(observation=poles.state, batch_size=poles.age.shape))
    following, advantage = last["value"].squeeze(-1), torch.zeros(len(buffer))
    advantages = torch.zeros(buffer.batch_size)
    for step in reversed(range(buffer.batch_size[1])):
        now = buffer[:, step]
        alive = (~now["done"]).float()
        error = now["reward"] + DISCOUNT * following * alive - now["value"]
        advantage = error + DISCOUNT * SMOOTHING * alive * advantage
        advantages[:, step], following = advantage, now["value"]
    rows = TensorDict(dict(buffer.items()), batch_size=buffer.batch_size)
    rows["advantage"] = (advantages - advantages.mean()) / advantages.std()
    rows["target"] = advantages + rows["value"]
    return rows.flatten(0, 1)


def update(
    actor: TensorDictSequential, optimizer: torch.optim.Optimizer, rows: TensorDict
) -> None:
    """Run a few epochs of updates on shuffled batches of the rows."""
    loader = BatchLoader(rows, batch_size=256, shuffle=True)
    for _ in range(4):
        for batch in loader:
            seen = actor(batch.select("observation"))
            chosen = torch.distributions.Categorical(logits=seen["logits"])
            ratio = (chosen.log_prob(batch["action"]) - batch["log_prob"]).exp()
            gain = torch.minimum(
                ratio * batch["advantage"],
                ratio.clamp(1 - CLIP, 1 + CLIP) * batch["advantage"],
            )
            miss = (seen["value"].squeeze(-1) - batch["target"]).square()
            loss = 0.01 * miss.mean() - gain.mean() - 0.01 * chosen.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def main() -> list[float]:
    """Train, print the table, and return the mean lengths of the iterations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--poles", type=int, default=32)
    parser.add_argument("--steps", type=int, default=64)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    poles, actor, lengths = CartPoles(arguments.poles), new_actor(), []
    optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
    row = TensorDict(
        observation=torch.zeros(4),
        action=torch.tensor(0),
        reward=torch.tensor(0.0),
        done=torch.tensor(data=False),
        length=torch.tensor(0.0),
        value=torch.tensor(0.0),
        log_prob=torch.tensor(0.0),
    )
    with tempfile.TemporaryDirectory() as folder:
        shape = (arguments.poles, arguments.steps)
        buffer = row.expand(shape).memmap_like(f"{folder}/buffer")
        for iteration in range(arguments.iterations):
            length = collect(poles, actor, buffer)
            update(actor, optimizer, add_advantages(poles, actor, buffer))
            lengths.append(length)
            bar = "#" * round(length / 4)
            print(f"iteration {iteration + 1:3}: {length:6.1f} steps {bar}")
    return lengths


if __name__ == "__main__":
    main()
