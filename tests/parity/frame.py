"""The frame of parity cases: the cases, the fixtures they start from, and a run of one.

The same code runs under the published release (``tests/record.py``) and under this package
(``test_parity.py``), so it imports nothing but torch, numpy and ``tensordict``.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import sys
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from describe import Origins, describe, describe_error

FOLDER = Path(__file__).parent

PRELUDE = '''
import collections, contextlib, copy, dataclasses, math, pickle, tempfile, typing, warnings, weakref
import numpy as np
import torch
from torch import Tensor, nn
import tensordict
from tensordict import *
with contextlib.suppress(ImportError):
    import tensordict.utils

def T(shape, dtype="float32", start=0):
    """A tensor of small whole numbers, some equal, some negative."""
    values = (torch.arange(math.prod(shape)) * 7 + start) % 11 - 3
    if dtype == "bool":
        values = values % 2 == 0
    return values.reshape(shape).to(getattr(torch, dtype))

U = UnbatchedTensor

def S(value):
    """What matters of a container with unbatched entries, or of one such tensor."""
    if is_tensor_collection(value):
        return [type(value).__name__, list(value.batch_size),
                {key: S(value.get(key)) for key in value.keys()}]
    batch = list(value.batch_size) if isinstance(value, U) else None
    return {"batch": batch, "shape": list(value.shape), "data": value.tolist()}

class Sub(TensorDict):
    """A user's subclass."""

Pair = collections.namedtuple("Pair", "a b")

@dataclasses.dataclass
class Plain:
    a: Tensor
    b: Tensor = None

class Inner(TensorClass):
    z: Tensor
    y: Tensor = None

class Data(TensorClass):
    """A tensorclass of the class form."""
    a: Tensor
    b: Tensor = None
    n: Inner = None

    @property
    def double(self):
        return self.a * 2

@tensorclass
class Point:
    """A tensorclass of the decorator form."""
    a: Tensor
    s: str = None
    k: int = None

    def shifted(self, by):
        return type(self)(self.a + by, self.s, self.k, batch_size=self.batch_size)

class Typed(TypedTensorDict):
    a: Tensor
    b: Tensor = None

def held(value):
    """A value as a text: the same for equal ones of one type."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {value.tolist()}"
    if is_tensor_collection(value):
        entries = {key: held(item) for key, item in value.items()}
        return f"{type(value).__name__} {list(value.batch_size)} {entries}"
    return f"{type(value).__name__} {value}"

def in_field(annotation, values, size, **options):
    """What a field of a tensorclass makes of each value; of an error its class."""
    body = {"__annotations__": {"f": annotation}, "__module__": __name__}
    cls = type(TensorClass)("F", (TensorClass,), body, **options)
    answers = []
    for value in values:
        try:
            answers.append(held(cls(f=value, batch_size=size).f))
        except Exception as error:
            answers.append(type(error).__name__)
    return answers
'''

# Every fixture binds `td`; most have batch size [2, 3], so that one program suits many.
# `o` is another object whose state is recorded too, such as the parent of a view.
FIXTURES = {
    "none": "td = None",
    "flat": (
        "td = TensorDict({'a': T([2, 3]), 'b': T([2, 3, 4], 'int64'), "
        "'c': T([2, 3, 1], 'bool')}, [2, 3])"
    ),
    "nested": (
        "td = TensorDict({'a': T([2, 3]), 'n': {'b': T([2, 3, 4], 'int64'), "
        "'m': {'c': T([2, 3], start=2)}}, 'd': T([2, 3, 1])}, [2, 3])"
    ),
    "deep": (  # a nested container with more batch dims than its parent
        "td = TensorDict({'a': T([2, 3]), "
        "'n': TensorDict({'b': T([2, 3, 4, 2])}, [2, 3, 4])}, [2, 3])"
    ),
    "floats": "td = TensorDict({'a': T([2, 3]), 'n': {'b': T([2, 3, 4])}}, [2, 3])",
    "mixed": (
        "td = TensorDict({'a': T([2, 3], 'float64'), 'b': T([2, 3, 2], 'int32'), "
        "'c': T([2, 3], 'bool'), 'd': T([2, 3, 1, 2], 'uint8')}, [2, 3])"
    ),
    "read": (  # by the modules of cases_nn
        "td = TensorDict({'a': T([3]), 'b': T([3], start=5), "
        "'n': {'c': T([3], start=1)}}, [3])"
    ),
    "empty": "td = TensorDict({}, [2, 3])",
    "empty_nested": "td = TensorDict({'a': T([2, 3]), 'n': {}, 'm': {'p': {}}}, [2, 3])",
    "scalar": "td = TensorDict({'a': T([]), 'b': T([3]), 'n': {'c': T([2])}}, [])",
    "one": "td = TensorDict({'a': T([4]), 'n': {'b': T([4, 2])}}, [4])",
    "single": "td = TensorDict({'a': T([1, 3]), 'n': {'b': T([1, 3, 1])}}, [1, 3])",
    "zero": "td = TensorDict({'a': T([0, 3]), 'n': {'b': T([0, 3, 2])}}, [0, 3])",
    "locked": (
        "td = TensorDict({'a': T([2, 3]), 'n': {'b': T([2, 3, 4], 'int64')}}, [2, 3])"
        ".lock_()"
    ),
    "named": (
        "td = TensorDict({'a': T([2, 3]), 'n': {'b': T([2, 3, 4])}}, [2, 3], "
        "names=['x', 'y'])"
    ),
    "half_named": (
        "td = TensorDict({'a': T([2, 3]), 'n': TensorDict({'b': T([2, 3, 4])}, "
        "[2, 3, 4])}, [2, 3], names=['x', None])"
    ),
    "cpu": (
        "td = TensorDict({'a': T([2, 3]), 'n': {'b': T([2, 3, 4])}}, [2, 3], "
        "device='cpu')"
    ),
    "meta": (
        "td = TensorDict({'a': T([2, 3]), 'n': {'b': T([2, 3, 4])}}, [2, 3], "
        "device='meta')"
    ),
    "subclass": "td = Sub({'a': T([2, 3]), 'n': {'b': T([2, 3, 4], 'int64')}}, [2, 3])",
    "nested_subclass": (
        "td = TensorDict({'a': T([2, 3]), 'n': Sub({'b': T([2, 3, 4])}, [2, 3])}, "
        "[2, 3])"
    ),
    "uneven": (  # members whose leaves differ in the last dim
        "td = lazy_stack([TensorDict({'c': T([2, 3], start=1)}, [2]), "
        "TensorDict({'c': T([2, 4])}, [2])])"
    ),
    "differently_named": (
        "td = lazy_stack([TensorDict({'b': T([2])}, [2], names=['x']), "
        "TensorDict({'b': T([2])}, [2])])"
    ),
    "nested_batch": "td = TensorDict({'n': TensorDict({'b': T([3])}, [3])}, [])",
    "picked": (  # a view made with a tensor: what it shows is a copy
        "o = TensorDict({'a': T([3, 2]), 'n': {'b': T([3]), 'm': {'c': T([3, 1])}}}, "
        "[3])\ntd = o._get_sub_tensordict(torch.tensor([0, 2]))"
    ),
    "sub": (  # a view of a part of another container
        "o = TensorDict({'a': T([4, 3]), 'n': {'b': T([4, 3, 4], 'int64')}}, [4, 3])\n"
        "td = o._get_sub_tensordict(slice(1, 3))"
    ),
    "lazy": (
        "td = lazy_stack([TensorDict({'a': T([3], start=i), 'n': {'b': T([3, 2], "
        "'int64', i)}}, [3]) for i in range(2)])"
    ),
    "lazy_last": (
        "td = lazy_stack([TensorDict({'a': T([2], start=i), 'n': {'b': T([2, 2], "
        "'int64', i)}}, [2]) for i in range(2)], -1)"
    ),
    "lazy_inner": (
        "td = lazy_stack([TensorDict({'a': T([2, 3], start=i), 'n': {'b': T([2, 3])}}, "
        "[2, 3]) for i in range(2)], 1)"
    ),
    "lazy_ragged": (
        "td = lazy_stack([TensorDict({'a': T([2 + i], start=i), 'n': {'b': T([2])}}, []) "
        "for i in range(2)])"
    ),
    "lazy_hetero": (
        "td = lazy_stack([TensorDict({'a': T([2]), 'n': {'b': T([2])}}, [2]), "
        "TensorDict({'a': T([2], start=1), 'x': T([2]), 'n': {'b': T([2]), "
        "'y': T([2])}}, [2])])"
    ),
    "lazy_single": (
        "td = lazy_stack([TensorDict({'a': T([3]), 'n': {'b': T([3, 2])}}, [3])])"
    ),
    "lazy_locked": (
        "td = lazy_stack([TensorDict({'a': T([3], start=i), 'n': {'b': T([3, 2])}}, [3]) "
        "for i in range(2)]).lock_()"
    ),
    "lazy_deep": (
        "td = lazy_stack([lazy_stack([TensorDict({'a': T([2], start=i + j), 'n': {'b': "
        "T([2, 1])}}, [2]) for i in range(3)], 1) for j in range(2)], 0)"
    ),
    "lazy_features": (
        "td = lazy_stack([TensorDict({'a': T([3], start=i), 'n': {'r': T([3, 1 + i])}, "
        "'r': T([3, 1 + i])}, [3]) for i in range(2)])"
    ),
    "lazy_sizes": (
        "td = lazy_stack([TensorDict({'a': T([i + 1, 2], start=i), 'n': {'b': T([i + 1])}}"
        ", [i + 1]) for i in range(2)], 1)"
    ),
    "lazy_text": (
        "td = lazy_stack([TensorDict({'a': T([2], start=i), 's': 'xy'[i], 't': 'same'}, "
        "[2]) for i in range(2)])"
    ),
    "lazy_tc": (
        "td = lazy_stack([Data(T([3], start=i), T([3, 4], 'int64'), batch_size=[3]) "
        "for i in range(2)])"
    ),
    "lazy_none": "td = LazyStackedTensorDict(stack_dim=0)",
    "grad": (
        "td = TensorDict({'a': T([2, 3]).requires_grad_(), "
        "'n': {'b': T([2, 3, 4]).requires_grad_()}}, [2, 3])"
    ),
    "tc": "td = Data(T([2, 3]), T([2, 3, 4], 'int64'), batch_size=[2, 3])",
    "tc_nested": (
        "td = Data(a=T([2, 3]), n=Inner(T([2, 3, 2]), batch_size=[2, 3]), "
        "batch_size=[2, 3])"
    ),
    "tc_locked": "td = Data(T([2, 3]), T([2, 3, 4]), batch_size=[2, 3]).lock_()",
    "tc_named": (
        "td = Data(T([2, 3]), T([2, 3, 4]), batch_size=[2, 3], names=['x', 'y'])"
    ),
    "unbatched": (
        "td = TensorDict(dict(a=T([3, 2, 2]), u=U(T([4])), "
        "n=TensorDict(v=U(torch.ones(2, 2)), b=T([3, 2, 1]), batch_size=[3, 2, 1])), "
        "batch_size=[3, 2])"
    ),
    "tc_in": (  # a tensorclass in a plain container
        "td = TensorDict({'p': Data(T([2, 3]), T([2, 3, 4]), batch_size=[2, 3]), "
        "'q': T([2, 3])}, [2, 3])"
    ),
    "tc_text": "td = Point(T([2, 3]), 'text', batch_size=[2, 3])",
    "typed": "td = Typed(a=T([2, 3]), b=T([2, 3, 4], 'int64'), batch_size=[2, 3])",
    "dotted": (
        "td = TensorDict({'n.b': T([2, 3]), 'n.m.c': T([2, 3, 4]), 'a': T([2, 3])}, "
        "[2, 3])"
    ),
}
FIXTURES.update(
    (
        name,
        (
            "from tensordict import set_lazy_legacy\n"
            "o = TensorDict({'a': T([2, 1, 3]), 'n': {'b': T([2, 1, 3, 2], 'int64')}}, "
            f"[2, 1, 3])\nwith set_lazy_legacy(True):\n    td = o.{made}"
        ),
    )
    for name, made in {
        "lazy_view": "view(-1)",
        "lazy_permuted": "permute(2, 0, 1)",
        "lazy_unsqueezed": "unsqueeze(0)",
        "lazy_squeezed": "squeeze(1)",
        "lazy_transposed": "transpose(0, 2)",
    }.items()
)
FIXTURES.update(
    (name, f"from class_setup import *\ntd = {made}")
    for name, made in {
        "c_simple": "Simple(T([2, 3]), y=T([2, 3, 2]), s='st', batch_size=[2, 3])",
        "c_nocast": "NoCast(T([2, 3]), i=7, s='st', batch_size=[2, 3])",
        "c_autocast": "AutoCast(T([2, 3]), i=7.5, s=4, batch_size=[2, 3])",
        "c_frozen": "Frozen(T([2, 3]), batch_size=[2, 3])",
        "c_tensors": "OnlyTensors(T([2, 3]), batch_size=[2, 3])",
        "c_shadow": "Shadowing(T([2, 3]), keys=T([2, 3]), batch_size=[2, 3])",
        "c_made": "Made(T([2, 3]), batch_size=[2, 3])",
        "c_derived": "Derived(T([2, 3]), batch_size=[2, 3])",
        "c_child": "Child(T([2, 3]), z=T([2, 3]), s='z', batch_size=[2, 3])",
        "c_outer": (
            "Outer(T([2, 3]), n=Simple(T([2, 3, 1]), batch_size=[2, 3]), "
            "batch_size=[2, 3])"
        ),
        "c_values": "Values(T([2, 3]), u='u', d={'q': 1}, f='f', batch_size=[2, 3])",
        "c_generic": "Generically(T([2, 3]), y=T([2, 3]), batch_size=[2, 3])",
        "c_decorated": "Decorated(T([2, 3]), s='x', batch_size=[2, 3])",
        "c_within": (  # an instance in a plain container
            "TensorDict(p=Data(T([2, 3]), n=Inner(T([2, 3, 2]), batch_size=[2, 3]), "
            "batch_size=[2, 3]), batch_size=[2, 3])"
        ),
    }.items()
)

EVERY = "flat nested deep empty scalar zero locked named cpu subclass sub"
"""The fixtures that a method is tried on unless its cases say otherwise."""

SOME = "flat nested locked named sub"
"""The fixtures for a program whose answer hardly depends on the container."""


@dataclass(frozen=True)
class Case:
    """One program. ``reason`` and ``ours`` mark an accepted difference.

    Attributes:
        method: the public name whose behaviour this is, such as ``"view"``.
        fixture: a name in :data:`FIXTURES`.
        program: statements; where the last one is an expression, its value is recorded.
        values: whether the values of tensors are compared (not for ``new_empty``).
        message: whether the text of an error is compared. Default: for the classes that
            libraries raise on purpose, so not for TypeError and AttributeError.
        warned: whether warnings are compared.
        ordered: whether the order of entries is compared (not where the release collects
            keys in a set).
        reason: why our answer is not the release's.
        ours: an expression over ``result``, ``error``, ``td`` and ``o`` that is true of
            our answer, compared in place of the recorded one.
        helper: text in front of the program, which may change: answers go without it.
    """

    method: str
    fixture: str
    program: str
    values: bool = True
    message: bool | None = None
    warned: bool = False
    ordered: bool = True
    reason: str = ""
    ours: str = ""
    helper: str = ""

    @property
    def name(self) -> str:
        """The name of this case in messages."""
        return f"{self.method}/{self.fixture}: {self.program}"


def lines(text: str) -> list[str]:
    """Split a text into programs: one per line, and further lines that are indented more."""
    found: list[str] = []
    for line in textwrap.dedent(text).splitlines():
        if line.startswith(" ") and line.strip():
            found[-1] += f" {line.strip()}"
        elif line.strip():
            found.append(line.strip())
    return found


def cases(method: str, programs: str, on: str = EVERY, **options: Any) -> list[Case]:
    """One case per program and fixture.

    Args:
        method: the public name that the programs are about.
        programs: one program per line, which goes on in lines that are indented more.
            Blank lines are skipped. Statements of one program are separated by ``;``.
        on: names of fixtures, separated by spaces.
        **options: further fields of :class:`Case`.
    """
    return [
        Case(method, fixture, line, **options)
        for line in lines(programs)
        for fixture in on.split()
    ]


def differing(
    found: list[Case], *parts: str, reason: str, ours: str, on: str = ""
) -> list[Case]:
    """The same cases, those accepted differences whose programs have all of ``parts``.

    Args:
        found: the cases.
        *parts: texts of the programs.
        reason: why our answer is another one.
        ours: what is true of it.
        on: the fixtures. Default: all.
    """
    return [
        replace(case, reason=reason, ours=ours)
        if all(part in case.program for part in parts)
        and (not on or case.fixture in on.split())
        else case
        for case in found
    ]


def topics() -> list[str]:
    """The topics that have cases."""
    return sorted(path.stem[6:] for path in FOLDER.glob("cases_*.py"))


def cases_of(topic: str) -> list[Case]:
    """The cases of ``cases_<topic>.py``."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    module = importlib.import_module(f"cases_{topic}")
    found = [_without_helper(case, module) for case in module.CASES]
    for case in found:
        if bool(case.reason) != bool(case.ours):
            msg = f"{case.name}: an accepted difference has a reason and our answer."
            raise ValueError(msg)
    # A program that is given twice is one case.
    return list({(case.name, case.helper): case for case in found}.values())


def _without_helper(case: Case, module: Any) -> Case:
    """The case with what its topic names in ``HELPERS`` apart from the program."""
    for helper in getattr(module, "HELPERS", ()):
        if case.program.startswith(helper):
            program = case.program.removeprefix(helper)
            return replace(case, program=program, helper=helper)
    return case


Answers = dict[tuple[str, str, str], Any]
"""Answers by method, fixture and program."""


def _answers_path(topic: str) -> Path:
    return FOLDER / "answers" / f"{topic}.json"


def read_answers(topic: str) -> Answers:
    """Read what the release answers to the cases of a topic."""
    path = _answers_path(topic)
    if not path.exists():
        return {}
    return {
        (key.rpartition("/")[0], fixture, programs["program"]): answer
        for key, programs in json.loads(path.read_text(encoding="utf-8")).items()
        for fixture, answer in programs.items()
        if fixture != "program"
    }


def write_answers(topic: str, answers: list[tuple[Case, Any]]) -> None:
    """Write what the release answers, by ``method/number``, each with its program."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for case, answer in answers:
        fields = {"program": case.program}
        found.setdefault((case.method, case.program), fields)[case.fixture] = answer
    numbers: dict[str, int] = {}
    parts = []
    for (method, _), fields in found.items():
        numbers[method] = number = numbers.get(method, 0) + 1
        lines = [
            f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
            for key, value in fields.items()
        ]
        parts.append(
            json.dumps(f"{method}/{number}") + ": {" + ",\n ".join(lines) + "}"
        )
    text = ",\n".join(parts)
    path = _answers_path(topic)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


_prelude: dict[str, Any] = {}


def _fresh_namespace() -> dict[str, Any]:
    if not _prelude:
        module = type(sys)("parity_prelude")
        sys.modules["parity_prelude"] = module
        exec(PRELUDE, vars(module))  # noqa: S102  # the cases are our own text
        _prelude.update(vars(module))
    return dict(_prelude)


@functools.cache
def _fixture(name: str) -> Any:
    return compile(FIXTURES[name], "<string>", "exec")


def _execute(program: str, namespace: dict[str, Any]) -> Any:
    """Run a program; the value of its last statement where that is an expression."""
    tree = ast.parse(program)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<case>", "exec"), namespace)  # noqa: S102
        return None
    exec(  # noqa: S102
        compile(ast.Module(tree.body[:-1], []), "<case>", "exec"), namespace
    )
    return eval(compile(ast.Expression(last.value), "<case>", "eval"), namespace)  # noqa: S307


def _state(namespace: dict[str, Any], name: str, origins: Origins, case: Case) -> Any:
    value = namespace.get(name)
    if value is None:
        return None
    return describe(value, origins, values=case.values, whole=True)


def run(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a case. Returns its answer as JSON and the names that ``ours`` may use."""
    namespace = _fresh_namespace()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(_fixture(case.fixture), namespace)  # noqa: S102
        if not case.warned:
            caught.clear()
        origins = Origins(namespace.get("td"), namespace.get("o"))
        before = {name: _state(namespace, name, origins, case) for name in ("td", "o")}
        answer: dict[str, Any] = {}
        result = error = None
        try:
            result = _execute(case.helper + case.program, namespace)
        except Exception as raised:  # noqa: BLE001  # every error is an answer
            error = raised
    if error is not None:
        answer["raises"] = describe_error(error)
    else:
        answer["result"] = describe(result, origins, values=case.values)
    for name in ("td", "o"):
        state = _state(namespace, name, origins, case)
        if state is not None:
            answer[name] = "unchanged" if state == before[name] else state
    if case.warned:
        answer["warns"] = [
            [seen.category.__name__, str(seen.message)[:80]] for seen in caught
        ]
    namespace.update(result=result, error=error)
    return answer, namespace


def without_order(answer: Any) -> Any:
    """A description with the entries of every container sorted by key."""
    if isinstance(answer, dict):
        answer = {key: without_order(value) for key, value in answer.items()}
        if "container" in answer and "entries" in answer:
            answer["entries"] = sorted(answer["entries"], key=lambda entry: entry[0])
        return answer
    if isinstance(answer, list):
        return [without_order(item) for item in answer]
    return answer


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """List the places where two descriptions differ, as readable lines."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(k for k in found if k not in expected)]:
            if key not in found:
                yield f"{path}.{key}: release {expected[key]!r}, ours has none"
            elif key not in expected:
                yield f"{path}.{key}: release has none, ours {found[key]!r}"
            else:
                yield from differences(expected[key], found[key], f"{path}.{key}")
    elif (
        isinstance(expected, list)
        and isinstance(found, list)
        and len(expected) == len(found)
    ):
        for i, (left, right) in enumerate(zip(expected, found, strict=True)):
            yield from differences(left, right, f"{path}[{i}]")
    elif expected != found:
        yield f"{path}: release {expected!r}, ours {found!r}"
