"""The shortcuts into CPython and torch: which are taken, and that none has to be."""

import json
import re
import sys
from pathlib import Path

import pytest

from separate_process import check_freshly
from tensordict import _rust, cli

PAGE = Path(__file__).parents[2] / "docs" / "dev" / "native.md"
NEEDS_LOCK = pytest.mark.skipif(
    "free-threading" in sys.version, reason="an interpreter without a lock has none"
)


def run(program: str, setting: str | None) -> str:
    return check_freshly(program, environment={"TENSORDICT_SHORTCUTS": setting})


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The shortcuts that a program takes with each setting, and its answers."""
    folder = tmp_path_factory.mktemp("saved")
    program = f"""
import json, torch
from tensordict import _rust
print(json.dumps(_rust.shortcuts()))
from tensordict import TensorDict, TensorClass, lazy_stack
class Point(TensorClass):
    a: torch.Tensor
td = TensorDict(a=torch.arange(6).view(2, 3), n=dict(b=torch.ones(2, 3)), batch_size=[2])
td.memmap({str(folder)!r})
print(TensorDict.load_memmap({str(folder)!r}) + td, td[0], torch.stack([td, td]).unbind(0))
print(td.update(td.clone()), td.flatten_keys(), lazy_stack([td[0], td[1]])["n", "b"])
point = Point(torch.ones(2), batch_size=[2])
point.a = point.a + 1
print(point, point.a, len(td), "a" in td, td.batch_size, list(td.split(1)), td == td)
"""
    told = {setting: run(program, setting) for setting in (None, "0")}
    return {setting: text.split("\n", 1) for setting, text in told.items()}


@NEEDS_LOCK
def test_all_shortcuts_are_taken(said):
    taken = json.loads(said[None][0])
    assert [name for name in taken if not taken[name]] == []


def test_the_variable_turns_all_shortcuts_off(said):
    assert not any(json.loads(said["0"][0]).values())


def test_without_shortcuts_a_program_gives_the_same_answers(said):
    assert said["0"][1] == said[None][1]


def test_without_shortcuts_modules_refuse_values_of_other_shapes():
    program = """
import torch
from tensordict import TensorDict
module = torch.nn.Linear(2, 3)
params = TensorDict.from_module(module).clone()
params["weight"] = torch.zeros(5, 7)
try:
    params.to_module(module)
except RuntimeError as error:
    print(error)
"""
    assert "weight [5, 7] in place of [3, 2]" in run(program, "0")


def test_doctor_prints_the_shortcuts(capsys):
    cli.main(["doctor"])
    out = capsys.readouterr().out
    for name, is_taken in _rust.shortcuts().items():
        state = "taken" if is_taken else "not taken"
        assert re.search(rf"^  {name} +{state}$", out, re.MULTILINE)


def test_the_page_describes_each_shortcut():
    headings = re.findall(r"^## `(.*)`", PAGE.read_text(), re.MULTILINE)
    assert headings == list(_rust.shortcuts())
