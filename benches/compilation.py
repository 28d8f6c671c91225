"""``python benches/compilation.py --peer DIR``: compile time and compiled calls.

Each function is compiled with ``fullgraph=True`` and the ``eager`` backend (so that the
time is Dynamo's, not the code generator's) in a fresh process per implementation,
alternated. Prints seconds to the first answer and microseconds per later call, with the
ratios to the published release and their geometric means.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import sys

FUNCTIONS = {
    "index": "lambda td: td[0]",
    "slice": "lambda td: td[1:, 0]",
    "view": "lambda td: td.view(-1)",
    "reshape": "lambda td: td.reshape(3, 4)",
    "permute": "lambda td: td.permute(1, 0)",
    "stack": "lambda td: torch.stack([td, td], 0)",
    "cat": "lambda td: torch.cat([td, td], 0)",
    "apply": "lambda td: td.apply(lambda x: x + 1)",
    "arithmetic": "lambda td: td * 2 + td",
    "set": "lambda td: td.clone(False).set('new', td['k0'] + 1)",
    "select": "lambda td: td.select('k0', 'k1')",
    "update": "lambda td: td.clone(False).update({'k0': td['k0'] * 2})",
    "clone": "lambda td: td.clone()",
    "to": "lambda td: td.to(torch.float64)",
    "flatten_keys": "lambda td: td.flatten_keys('.')",
    "split": "lambda td: td.split(2)",
    "unbind": "lambda td: td.unbind(0)",
}


def work(names: list[str]) -> None:
    """Compile and time the functions in this process; one JSON line each."""
    import time
    import timeit

    import torch

    from tensordict import TensorDict

    torch.set_num_threads(1)

    def make(*, nested: bool) -> TensorDict:
        entries = {f"k{i}": torch.ones(4, 3, 2) for i in range(10)}
        if nested:
            entries["n"] = {f"k{i}": torch.ones(4, 3, 2) for i in range(10)}
        return TensorDict(entries, [4, 3])

    warm = torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)
    warm(torch.ones(3))  # the compiler's own imports are nobody's cost
    for name in names:
        function = eval(FUNCTIONS[name], {"torch": torch})
        for nested in (False, True):
            torch._dynamo.reset()
            td = make(nested=nested)
            answer: dict[str, object] = {"name": name, "nested": nested}
            try:
                compiled = torch.compile(function, backend="eager", fullgraph=True)
                began = time.perf_counter()
                compiled(td)
                answer["compile_s"] = time.perf_counter() - began
                compiled(make(nested=nested))
                timer = timeit.Timer(functools.partial(compiled, td))
                answer["call_s"] = min(timer.repeat(5, 200)) / 200
            except Exception as error:  # noqa: BLE001 - every failure is an answer
                answer["error"] = f"{type(error).__name__}: {error}"[:160]
            print(json.dumps(answer), flush=True)


def run(path: str | None, names: list[str]) -> dict[tuple[str, bool], dict]:
    """The answers of one fresh process with ``path`` first on its import path."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if path:
        environment["PYTHONPATH"] = path
    command = [sys.executable, "-W", "ignore", __file__, "--work", ",".join(names)]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {(a["name"], a["nested"]): a for a in answers}


def geometric_mean(values: list[float]) -> float:
    """The geometric mean, NaN of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True, help="folder of the published release")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default=",".join(FUNCTIONS))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    if "--work" in sys.argv:
        work(sys.argv[sys.argv.index("--work") + 1].split(","))
        return
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    best: dict[str, dict[tuple[str, bool], dict]] = {"ours": {}, "peer": {}}
    for _ in range(arguments.rounds):
        for side, path in (("ours", None), ("peer", arguments.peer)):
            for key, answer in run(path, names).items():
                kept = best[side].setdefault(key, answer)
                for field in ("compile_s", "call_s"):
                    if field in answer and field in kept:
                        kept[field] = min(kept[field], answer[field])
    ratios: dict[str, list[float]] = {"compile_s": [], "call_s": []}
    print(
        f"{'function':14s} {'tree':7s} {'compile s':>10s} {'/peer':>6s}"
        f" {'call us':>9s} {'/peer':>6s}"
    )
    for key, ours in best["ours"].items():
        peer = best["peer"].get(key, {})
        tree = "nested" if key[1] else "flat"
        if "error" in ours or "error" in peer:
            print(
                f"{key[0]:14s} {tree:7s} ours: {ours.get('error')}"
                f" peer: {peer.get('error')}"
            )
            continue
        row = [f"{key[0]:14s} {tree:7s}"]
        for field, scale in (("compile_s", 1), ("call_s", 1e6)):
            ratio = ours[field] / peer[field]
            ratios[field].append(ratio)
            row.append(f"{ours[field] * scale:10.3f} {ratio:6.2f}")
        print(" ".join(row))
    print(
        f"geometric means: compile {geometric_mean(ratios['compile_s']):.2f},"
        f" call {geometric_mean(ratios['call_s']):.2f} of the published release"
    )


if __name__ == "__main__":
    main()
