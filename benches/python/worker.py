"""Times expressions under one implementation: the process at the other end of a pipe.

Reads one JSON request per line (``{"tree", "expressions", "seconds", "repeats"}``) and
answers with ``repeats`` counts of seconds per call for each expression, or with an error. The
expressions take turns, each for batches of about ``seconds``: what else the machine does at a
moment meets all of them.
"""

from __future__ import annotations

import copy
import json
import pickle
import sys
import time
import timeit
from typing import Any

import torch
import torch.utils._pytree


def make_tree(name: str, make: Any) -> dict[str, Any]:
    """Return the nested dictionary of leaves of the tree called ``name``."""
    if name == "nested 20":
        return {
            f"n{i}": {
                "a": make(),
                "b": make(),
                "m": {"c": make(), "d": make()},
                "e": make(),
            }
            for i in range(4)
        }
    return {f"k{i}": make() for i in range(int(name.split()[1]))}


def flat_leaves(tree: dict[str, Any]) -> list[Any]:
    """Return the leaves of a nested dictionary, depth first."""
    out: list[Any] = []
    for value in tree.values():
        out.extend(flat_leaves(value) if isinstance(value, dict) else [value])
    return out


def namespace(tree_name: str) -> dict[str, Any]:
    """Return the names for the expressions of :mod:`benches.python.operations`."""
    import tensordict
    from tensordict import TensorDict

    def plain(shape: tuple[int, ...] = (4, 3), seed: int = 0) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        return make_tree(tree_name, lambda: torch.randn(*shape, 2, generator=generator))

    def container(tree: dict[str, Any], batch: list[int]) -> Any:
        return TensorDict(tree, batch)

    trees = {"td": plain(), "td2": plain(seed=1), "up": plain(seed=2)}
    space: dict[str, Any] = {n: container(t, [4, 3]) for n, t in trees.items()}
    td = space["td"]
    space["one"] = container(plain((1, 4, 3)), [1, 4, 3])
    space["pos"] = td.apply(lambda x: x.abs() + 0.5)
    space["bd"] = td.apply(lambda x: x == x)  # noqa: PLR0124 (all true)
    space["sg"] = td.clone()
    space["flat"] = td.flatten_keys(".")
    space["locked"] = td.clone().lock_()
    paths = list(td.keys(True, True))
    lists = {"L": "td", "L2": "td2", "L1": "one", "LB": "bd", "LP": "pos", "LS": "sg"}
    for target, source in lists.items():
        space[target] = [space[source][p] for p in paths]
    space["named"] = container(trees["td"], [4, 3])
    space["named"].names = ["x", "y"]
    space["up2"] = td.clone()
    space["members"] = [td.clone() for _ in range(8)]
    space["stacked"] = tensordict.lazy_stack(space["members"])
    space |= {
        "TensorDict": TensorDict,
        "tensordict": tensordict,
        "copy": copy,
        "pickle": pickle,
        "pytree": torch.utils._pytree,
        "identity": lambda x: x,
        "is_leaf": lambda cls: not issubclass(cls, TensorDict),
        "state": td.clone().state_dict(),
        # Pickle a copy: pickling reads `__dict__`, which makes an instance slower.
        "pickled": pickle.dumps(td.clone()),
        "scalar": torch.tensor(2.0),
        "per": torch.ones(4, 3),
        "one_leaf": torch.zeros(4, 3),
        "torch": torch,
        "D": trees["td"],
        "k": 2,
        "mask": torch.arange(12).view(4, 3) % 2 == 0,
        "idx": torch.tensor([0, 2, 3]),
        "gidx": torch.zeros(2, 3, dtype=torch.long),
        "keys": paths,
        "half": paths[: max(1, len(paths) // 2)],
        "first": paths[0],
        "last": paths[-1],
        "leaf": td[paths[-1]],
    }
    return space


class Timed:
    """An expression that is called in batches."""

    def __init__(self, expression: str, space: dict[str, Any], seconds: float) -> None:
        # The CPU time of this thread: other programs disturb it less.
        self._timer = timeit.Timer(expression, timer=time.thread_time, globals=space)
        self._timer.timeit(3)  # warm up caches and the interpreter
        first = min(self._timer.repeat(3, 3)) / 3
        self._number = max(1, min(2000, int(seconds / max(first, 1e-7))))

    def batch(self) -> float:
        """Return the seconds a call in one batch."""
        return self._timer.timeit(self._number) / self._number


def main() -> None:
    """Serve requests until standard input ends."""
    torch.set_num_threads(1)
    spaces: dict[str, dict[str, Any]] = {}
    known: dict[tuple[str, str], Timed] = {}
    for line in sys.stdin:
        request = json.loads(line)
        tree = request["tree"]
        try:
            if tree not in spaces:
                spaces[tree] = namespace(tree)
            sides = []
            for expression in request["expressions"]:
                if (tree, expression) not in known:
                    timed = Timed(expression, spaces[tree], request["seconds"])
                    known[tree, expression] = timed
                sides.append(known[tree, expression])
            counts = [
                [side.batch() for side in sides] for _ in range(request["repeats"])
            ]
            answer: dict[str, Any] = {"seconds": list(zip(*counts, strict=True))}
        except Exception as error:  # noqa: BLE001 - every failure is an answer
            answer = {"error": f"{type(error).__name__}: {error}"[:200]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
