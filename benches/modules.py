"""``python benches/modules.py --peer DIR``: modules and the swap of parameters.

Each case is timed beside the equivalent torch calls, in a fresh process for each
implementation; the processes alternate. Prints microseconds (the minimum of all
rounds), and the ratios to bare torch and to the published release.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

NAMES = ("module", "sequence", "from_module", "swap", "swap_plain")


def work() -> None:
    """Time all cases in this process; print one JSON object."""
    import time
    import timeit

    import torch
    from torch import nn

    from tensordict import TensorDict, from_module
    from tensordict.nn import TensorDictModule, TensorDictSequential

    torch.set_num_threads(1)

    def least(function, number: int) -> float:
        function()
        # Processor time: other processes on the machine do not count.
        rounds = timeit.repeat(
            function, timer=time.process_time, number=number, repeat=15
        )
        return min(rounds) / number * 1e6

    found = {}
    linear = nn.Linear(3, 4)
    module = TensorDictModule(linear, ["x"], ["y"])
    x = torch.randn(3)
    td = TensorDict(x=x)
    found["module"] = (least(lambda: linear(x), 2000), least(lambda: module(td), 2000))
    linears = [nn.Linear(8, 8) for _ in range(5)]
    sequence = TensorDictSequential(
        *[
            TensorDictModule(part, [f"k{i}"], [f"k{i + 1}"])
            for i, part in enumerate(linears)
        ]
    )
    rows = torch.randn(4, 8)
    batch = TensorDict(k0=rows, batch_size=[4])

    def bare() -> torch.Tensor:
        value = rows
        for part in linears:
            value = part(value)
        return value

    found["sequence"] = (least(bare, 500), least(lambda: sequence(batch), 500))
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])
    found["from_module"] = (
        least(lambda: dict(net.named_parameters()), 500),
        least(lambda: from_module(net), 500),
    )
    own = TensorDict.from_module(net).clone().lock_()
    plain = from_module(net).data.clone().lock_()
    slots = [
        (part._parameters, name)
        for part in net.modules()
        for name in list(part._parameters)
    ]

    def bare_swap() -> None:
        before = [parameters[name] for parameters, name in slots]
        for (parameters, name), value in zip(slots, before, strict=True):
            parameters[name] = value
        for (parameters, name), value in zip(slots, before, strict=True):
            parameters[name] = value

    def swap(params) -> None:
        with params.to_module(net):
            pass

    floor = least(bare_swap, 500)
    found["swap"] = (floor, least(lambda: swap(own), 300))
    found["swap_plain"] = (floor, least(lambda: swap(plain), 300))
    print(json.dumps(found))


def run(path: str | None) -> dict[str, list[float]]:
    """Return the times of one implementation, from a separate process."""
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = path
    output = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--work"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work()
        return
    sides: dict[str, list] = {"ours": []}
    if arguments.peer:
        sides["peer"] = []
    for _ in range(arguments.rounds):
        for side, results in sides.items():
            results.append(run(arguments.peer if side == "peer" else None))
    best = {
        side: {
            name: (
                min(result[name][0] for result in results),
                min(result[name][1] for result in results),
            )
            for name in NAMES
        }
        for side, results in sides.items()
    }
    for name in NAMES:
        bare, ours = best["ours"][name]
        line = (
            f"{name:12s} bare {bare:7.1f}  ours {ours:7.1f} ({ours / bare:.2f} x bare)"
        )
        if "peer" in best:
            _, peer = best["peer"][name]
            line += f"  release {peer:7.1f} ({peer / ours:.2f} x ours)"
        print(line)


if __name__ == "__main__":
    main()
