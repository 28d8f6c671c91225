"""``python benches/compilation.py --peer DIR``: compile time and compiled calls.

Each function is compiled with ``fullgraph=True`` and the ``eager`` backend (so that the
time is Dynamo's, not the code generator's) in a fresh process per implementation,
alternated. Prints milliseconds to the first answer, microseconds per later call and how
many of them the guards take, with the ratios to the published release and their
geometric means. All are the processor time of the process, the least of some counts: that
is what a busy machine leaves of a number. A function that is compiled again for other
values is marked.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
"""What is called with a container of ten leaves, flat, and of twenty, nested."""

_CLASS = """
@tensorclass
class Data:
    k0: torch.Tensor
    k1: torch.Tensor
    label: str = "x"
"""
_INSTANCE = f"""{_CLASS}
make = lambda td: Data(k0=td["k0"], k1=td["k1"], batch_size=[4, 3])
"""
_STACK = """
make = lambda td: LazyStackedTensorDict(td.clone(), td.clone(), stack_dim=0)
"""
_MODULE = """
module = TensorDictModule(torch.nn.Linear(2, 2), ["k0"], ["out"])
"""
_SEQUENCE = """
module = TensorDictSequential(*(
    TensorDictModule(torch.nn.Linear(2, 2), [f"k{i}"], [f"k{i + 1}"]) for i in range(5)
))
"""
_PROBABILISTIC = """
net = torch.nn.Sequential(torch.nn.Linear(2, 4), NormalParamExtractor())
module = ProbabilisticTensorDictSequential(
    TensorDictModule(net, ["k0"], ["loc", "scale"]),
    ProbabilisticTensorDictModule(
        in_keys=["loc", "scale"],
        out_keys=["sample"],
        distribution_class=torch.distributions.Normal,
        default_interaction_type=InteractionType.MEAN,
    ),
)
"""
_SWAP = """
net = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(5)])
params = TensorDict.from_module(net)

def swapped(td):
    with params.to_module(net):
        return net(td["k0"])
"""
SUBJECTS = {
    "module": (_MODULE, "lambda td: module(td)"),
    "sequence": (_SEQUENCE, "lambda td: module(td)"),
    "probabilistic": (_PROBABILISTIC, "lambda td: module(td)"),
    "to_module": (_SWAP, "swapped"),
    "class_construct": (
        _CLASS,
        "lambda td: Data(k0=td['k0'], k1=td['k1'], batch_size=[4, 3])",
    ),
    "class_attribute": (_INSTANCE, "lambda data: data.k0 + data.k1"),
    "class_method": (_INSTANCE, "lambda data: data.view(-1)[0]"),
    "lazy_get": (_STACK, "lambda stack: stack.get('k0')"),
    "lazy_index": (_STACK, "lambda stack: stack[1]"),
    "lazy_map": (_STACK, "lambda stack: stack + 1"),
}
"""What runs once, and a function; ``make`` makes its argument of a flat container."""


FIELDS = {"compile_s": 1e3, "call_s": 1e6, "guards_s": 1e6}
"""What is measured, and how many of the unit in the table make a second."""


def work(names: list[str]) -> None:
    """Compile and time the functions in this process; one JSON line each."""
    import time
    import timeit

    import torch
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    import tensordict
    import tensordict.nn

    torch.set_num_threads(1)
    known = {"torch": torch, **vars(tensordict), **vars(tensordict.nn)}

    def make(*, nested: bool) -> tensordict.TensorDict:
        entries = {f"k{i}": torch.rand(4, 3, 2) for i in range(10)}
        if nested:
            entries["n"] = {f"k{i}": torch.rand(4, 3, 2) for i in range(10)}
        return tensordict.TensorDict(entries, [4, 3])

    def least(function: Callable[[], object], times: int) -> float:
        timer = timeit.Timer(function, timer=time.process_time)
        return min(timer.repeat(5, times)) / times

    warm = torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)
    warm(torch.ones(3))  # the compiler's own imports are nobody's cost
    for name in names:
        setup, text = SUBJECTS.get(name, ("", FUNCTIONS.get(name, "")))
        for nested in (False, True) if name in FUNCTIONS else (False,):
            answer: dict[str, object] = {"name": name, "nested": nested}
            try:
                space = dict(known)
                exec(setup, space)
                function = eval(text, space)
                prepare = space.get("make", lambda td: td)
                argument = prepare(make(nested=nested))
                seconds = []
                for _ in range(3):
                    torch._dynamo.reset()
                    compiled = torch.compile(function, backend="eager", fullgraph=True)
                    fresh = prepare(make(nested=nested))
                    began = time.process_time()
                    compiled(fresh)
                    seconds.append(time.process_time() - began)
                answer["compile_s"] = min(seconds)
                compiled(argument)  # a module has written into it: its keys are others
                entries = len(_debug_get_cache_entry_list(function.__code__))
                for _ in range(3):
                    compiled(prepare(make(nested=nested)))
                found = _debug_get_cache_entry_list(function.__code__)
                answer["recompiled"] = len(found) - entries
                answer["call_s"] = least(functools.partial(compiled, argument), 200)
                (parameter, *_) = function.__code__.co_varnames
                values = {parameter: argument}
                checks = [each.guard_manager.check for each in found]
                # What a module has written into its argument may be in its guards, which
                # then accept no argument twice: there is nothing to time.
                for check in filter(lambda check: check(values), checks):
                    answer["guards_s"] = least(functools.partial(check, values), 500)
                    break
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
    parser.add_argument("--only", default=",".join([*FUNCTIONS, *SUBJECTS]))
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
                for field in FIELDS:
                    if field in answer and field in kept:
                        kept[field] = min(kept[field], answer[field])
    print(
        f"{'function':15s} {'tree':7s} {'compile ms':>10s} {'/peer':>6s}"
        f" {'call us':>9s} {'/peer':>6s} {'guards us':>9s} {'/peer':>6s}"
    )
    for title, group in (("containers", FUNCTIONS), ("others", SUBJECTS)):
        ratios: dict[str, list[float]] = {field: [] for field in FIELDS}
        for key, ours in best["ours"].items():
            if key[0] in group:
                print(_row(key, ours, best["peer"].get(key, {}), ratios))
        if any(ratios.values()):
            means = {field: geometric_mean(ratios[field]) for field in FIELDS}
            print(
                f"{title}, geometric means: compile {means['compile_s']:.2f}, call"
                f" {means['call_s']:.2f}, guards {means['guards_s']:.2f} of the release"
            )


def _row(
    key: tuple[str, bool], ours: dict, peer: dict, ratios: dict[str, list[float]]
) -> str:
    """One line of the table; what it compares is added to ``ratios``."""
    row = f"{key[0]:15s} {'nested' if key[1] else 'flat':7s}"
    if "error" in ours:
        return f"{row} fails: {ours['error']}"
    for field, scale in FIELDS.items():
        if field not in ours:
            row += f" {'-':>9s} {'-':>6s}"
        elif field in peer and "error" not in peer:
            ratios[field].append(ours[field] / peer[field])
            row += f" {ours[field] * scale:9.1f} {ratios[field][-1]:6.2f}"
        else:
            row += f" {ours[field] * scale:9.1f}      -"
    again = [
        f"{side} compiles {times} times more"
        for side, times in (
            ("this", ours["recompiled"]),
            ("the release", peer.get("recompiled")),
        )
        if times
    ]
    if "error" in peer:
        again.append("the release fails")
    return f"{row} {'; '.join(again)}"


if __name__ == "__main__":
    main()
