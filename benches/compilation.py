"""``python benches/compilation.py --peer DIR``: compile time and compiled calls.

Each function is compiled with ``fullgraph=True`` and the ``eager`` backend, so that the
time is Dynamo's and not the code generator's. Each implementation runs in a fresh process;
the processes alternate. Prints milliseconds to the first result, microseconds of a later
call and of its guards, the ratios to the published release, and their geometric means. All
numbers are CPU time of the process, the minimum of several rounds, because a busy machine
disturbs this least. A function that is compiled again for other values is marked.

The column ``/bare`` compares with the same torch calls on a plain dictionary of the same
ten tensors: the time of torch alone. The first line is a function that returns its
argument: the cost of any compilation. torch 2.15 spends most of it on flushing the
processor's cache before it measures the guards.

Python stores frames in chunks of 16 KiB, and maps and unmaps one for each call that crosses
a chunk border. The depth of the call stack decides which of the compiler's calls cross one:
the same compilation takes up to a fifth longer at another depth. So each function is
compiled at several depths, and the time is their mean.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from machine import keep

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
"""The calls with a container of ten leaves, flat, and of twenty, nested."""

BARE = {
    "index": "lambda d: {k: v[0] for k, v in d.items()}",
    "slice": "lambda d: {k: v[1:, 0] for k, v in d.items()}",
    "view": "lambda d: {k: v.view(-1, 2) for k, v in d.items()}",
    "reshape": "lambda d: {k: v.reshape(3, 4, 2) for k, v in d.items()}",
    "permute": "lambda d: {k: v.permute(1, 0, 2) for k, v in d.items()}",
    "stack": "lambda d: {k: torch.stack([v, v], 0) for k, v in d.items()}",
    "cat": "lambda d: {k: torch.cat([v, v], 0) for k, v in d.items()}",
    "apply": "lambda d: {k: v + 1 for k, v in d.items()}",
    "arithmetic": "lambda d: {k: v * 2 + v for k, v in d.items()}",
    "set": "lambda d: {**d, 'new': d['k0'] + 1}",
    "select": "lambda d: {k: d[k] for k in ('k0', 'k1')}",
    "update": "lambda d: {**d, 'k0': d['k0'] * 2}",
    "clone": "lambda d: {k: v.clone() for k, v in d.items()}",
    "to": "lambda d: {k: v.to(torch.float64) for k, v in d.items()}",
    "flatten_keys": "lambda d: {**d}",
    "split": "lambda d: [dict(zip(d, row)) for row in zip(*[v.split(2) for v in d.values()])]",
    "unbind": "lambda d: [dict(zip(d, row)) for row in zip(*[v.unbind(0) for v in d.values()])]",
    "class_construct": "lambda d: {'k0': d['k0'], 'k1': d['k1'], 'label': 'x'}",
    "class_attribute": "lambda d: d['k0'] + d['k1']",
    "class_method": "lambda d: {k: d[k].view(-1, 2)[0] for k in ('k0', 'k1')}",
    "lazy_get": "lambda d: torch.stack([d['k0'], d['k1']], 0)",
    "nothing": "lambda d: d",
}
"""The same with a plain dictionary of the ten tensors."""

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
"""Code that runs once, and a function; ``make`` makes its argument of a flat
container."""


FIELDS = {"compile_s": 1e3, "call_s": 1e6, "guards_s": 1e6}
"""The fields that are measured, and how many of the unit in the table make a second."""

DEPTHS = range(0, 120, 20)
"""The numbers of frames that are added above each compilation of a function."""


def below(depth: int, function: Callable[[], object]) -> object:
    """Call ``function`` with ``depth`` more frames on the stack."""
    return below(depth - 1, function) if depth else function()


def work(names: list[str], *, bare: bool = False) -> None:
    """Compile and time the functions in this process; print one JSON line for each."""
    import time
    import timeit

    import torch
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    import tensordict
    import tensordict.nn

    torch.set_num_threads(1)
    known = {"torch": torch, **vars(tensordict), **vars(tensordict.nn)}

    def make(*, nested: bool) -> Any:
        entries = {f"k{i}": torch.rand(4, 3, 2) for i in range(10)}
        if bare:
            return entries
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
        if bare:
            text = BARE[name]
        for nested in (False, True) if name in FUNCTIONS and not bare else (False,):
            answer: dict[str, object] = {"name": name, "nested": nested}
            try:
                space = dict(known)
                exec(setup, space)
                function = eval(text, space)
                prepare = space.get("make", lambda td: td)
                argument = prepare(make(nested=nested))
                seconds = []
                for depth in (0, *DEPTHS):  # what is compiled first warms up
                    torch._dynamo.reset()
                    compiled = torch.compile(function, backend="eager", fullgraph=True)
                    fresh = functools.partial(compiled, prepare(make(nested=nested)))
                    began = time.process_time()
                    below(depth, fresh)
                    seconds.append(time.process_time() - began)
                answer["compile_s"] = seconds[1:]
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
                # The guards may hold what a module has written into its argument, and
                # then accept no argument twice: there is nothing to time.
                for check in filter(lambda check: check(values), checks):
                    answer["guards_s"] = least(functools.partial(check, values), 500)
                    break
            except Exception as error:  # noqa: BLE001 - every failure is an answer
                answer["error"] = f"{type(error).__name__}: {error}"[:160]
            print(json.dumps(answer), flush=True)


def run(side: str, path: str | None, names: list[str]) -> dict[tuple[str, bool], dict]:
    """Return the results of a fresh process that imports the package at ``path``."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if path:
        environment["PYTHONPATH"] = path
    command = [
        sys.executable,
        "-W",
        "ignore",
        __file__,
        side,
        "--work",
        ",".join(names),
    ]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {(a["name"], a["nested"]): a for a in answers}


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean; NaN for no numbers."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peer", required=True, help="folder with the installed published release"
    )
    parser.add_argument("--rounds", type=int, default=2, help="rounds (default: 2)")
    parser.add_argument(
        "--only",
        default=",".join([*FUNCTIONS, *SUBJECTS]),
        help="functions to compile, with commas between",
    )
    parser.add_argument("--json", help="file to write the geometric means to")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    if "--work" in sys.argv:
        side, _, names = sys.argv[1:]
        work(names.split(","), bare=side == "bare")
        return
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    best: dict[str, dict[tuple[str, bool], dict]] = {"ours": {}, "peer": {}, "bare": {}}
    for _ in range(arguments.rounds):
        for side, path in (("ours", None), ("peer", arguments.peer), ("bare", None)):
            asked = [name for name in names if side != "bare" or name in BARE]
            if side == "bare":
                asked.append("nothing")
            for key, answer in run(side, path, asked).items():
                _keep_least(best[side].setdefault(key, answer), answer)
    for answers in best.values():
        for answer in answers.values():
            if "compile_s" in answer:
                answer["compile_s"] = statistics.fmean(answer["compile_s"])
    nothing = best["bare"].get(("nothing", False), {}).get("compile_s", math.nan)
    print(f"any function: compile {nothing * 1e3:.1f} ms")
    print(
        f"{'function':15s} {'tree':7s} {'compile ms':>10s} {'/peer':>6s} {'/bare':>6s}"
        f" {'call us':>9s} {'/peer':>6s} {'guards us':>9s} {'/peer':>6s}"
    )
    kept: dict[str, dict[str, float]] = {}
    for title, group in (("containers", FUNCTIONS), ("others", SUBJECTS)):
        ratios: dict[str, list[float]] = {field: [] for field in (*FIELDS, "bare")}
        for key, ours in best["ours"].items():
            if key[0] in group:
                others = [best[side].get(key, {}) for side in ("peer", "bare")]
                print(_row(key, ours, *others, ratios))
        if any(ratios.values()):
            means = kept[title] = {
                field: geometric_mean(found) for field, found in ratios.items()
            }
            line = (
                f"{title}, geometric means: compile {means['compile_s']:.2f}, call"
                f" {means['call_s']:.2f}, guards {means['guards_s']:.2f} of the release"
            )
            if ratios["bare"]:
                line += f"; compile {means['bare']:.2f} of bare dictionaries"
            print(line)
    keep(arguments.json, {"of_the_release": kept})


def _keep_least(kept: dict, answer: dict) -> None:
    """Keep the smaller of two results, for each depth separately."""
    for field in FIELDS:
        if field in answer and field in kept:
            if field == "compile_s":
                kept[field] = [*map(min, kept[field], answer[field])]
            else:
                kept[field] = min(kept[field], answer[field])


def _row(
    key: tuple[str, bool],
    ours: dict,
    peer: dict,
    bare: dict,
    ratios: dict[str, list[float]],
) -> str:
    """Return one line of the table, and add its ratios to ``ratios``."""
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
        if field == "compile_s":
            if field in bare and field in ours:
                ratios["bare"].append(ours[field] / bare[field])
                row += f" {ratios['bare'][-1]:6.2f}"
            else:
                row += "      -"
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
