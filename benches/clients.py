"""``python benches/clients.py --peer DIR``: typical steps of user programs.

Two workers, one for each package, alternate in short rounds at every case. Prints the
CPU time of a call (the best and the median round), and the ratio to the published
release.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Case = Callable[[], Any]

ROUND_S = 0.03
"""The minimum seconds of a round of one case."""


def training_batch(rows: int = 64) -> Any:
    """Build a batch of a language model's trainer: 30 leaves, two of strings, nested."""
    import torch

    from tensordict import NonTensorData, NonTensorStack, TensorDict

    def leaves(prefix: str, count: int) -> dict[str, torch.Tensor]:
        return {f"{prefix}{number}": torch.ones(rows, 8) for number in range(count)}

    batch = TensorDict(leaves("tensor", 16), batch_size=[rows])
    batch["rollout"] = TensorDict(leaves("log_probs", 8), batch_size=[rows])
    batch["rollout", "meta"] = TensorDict(leaves("mask", 4), batch_size=[rows])
    batch["prompt"] = NonTensorStack(
        *[NonTensorData(f"prompt {row}") for row in range(rows)]
    )
    batch["task"] = NonTensorData("countdown", batch_size=[rows])
    return batch


def pickling() -> dict[str, Case]:
    """Pickle and unpickle batches, as for other processes."""
    import io
    import pickle
    import tempfile
    from multiprocessing.reduction import ForkingPickler

    import torch

    from tensordict import TensorDict

    batch = training_batch()
    tensors = batch.exclude("prompt", "task")
    many = [TensorDict({"a": torch.ones(1)}) for _ in range(64)]
    sent, sent_5 = pickle.dumps(batch), pickle.dumps(batch, protocol=5)
    sent_many = pickle.dumps(many)
    directory = tempfile.TemporaryDirectory()
    mapped = TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2)}})
    mapped.memmap_(directory.name)
    saved = io.BytesIO()
    torch.save(batch, saved)

    consolidated = io.BytesIO()
    torch.save(batch.contiguous().consolidate(), consolidated)

    def send() -> Any:
        assert directory.name  # It lives as long as the case.
        return ForkingPickler.dumps(mapped)

    def save() -> None:
        torch.save(batch, io.BytesIO())

    def consolidate() -> None:
        torch.save(batch.contiguous().consolidate(), io.BytesIO())

    def load_consolidated() -> Any:
        consolidated.seek(0)
        return torch.load(consolidated, weights_only=False)

    def load() -> Any:
        saved.seek(0)
        return torch.load(saved, weights_only=False)

    return {
        "pickle a batch": lambda: pickle.dumps(batch),
        "unpickle a batch": lambda: pickle.loads(sent),
        "pickle a batch, protocol 5": lambda: pickle.dumps(batch, protocol=5),
        "unpickle a batch, protocol 5": lambda: pickle.loads(sent_5),
        "pickle a batch of tensors": lambda: pickle.dumps(tensors),
        "pickle 64 small": lambda: pickle.dumps(many),
        "unpickle 64 small": lambda: pickle.loads(sent_many),
        "ForkingPickler of a mapped one": send,
        "torch.save of a batch": save,
        "torch.load of a batch": load,
        "consolidate and torch.save": consolidate,
        "torch.load of a consolidated": load_consolidated,
    }


def replay_buffer() -> dict[str, Case]:
    """Write to a storage of 20 leaves, in memory-mapped files and in memory."""
    import tempfile

    import torch

    from tensordict import TensorDict

    frame = TensorDict(
        {
            **{f"leaf{number}": torch.zeros(4) for number in range(10)},
            "next": TensorDict(
                {f"leaf{number}": torch.zeros(4) for number in range(10)}
            ),
        }
    )
    directory = tempfile.TemporaryDirectory()
    mapped = frame.expand(1000).memmap_like(directory.name)
    memory = frame.expand(1000).clone()
    batch = frame.expand(32).clone()
    rows = torch.arange(100, 132)
    sampled = torch.randint(0, 1000, (64,))
    state = {"cursor": 0, "directory": directory}

    def extend(storage: Any) -> None:
        storage[rows] = batch

    def extend_slice() -> None:
        mapped[100:132] = batch

    def add() -> None:
        mapped[state["cursor"]] = frame
        state["cursor"] = (state["cursor"] + 1) % 1000  # type: ignore[operator]

    return {
        "mapped[rows] = batch": lambda: extend(mapped),
        "mapped[100:132] = batch": extend_slice,
        "mapped[i] = frame": add,
        "mapped[sample]": lambda: mapped[sampled],
        "memory[rows] = batch": lambda: extend(memory),
        "memory[sample]": lambda: memory[sampled],
    }


def environment() -> dict[str, Case]:
    """Make rollouts in the loop of an environment, and process their steps."""
    import torch

    from tensordict import TensorDict

    def reset() -> Any:
        return TensorDict(
            {
                "observation": torch.zeros(8, 4),
                "done": torch.zeros(8, 1, dtype=torch.bool),
                "info": {"steps": torch.zeros(8, 1)},
            },
            batch_size=[8],
        )

    first = reset()
    following = reset().set("reward", torch.zeros(8, 1))

    def step() -> Any:
        data = first.clone(False)
        data.set("action", data.get("observation"))
        data["next"] = following.select("observation", "reward", "done").update(
            {"terminated": following["done"]}
        )
        data.get(("info", "steps"))
        moved = data["next"].exclude("reward").rename_key_("terminated", "truncated")
        return data.exclude("next").update(moved)

    steps = [step().set("reward", torch.zeros(8, 1)) for _ in range(64)]
    rollout = torch.stack(steps, 1)
    chunks = rollout.chunk(8, 0)

    def advantages() -> Any:
        gain = torch.zeros(8, 1)
        for index in reversed(range(64)):
            now = rollout[:, index]
            gain = now["reward"] + 0.9 * gain * ~now["done"]
        return gain

    def minibatches() -> None:
        flat = rollout.reshape(-1)
        shuffled = flat[torch.randperm(512)]
        for part in shuffled.split(64):
            part.to("cpu")

    return {
        "step of an environment": step,
        "stack of 64 steps": lambda: torch.stack(steps, 1),
        "cat of chunks": lambda: torch.cat(chunks, 0),
        "shuffle and minibatches": minibatches,
        "advantages, step by step": advantages,
    }


def specs() -> dict[str, Case]:
    """Make and check tensordicts like composite specs."""
    import torch

    from tensordict import TensorDict

    shapes = {("agent", f"obs{number}"): (4, 3) for number in range(5)}
    shapes.update({(f"flag{number}",): (4, 1) for number in range(5)})

    def make(create: Callable[..., Any]) -> Any:
        data = TensorDict({}, batch_size=[4])
        for key, shape in shapes.items():
            data.set(key, create(shape))
        return data

    zeros, other = make(torch.zeros), make(torch.zeros)

    def equal() -> Any:
        return (zeros == other).all()

    def is_in() -> bool:
        return all(bool((zeros.get(key) == 0).all()) for key in zeros.keys(True, True))

    return {
        "spec: zero": lambda: make(torch.zeros),
        "spec: rand": lambda: make(torch.rand),
        "spec: clone, zero_": lambda: zeros.clone().zero_(),
        "spec: (a == b).all()": equal,
        "spec: expand, index": lambda: zeros.expand(3, 4)[0],
        "spec: is_in": is_in,
        "spec: empty": lambda: zeros.empty(recurse=True),
    }


def modules() -> dict[str, Case]:
    """Call sequences of modules, ensembles and typed records."""
    import torch
    from torch import nn

    from tensordict import TensorDict, tensorclass
    from tensordict.nn import TensorDictModule, TensorDictSequential

    hidden = TensorDictModule(nn.Identity(), ["observation"], ["hidden"])
    policy = TensorDictSequential(
        hidden, TensorDictModule(nn.Identity(), ["hidden"], [("agent", "action")])
    )
    data = TensorDict({"observation": torch.zeros(4, 3)}, batch_size=[4])
    nets = [nn.Linear(3, 3) for _ in range(4)]
    ensemble = TensorDict.from_modules(*nets)
    template = nn.Linear(3, 3)

    def call(parameters: Any, value: torch.Tensor) -> torch.Tensor:
        with parameters.to_module(template):
            out: torch.Tensor = template(value)
        return out

    @tensorclass
    class Record:
        observation: torch.Tensor
        reward: torch.Tensor
        note: str = ""

    def record() -> Any:
        made = Record(data["observation"], data["observation"], "x", batch_size=[4])
        made.reward = made.observation
        return made[0].note

    with torch.no_grad():
        vmapped = torch.vmap(call, (0, None))
    return {
        "sequence of modules": lambda: policy(data.clone(False)),
        "ensemble by vmap": lambda: vmapped(ensemble, data["observation"]),
        "tensorclass": record,
    }


def protocols() -> dict[str, Case]:
    """Combine batches like trainers of language models."""
    import torch

    from tensordict import TensorDict

    batch = training_batch(16)
    tensors = batch.exclude("prompt", "task")
    nested = tensors.to_dict()
    left = tensors.select("tensor1", "rollout")
    right = tensors.exclude("tensor1", "rollout")

    def chunked() -> Any:
        return torch.cat([part.clone(False) for part in batch.chunk(4)])

    return {
        "to_dict": tensors.to_dict,
        "from_dict": lambda: TensorDict.from_dict(nested, batch_size=[16]),
        "union": lambda: left.clone(False).update(right),
        "repeat_interleave": lambda: tensors.repeat_interleave(2, 0),
        "chunk and cat, with strings": chunked,
    }


TOPICS = (pickling, replay_buffer, environment, specs, modules, protocols)


def round_us(case: Case) -> float:
    """Return the CPU microseconds of a call: the best of three parts of a round."""
    start_s = time.process_time()
    case()
    number = max(1, int(ROUND_S / 3 / max(time.process_time() - start_s, 1e-6)))
    times = []
    for _ in range(3):
        start_s = time.process_time()
        for _ in range(number):
            case()
        times.append((time.process_time() - start_s) / number)
    return min(times) * 1e6


def work() -> None:
    """Time the cases whose names come on standard input."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = {name: case for topic in TOPICS for name, case in topic().items()}
    for case in cases.values():
        for _ in range(3):
            case()
    print(json.dumps([*cases]), flush=True)
    for line in sys.stdin:
        print(round_us(cases[line.rstrip("\n")]), flush=True)


class Worker:
    """A process with one of the packages."""

    def __init__(self, path: str | None) -> None:
        environment = dict(os.environ)
        if path is not None:
            environment["PYTHONPATH"] = path
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--worker"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.names: list[str] = json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def time_us(self, name: str) -> float:
        """Return the time of one round of a case."""
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=9, help="rounds (default: 9)")
    parser.add_argument("--only", help="run cases with this in the name", default="")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work()
        return
    workers = [Worker(None)]
    if arguments.peer:
        workers.append(Worker(arguments.peer))
    print(f"{arguments.rounds} rounds; microseconds of processor time: best, median")
    speeds = []
    for name in workers[0].names:
        if arguments.only not in name:
            continue
        times: list[list[float]] = [[] for _ in workers]
        for _ in range(arguments.rounds):
            for worker, found in zip(workers, times, strict=True):
                found.append(worker.time_us(name))
        line = f"{name:32}"
        for found in times:
            line += f"{min(found):10.1f}{statistics.median(found):10.1f}"
        if arguments.peer:
            ours, peer = times
            medians = statistics.median(peer) / statistics.median(ours)
            speeds.append(min(peer) / min(ours))
            line += f"{speeds[-1]:8.2f}{medians:8.2f}"
        print(line, flush=True)
    if speeds:
        print(f"median over {len(speeds)} cases: {statistics.median(speeds):.2f}")
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
