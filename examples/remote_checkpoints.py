"""Store the checkpoints of a training in an object store, and resume elsewhere.

    python examples/remote_checkpoints.py
    python examples/remote_checkpoints.py --url s3://bucket/run --option aws_region=eu-central-1

Steps are uploaded while the training goes on, and are listed once they are complete.
Without a URL, the store is the memory of this process.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch

from tensordict.checkpoint import Checkpointer
from tensordict.storage.remote import place_of


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="memory://example/run")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=40)
    return parser.parse_args()


def train(
    checkpointer: Checkpointer, data: torch.Tensor, until: int
) -> dict[int, float]:
    """Train up to a step, from the last saved step, and return the losses."""
    torch.manual_seed(0)
    backbone = torch.nn.Linear(16, 64).requires_grad_(requires_grad=False)
    head = torch.nn.Linear(64, 1)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    items: dict[str, Any] = {"backbone": backbone, "head": head, "optimizer": optimizer}
    first = 0
    if checkpointer.latest() is not None:
        first = checkpointer.restore(**items).step + 1
    losses = {}
    for step in range(first, until):
        loss = (head(backbone(data).relu()) - data.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.item()
        if step % 10 == 9:
            # `save` copies the values and uploads them while the training goes on.
            checkpointer.save(step, metrics={"loss": losses[step]}, **items)
    return losses


def main() -> dict[int, float]:
    """Train in two parts, each with a new checkpointer."""
    chosen = arguments()
    options = dict(option.split("=", 1) for option in chosen.option) or None
    data = torch.randn(256, 16)
    losses: dict[int, float] = {}
    for part, until in enumerate((chosen.steps // 2, chosen.steps)):
        with (
            tempfile.TemporaryDirectory() as staging,
            Checkpointer(
                chosen.url,
                keep=2,
                background=True,
                dedupe=True,  # The backbone does not change: it is stored once.
                staging=staging,
                storage_options=options,
            ) as checkpointer,
        ):
            losses |= train(checkpointer, data, until)
            checkpointer.wait()
            print(f"part {part + 1}: steps {checkpointer.steps()} are there")
    for found in sorted(place_of(chosen.url, options).list()):
        print(f"{found.size:>8}  {found.name}")
    best = min(losses, key=losses.__getitem__)
    print(f"best loss {losses[best]:.4f} in step {best}")
    return losses


if __name__ == "__main__":
    main()
