"""Twins are compiled with one store for each attribute where Dynamo needs that."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from separate_process import run_separately
from tensordict.compile.older_dynamo import spell_out

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = '''
class Thing:
    pass


def made(first, second=3):
    """Two attributes."""
    thing = object.__new__(Thing)
    thing.__dict__ = {"first": first, "second": second}
    return thing


def made_within(first):
    def inner():
        thing = Thing()
        thing.__dict__ = {"first": first}
        return thing

    return inner()


def shared(thing):
    other = Thing()
    other.__dict__ = thing.__dict__
    return other
'''


def module_of(folder: Path) -> Any:
    path = folder / "written.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("written", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_states_are_stored_by_attribute(tmp_path: Path) -> None:
    module = module_of(tmp_path)
    functions = module.made, module.made_within, module.shared
    spell_out([module])
    assert (module.made, module.made_within, module.shared) == functions
    assert vars(module.made(1)) == {"first": 1, "second": 3}
    assert vars(module.made_within(2)) == {"first": 2}
    assert "__dict__" not in module.made.__code__.co_names
    assert module.made.__doc__ == "Two attributes."


def test_a_state_that_is_shared_stays_shared(tmp_path: Path) -> None:
    module = module_of(tmp_path)
    spell_out([module])
    thing = module.made(1)
    assert module.shared(thing).__dict__ is thing.__dict__


def test_a_module_without_source_is_left_as_it_is(tmp_path: Path) -> None:
    module = module_of(tmp_path)
    before = module.made.__code__
    (tmp_path / "written.py").unlink()
    spell_out([module])
    assert module.made.__code__ is before
    assert vars(module.made(1)) == {"first": 1, "second": 3}


def test_the_twins_do_the_same_when_spelled_out() -> None:
    """In a process of its own: the functions are changed for good."""
    program = """
import torch
from tensordict import TensorDict
from tensordict.compile.registration import twin_modules
from separate_process import run_separately
from tensordict.compile.older_dynamo import spell_out

spell_out(twin_modules())
td = TensorDict(a=torch.arange(6).view(2, 3), n={"b": torch.ones(2)}, batch_size=[2])
def function(td):
    return torch.stack([td.select("a")[0] + 1, td.view(-1).clone()[1:].exclude("n")[0]])
found = torch.compile(function, backend="eager", fullgraph=True)(td)
assert (found == function(td)).all()
assert vars(found).keys() == vars(function(td)).keys()
"""
    done = run_separately(program)
    assert done.returncode == 0, done.stderr


def test_keys_are_unpacked_into_a_list() -> None:
    import torch

    from tensordict import TensorDict

    torch._dynamo.reset()
    td = TensorDict({"a": torch.rand(3), "n": {"x": torch.rand(3)}}, [3])
    unpacked = torch.compile(
        lambda td: [*td.keys(True, True)], fullgraph=True, backend="eager"
    )
    assert unpacked(td) == ["a", ("n", "x")]
