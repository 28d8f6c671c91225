"""Texts that users read: those of the package, and the lines that its warnings name."""

import ast
import contextlib
import os
import re
import tomllib
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import tensordict
from tensordict import MemoryMappedTensor, NonTensorData, TensorDict
from tensordict.nn import TensorDictModule

PACKAGE = Path(tensordict.__file__).parent
OF_SOMEBODY_ELSE = re.compile(
    r"\b(?:the|published) release\b|\bas published\b", re.IGNORECASE
)
ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
INSTALLS = re.compile(
    r"\b(?:pipx?|uv|conda|mamba|pixi|poetry)\b[\w ]* (?:install|add) (.*)"
)
OF_THE_OTHER_NAME = re.compile(r"tensordict(?:[=<>~!\[;].*)?")


def nodes(kind):
    """Each node of a kind with its file, which is shown where a test fails."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, kind):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def test_no_text_speaks_of_the_release_of_somebody_else():
    assert [
        where
        for where, node in nodes(ast.Constant)
        if isinstance(node.value, str) and OF_SOMEBODY_ELSE.search(node.value)
    ] == []


def texts():
    """Each file that a user may read, with the place that a failing test shows."""
    # The package may be an installed one, outside of the checkout.
    folders = [ROOT / name for name in ("docs", "examples", "changes", ".github")]
    folders += [PACKAGE, *PACKAGE.parent.glob("pytorch_stream_dataloader")]
    paths = [*ROOT.glob("*.*"), *(path for each in folders for path in each.rglob("*"))]
    for path in sorted(paths):
        if path.suffix in {".md", ".py", ".pyi", ".toml", ".yml"}:
            yield os.path.relpath(path, ROOT), path.read_text("utf-8")


def test_no_remedy_installs_the_package_whose_name_is_contested():
    # `pip install tensordict` puts another package over this one.
    wrong = [
        (str(path), command)
        for path, text in texts()
        for command in INSTALLS.findall(text)
        for word in command.split()
        if OF_THE_OTHER_NAME.fullmatch(word.strip("\"'`.,;:()"))
    ]
    assert wrong == []


def test_every_extra_that_a_text_names_is_one_of_this_package():
    named = [
        (str(path), extra)
        for path, text in texts()
        for extra in re.findall(r"\btensordict-rs\[([\w,-]+)\]", text)
    ]
    assert len(named) > 10
    assert [each for each in named if not EXTRAS.keys() >= {*each[1].split(",")}] == []
    ours = re.compile(rf"\btensordict\[['\"]?(?:{'|'.join(EXTRAS)})\b")
    assert [str(path) for path, text in texts() if ours.search(text)] == []


def test_every_warning_goes_through_warn_caller():
    assert [
        where
        for where, call in nodes(ast.Call)
        if re.fullmatch(r"(warnings\.)?warn(_explicit)?", ast.unparse(call.func))
        and not where.startswith("primitives/deprecation.py:")
    ] == []


class OwnModule(TensorDictModule):
    def __init__(self):
        super().__init__(nn.Identity(), in_keys=["_"], out_keys=["x"])


def modified(path):
    TensorDict(a=torch.zeros(3)).save(path)
    os.utime(path / "a.memmap", (0, 0))
    with open(path / "a.memmap", "r+b") as file:
        file.write(b"\1")


PREPARE = {
    "pickle": lambda path: TensorDict(a=NonTensorData({1, 2})).save(path),
    "modified": modified,
    "load_": lambda path: TensorDict(a=torch.zeros(3)).save(path),
}
CALLS = {
    "unknown keyword": lambda path: TensorDict().apply(torch.neg, bogus=3),
    "names of a list": lambda path: TensorDict.from_list([{"a": 1}], names=["x", "y"]),
    "batch_dims": lambda path: TensorDict.from_any({"a": torch.zeros(3)}, batch_dims=1),
    "load_": lambda path: TensorDict().load_(path),
    "qint8": lambda path: TensorDict(a=torch.zeros(3)).qint8(),
    "quint4x2": lambda path: TensorDict(a=torch.zeros(3)).quint4x2(),
    "pin_memory_": lambda path: TensorDict(a=torch.zeros(3)).pin_memory_(),
    "nothing to reset": lambda path: TensorDictModule(
        nn.Identity(), ["a"], ["b"]
    ).reset_parameters_recursive(),
    "a key that is ignored": lambda path: OwnModule(),
    "device of a module": lambda path: TensorDictModule(nn.Identity(), [], []).device,
    "a deprecated function": lambda path: tensordict.get_defaults_to_none(),
    "a deprecated mode": lambda path: tensordict.set_lazy_legacy(True),
    "a deprecated name": lambda path: tensordict.utils.strtobool,
    "a mapped tensor": lambda path: (
        MemoryMappedTensor.from_tensor(torch.zeros(3)).index
    ),
    "pickle": lambda path: TensorDict.load(path),
    "modified": lambda path: TensorDict.load(path, verify=True),
    "compiled": lambda path: torch.compile(
        lambda td: td.apply(torch.neg, bogus=3), backend="eager", fullgraph=True
    )(TensorDict(a=torch.zeros(3))),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_warning_names_the_line_of_the_user(what, tmp_path):
    PREPARE.get(what, lambda path: None)(tmp_path)
    # Some of the calls end in an error, after the warning.
    with (
        warnings.catch_warnings(record=True, action="always") as caught,
        contextlib.suppress(Exception),
    ):
        CALLS[what](tmp_path)
    # A warning of torch itself, on a Python whose guards are slow.
    caught = [each for each in caught if "Guards may run" not in str(each.message)]
    assert caught
    first = CALLS[what].__code__.co_firstlineno
    for warning in caught:
        assert warning.filename == __file__, warning
        if what != "a key that is ignored":
            assert first <= warning.lineno <= first + 2
