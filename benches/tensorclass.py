"""``python benches/tensorclass.py --peer DIR``: fields of tensorclasses.

Times reading and writing an attribute, compared with a handwritten property that looks
up one dictionary, and making an instance of five fields. The two implementations
alternate in separate processes. Prints the minimum of all rounds in nanoseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from machine import keep

CASES = {
    "read, batch []": ("scalar.a", 20_000),
    "read, batch [3]": ("rows.a", 20_000),
    "write, batch []": ("scalar.a = x", 20_000),
    "write, batch [3]": ("rows.a = x", 20_000),
    "make, by position": ("Data(x, x, x, x, x, batch_size=[3])", 2_000),
    "make, by name": ("Data(a=x, b=x, c=x, d=x, e=x, batch_size=[3])", 2_000),
    "clone(False)": ("rows.clone(False)", 2_000),
    "rows[0]": ("rows[0]", 2_000),
    "rows + 1": ("rows + 1", 2_000),
}
BY_HAND = "a property by hand"


def work() -> None:
    """Time all cases in this process; print one JSON object."""
    import timeit

    import torch

    from tensordict import TensorClass

    class Data(TensorClass):
        a: torch.Tensor
        b: torch.Tensor
        c: torch.Tensor
        d: torch.Tensor
        e: torch.Tensor

    class ByHand:
        def __init__(self, entries: dict[str, torch.Tensor]) -> None:
            self._entries = entries

        @property
        def a(self) -> torch.Tensor:
            return self._entries["a"]

    torch.set_num_threads(1)
    x = torch.zeros(3)
    scope = {
        "Data": Data,
        "x": x,
        "scalar": Data(x, x, x, x, x),
        "rows": Data(x, x, x, x, x, batch_size=[3]),
        "hand": ByHand({"a": x}),
    }
    found = {}
    for name, (code, number) in {**CASES, BY_HAND: ("hand.a", 20_000)}.items():
        best = min(timeit.repeat(code, globals=scope, number=number, repeat=7))
        found[name] = best / number * 1e9
    print(json.dumps(found))


def run(path: str | None) -> dict[str, float]:
    """Return the results of a fresh process that imports the package at ``path``."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if path is not None:
        environment["PYTHONPATH"] = path
    command = [sys.executable, __file__, "--worker"]
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Compare both packages, and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--json", help="file to write all numbers to")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work()
        return
    sides: dict[str, list[dict[str, float]]] = {"ours": [], "peer": []}
    for _ in range(arguments.rounds):
        sides["ours"].append(run(None))
        if arguments.peer:
            sides["peer"].append(run(arguments.peer))
    least = {
        side: {name: min(found[name] for found in rounds) for name in rounds[0]}
        for side, rounds in sides.items()
        if rounds
    }
    ours = least["ours"]
    for name, value in ours.items():
        line = f"{name:20} {value:8.0f} ns"
        if "peer" in least and name != BY_HAND:
            peer = least["peer"][name]
            line += f"   release {peer:8.0f} ns   {peer / value:5.1f} x"
        print(line)
    print(f"read / by hand: {ours['read, batch []'] / ours[BY_HAND]:.2f}")
    for size in ("[]", "[3]"):
        ratio = ours[f"write, batch {size}"] / ours[f"read, batch {size}"]
        print(f"write / read, batch {size}: {ratio:.2f}")
    keep(arguments.json, {"ns": least})


if __name__ == "__main__":
    main()
