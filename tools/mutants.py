"""Break random lines of the package, and print the undetected mutants.

``python tools/mutants.py TOPIC... [--of MODULE...] [--count N] [--seed N]`` runs the
cases of the topics (``tests/parity``) and records the lines of Python that they
execute. Then it breaks some of these lines at random: a comparison, a condition, a
number, a call or a return value. Each mutant runs in a child process, which runs the
cases until one fails.
"""

from __future__ import annotations

import argparse
import ast
import copy
import inspect
import os
import random
import signal
import sys
import tempfile
import textwrap
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "parity"), str(ROOT / "tests")]

import test_parity  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frame import Case

PACKAGE = str(ROOT / "python" / "tensordict")
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
SECONDS = 60
SURVIVED, NOTICED = 0, 1


def broken(node: ast.AST) -> ast.AST | None:
    """Return a mutated node, or None if the node cannot be mutated."""
    if isinstance(node, ast.Compare):
        swap: Any = SWAPPED[type(node.ops[0])]
        node.ops[0] = swap()
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        if type(node.op) not in SWAPPED:
            return None
        swap = SWAPPED[type(node.op)]
        node.op = swap()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value += 1
    elif isinstance(node, ast.Return) and node.value is not None:
        node.value = ast.Constant(None)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.Pass()
    elif isinstance(node, ast.If):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    else:
        return None
    return node


class Breaking(ast.NodeTransformer):
    """A transformer that breaks one node."""

    def __init__(self, target: ast.AST) -> None:
        self.target = target

    def visit(self, node: ast.AST) -> Any:
        """Replace the target, and visit the children of other nodes."""
        if node is self.target:
            return ast.copy_location(broken(node) or node, node)
        return self.generic_visit(node)


def definition(function: types.FunctionType) -> ast.Module:
    """Return the tree of a function without decorators, with its line numbers."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    tree.body[0].decorator_list = []
    return ast.increment_lineno(tree, first - 1)


def mutants(function: types.FunctionType, lines: set[int]) -> Iterator[tuple[int, int]]:
    """Yield line and position of each node of a function that can be broken."""
    for position, node in enumerate(ast.walk(definition(function))):
        if getattr(node, "lineno", None) in lines and broken(copy.deepcopy(node)):
            yield node.lineno, position


def break_at(function: types.FunctionType, position: int) -> str:
    """Break a node of a function in place, and return the old and the new line."""
    tree = definition(function)
    target = list(ast.walk(tree))[position]
    before = ast.unparse(target).splitlines()[0]
    after = broken(copy.deepcopy(target))
    tree = ast.fix_missing_locations(Breaking(target).visit(tree))
    code = compile(tree, function.__code__.co_filename, "exec")
    function.__code__ = next(c for c in code.co_consts if isinstance(c, types.CodeType))
    return f"{before}  ->  {ast.unparse(after).splitlines()[0] if after else ''}"


def functions(only: list[str]) -> dict[types.CodeType, types.FunctionType]:
    """Return the functions of the package by their code, except closures."""
    result: dict[types.CodeType, types.FunctionType] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith("tensordict."):
            continue
        if only and not any(name.startswith(f"tensordict.{part}") for part in only):
            continue
        for owner in [
            module,
            *(v for v in vars(module).values() if isinstance(v, type)),
        ]:
            for value in vars(owner).values():
                value = getattr(value, "__func__", getattr(value, "fget", value))
                if not isinstance(value, types.FunctionType):
                    continue
                code = value.__code__
                if code.co_filename.startswith(PACKAGE) and not code.co_freevars:
                    result[code] = value
    return result


def fails(topic: str, case: Case) -> bool:
    """Return whether a case gives another answer than recorded."""
    try:
        test_parity.check(topic, case)
    except Exception:  # noqa: BLE001 (any exception detects the mutant)
        return True
    return False


def lines_run(cases: list[tuple[str, Case]]) -> dict[types.CodeType, set[int]]:
    """Run the cases, and return the lines of the package that they execute."""
    seen: dict[types.CodeType, set[int]] = {}

    def trace(frame: types.FrameType, _event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        lines = seen.setdefault(frame.f_code, set())

        def local(frame: types.FrameType, _event: str, _argument: Any) -> Any:
            lines.add(frame.f_lineno)
            return local

        return local

    sys.settrace(trace)
    wrong = [case.name for topic, case in cases if fails(topic, case)]
    sys.settrace(None)
    if wrong:
        sys.exit(f"{len(wrong)} cases fail without a mutant: {wrong[:3]}")
    return seen


def noticed(function: types.FunctionType, position: int, cases: list[Any]) -> bool:
    """Break a function in a child process; return whether a case detects it."""
    child = os.fork()
    if child == 0:
        # A mutant may loop forever. The limit is CPU time, because the machine may be busy.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        break_at(function, position)
        found = any(fails(topic, case) for topic, case in cases)
        os._exit(NOTICED if found else SURVIVED)
    return os.waitpid(child, 0)[1] != SURVIVED


def main() -> None:
    """Break lines, and print the surviving mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topics", nargs="+")
    parser.add_argument(
        "--of",
        nargs="*",
        default=[],
        help="mutate these modules only, such as ops.keys",
    )
    parser.add_argument("--count", type=int, default=30, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice")
    options = parser.parse_args()
    os.chdir(tempfile.mkdtemp())
    warnings.simplefilter("ignore")
    cases = [
        (topic, case)
        for (topic, _), found in test_parity.METHODS.items()
        for case in found
        if topic in options.topics
    ]
    seen = lines_run(cases)
    sites = [
        (function, *site)
        for code, function in functions(options.of).items()
        if code in seen
        for site in mutants(function, seen[code])
    ]
    picking = random.Random(options.seed)  # noqa: S311 (it picks lines)
    chosen = picking.sample(sites, min(options.count, len(sites)))
    survivors = 0
    for function, line, position in chosen:
        if noticed(function, position, cases):
            continue
        survivors += 1
        path = Path(function.__code__.co_filename).relative_to(ROOT)
        told = break_at(types.FunctionType(function.__code__, {}), position)
        print(f"{path}:{line} {function.__qualname__}: {told}", flush=True)
    print(
        f"{len(chosen)} of {len(sites)} mutants, {survivors} survive {len(cases)} cases"
    )


if __name__ == "__main__":
    main()
