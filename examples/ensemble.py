"""Train an ensemble of networks at once, and see where its predictions are uncertain.

Stacks the parameters of several networks into one tensordict. One call of ``torch.vmap``
runs all networks, and one optimizer trains them, each on its own random rows. The networks
disagree where there was no training data. Prints a table of the mean and the spread of the
predictions beside the true values.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

from tensordict import TensorDict, TensorDictBase, TensorDictParams

LOW, HIGH = -1.0, 1.0
"""The interval of the training data."""


def truth(x: torch.Tensor) -> torch.Tensor:
    """Return the true values that the networks learn."""
    return (3 * x).sin() + 0.5 * x


def new_network() -> nn.Module:
    """Make one network of the ensemble."""
    return nn.Sequential(
        nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )


class Ensemble:
    """Networks of one shape, with their parameters stacked in ``params``."""

    def __init__(self, members: int) -> None:
        networks = [new_network() for _ in range(members)]
        self.skeleton = networks[0].to("meta")  # The structure, without values.
        networks[0] = new_network()
        self.params = TensorDictParams(TensorDict.from_modules(*networks))

    def call_one(self, params: TensorDictBase, x: torch.Tensor) -> torch.Tensor:
        """Run the skeleton with the parameters of one member."""
        with params.to_module(self.skeleton):
            result: torch.Tensor = self.skeleton(x)
        return result

    def __call__(self, x: torch.Tensor, *, in_dim: int | None = None) -> torch.Tensor:
        """Run every member, on the same ``x`` or each on one row of it."""
        call = torch.vmap(self.call_one, (0, in_dim))
        result: torch.Tensor = call(self.params, x)
        return result


def train(ensemble: Ensemble, data: TensorDict, steps: int) -> list[float]:
    """Train all members at once, each on its own samples; return the losses."""
    members = ensemble.params.batch_size[0]
    optimizer = torch.optim.Adam(ensemble.params.parameters(), lr=1e-2)
    # Random rows for each member, with replacement: [members, rows].
    own = data[torch.randint(len(data), (members, len(data)))]
    losses = []
    for _ in range(steps):
        error = (ensemble(own["x"], in_dim=0) - own["y"]).square()
        loss = error.mean((1, 2)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item() / members)
    return losses


def main() -> tuple[float, float]:
    """Train, print, and return the spread inside and outside of the training data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    x = torch.empty(128, 1).uniform_(LOW, HIGH)
    data = TensorDict(x=x, y=truth(x) + 0.05 * torch.randn_like(x), batch_size=[128])
    ensemble = Ensemble(arguments.members)
    losses = train(ensemble, data, arguments.steps)
    print(f"{arguments.members} members, loss {losses[0]:.3f} to {losses[-1]:.4f}")
    # One file for each parameter holds all members. Load only member 2.
    with tempfile.TemporaryDirectory() as folder:
        ensemble.params.data.memmap(Path(folder, "ensemble"))
        third = TensorDict.load_memmap(Path(folder, "ensemble"))[2]
        x = torch.linspace(2 * LOW, 2 * HIGH, 17)[:, None]
        with torch.no_grad():
            guesses = ensemble(x)
            alone = ensemble.call_one(third, x)
    if not torch.allclose(alone, guesses[2], atol=1e-5):
        message = "the loaded member computes other values than the saved member"
        raise RuntimeError(message)
    mean, spread = guesses.mean(0)[:, 0], guesses.std(0)[:, 0]
    print("\n     x    truth     mean   spread")
    rows = zip(x[:, 0], truth(x)[:, 0], mean, spread, strict=True)
    for numbers in rows:
        cells = " ".join(f"{number.item():8.3f}" for number in numbers)
        print(f"{cells}  {'=' * round(100 * numbers[-1].item())}".rstrip())
    inside = x[:, 0].abs() <= HIGH
    found = spread[inside].mean().item(), spread[~inside].mean().item()
    print("\nspread where there was data {:.3f}, elsewhere {:.3f}".format(*found))
    return found


if __name__ == "__main__":
    main()
