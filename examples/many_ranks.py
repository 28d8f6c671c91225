"""Train a language model on several ranks, kill a rank, and resume on other meshes.

Shards a small model over four processes with FSDP2 and tensor parallelism, with activation
checkpointing, and saves each step in the background. One rank is killed at a random step.
The training resumes from the last complete step, on the same mesh and on a mesh with fewer
ranks. Prints the losses of all runs side by side.
"""

import argparse
import itertools
import math
import multiprocessing
import os
import shutil
import signal
import tempfile
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import parallel
from torch.nn import functional

from tensordict import TensorDict
from tensordict.checkpoint import Checkpointer
from tensordict.data import BatchLoader

VOCABULARY, WIDTH, LENGTH, ROWS_OF_A_STEP = 16, 32, 16, 32


class Run(NamedTuple):
    """The options of a training for its ranks: ``mesh`` is data x tensor parallel."""

    folder: Path
    mesh: tuple[int, int]
    steps: int
    dies: tuple[int, int] | None = None  # The rank to kill, and the step.
    is_compiled: bool = False


class Block(nn.Module):
    """A block that mixes each token with the previous one, half on each ``tp`` rank."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(2 * WIDTH)
        self.up, self.down = nn.Linear(2 * WIDTH, 128), nn.Linear(128, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, LENGTH, WIDTH] to the same shape."""
        before = functional.pad(x, (0, 0, 1, 0))[:, :-1]
        both = self.norm(torch.cat([x, before], -1))
        return torch.add(x, self.down(functional.gelu(self.up(both))))


def new_model(mesh: DeviceMesh, is_compiled: bool) -> nn.Sequential:
    """Make the model, sharded over ``dp``; its blocks are sharded over ``tp``, too."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH))
    plan: Any = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    for _ in range(2):
        block = parallel.parallelize_module(Block(), mesh["tp"], plan)
        block = checkpoint_wrapper.checkpoint_wrapper(block)
        if is_compiled:
            block.compile()
        model.append(fully_shard(block, mesh=mesh["dp"]))
    model.append(nn.Linear(WIDTH, VOCABULARY, bias=False))
    return cast("nn.Sequential", fully_shard(model, mesh=mesh["dp"]))


def texts(count: int) -> TensorDict:
    """Make rows of tokens; each row counts in its own step size."""
    generator = torch.Generator().manual_seed(0)
    first, step = torch.randint(1, VOCABULARY, (2, count, 1), generator=generator)
    tokens = (first + step * torch.arange(LENGTH + 1)) % VOCABULARY
    return TensorDict(tokens=tokens, batch_size=[count])


def train(rank: int, run: Run, rendezvous: str, port: Connection) -> None:
    """Train on one rank, from the last complete checkpoint if there is one."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=math.prod(run.mesh),
    )
    mesh = init_device_mesh("cpu", run.mesh, mesh_dim_names=("dp", "tp"))
    model = new_model(mesh, run.is_compiled)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = BatchLoader(
        texts(320), ROWS_OF_A_STEP // run.mesh[0], shuffle=True, seed=0, mesh=mesh
    )
    items: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    with Checkpointer(run.folder, background=True, handle_sigterm=True) as checkpointer:
        done = 0
        if checkpointer.latest() is not None:
            done = checkpointer.restore(**items)["done"]
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        of_this_run = itertools.islice(batches, run.steps - done)
        for step, batch in enumerate(of_this_run, done + 1):
            logits = model(batch["tokens"][:, :-1])
            loss: Any = functional.cross_entropy(logits.mT, batch["tokens"][:, 1:])
            optimizer.zero_grad()
            loss.backward()
            if run.dies == (rank, step):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            mean = loss.detach() / run.mesh[0]
            distributed.all_reduce(mean, group=mesh["dp"].get_group())
            if rank == 0:
                port.send((step, mean.item()))
            checkpointer.save(step, **items, done=step)
            if checkpointer.reached_preemption(step):
                break
    distributed.destroy_process_group()


def start(run: Run) -> dict[int, float]:
    """Train in one process for each rank of the mesh; return the losses by step."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tensordict", "torch.distributed.fsdp"])
    here, there = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=train, args=(rank, run, f"{folder}/ranks", there))
            for rank in range(math.prod(run.mesh))
        ]
        for process in ranks:
            process.start()
        running: dict[Any, Any] = {process.sentinel: process for process in ranks}
        while running:
            for process in [running.pop(sentinel) for sentinel in wait(list(running))]:
                process.join()
                for other in ranks if process.exitcode else []:
                    other.kill()  # It would wait for the dead rank forever.
    if run.dies is None and any(process.exitcode for process in ranks):
        raise SystemExit("a rank has failed")
    losses = {}
    while here.poll():
        step, losses[step] = here.recv()
    return losses


def main() -> dict[str, dict[int, float]]:
    """Train undisturbed, killed and resumed, and return the losses of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--compile", action="store_true", help="the blocks")
    arguments = parser.parse_args()
    dies = int(torch.randint(4, ())), int(torch.randint(3, arguments.steps, ()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Run(folder / "run", (2, 2), arguments.steps, None, arguments.compile)
        losses = {"undisturbed": start(run._replace(folder=folder / "undisturbed"))}
        losses["killed"] = start(run._replace(dies=dies))
        last = Checkpointer(run.folder).latest()
        print(f"rank {dies[0]} was killed in step {dies[1]}; goes on after step {last}")
        shutil.copytree(run.folder, folder / "other")
        losses["2 x 2 again"] = start(run)
        losses["2 x 1"] = start(run._replace(folder=folder / "other", mesh=(2, 1)))
    print("\nstep" + "".join(f"{name:>14}" for name in losses))
    whole = losses["undisturbed"]
    for step in whole:
        shown = [f"{one[step]:.7f}" if step in one else "" for one in losses.values()]
        print(f"{step:4}" + "".join(f"{text:>14}" for text in shown))
    for name in ("2 x 2 again", "2 x 1"):
        most = max(abs(loss - whole[step]) for step, loss in losses[name].items())
        print(f"largest difference of {name}: {most:.1e}")
    return losses


if __name__ == "__main__":
    main()
