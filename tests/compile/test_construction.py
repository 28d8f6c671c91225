"""New containers in compiled code: the rule for ``new``, and what Dynamo's log tells."""

from __future__ import annotations

import logging

import pytest
import torch
from torch._dynamo.variables.builder import VariableBuilder

from tensordict import TensorDict, lazy_stack, tensorclass
from tensordict.compile import construction
from tensordict.primitives import tree as tree_primitives

TAKEN = construction.install_rules()
pytestmark = pytest.mark.skipif(not TAKEN, reason="this Dynamo takes no rule")


@tensorclass
class Data:
    a: torch.Tensor
    label: str = "x"


class Kept(TensorDict):
    pass


def tree():
    return TensorDict({"a": torch.rand(4, 3), "n": {"b": torch.rand(4)}}, [4])


FUNCTIONS = {
    "index": lambda td: td[0],
    "split": lambda td: td.split(2),
    "set": lambda td: td.copy().set("z", td["a"]),
    "locked": lambda td: td.copy().lock_() + 1,
    "subclass": lambda td: Kept(td, [4])[0],
    "stack": lambda td: lazy_stack([td, td + 1]) + 1,
    "class": lambda td: Data(td["a"], batch_size=[4])[0],
    "used": lambda td: td[0].set("c", td["a"][0])["c"] + 1,
}


def compiled(function, td):
    torch._dynamo.reset()
    return torch.compile(function, backend="eager", fullgraph=True)(td)


def state(value):
    if isinstance(value, (list, tuple)):
        return [state(each) for each in value]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    keys = list(value.keys(True, True))
    look = type(value), value.batch_size, value.device, value.names, value.is_locked
    return look, keys, [state(value.get(key)) for key in keys if key != "label"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_containers_are_made_by_the_rule_as_without_it(name, monkeypatch):
    function, td = FUNCTIONS[name], tree()
    by_rule = compiled(function, td)
    monkeypatch.delitem(VariableBuilder._id_dispatch(), id(tree_primitives.new))
    assert state(compiled(function, td)) == state(by_rule) == state(function(td))


def logged(function, *args):
    """Return what Dynamo's log says of changes while ``function`` is compiled."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    log = logging.getLogger("torch._dynamo.side_effects.__side_effects")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        torch._dynamo.reset()
        torch.compile(function, backend="eager", fullgraph=True)(*args)
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    return "\n".join(found)


def test_the_log_places_what_a_program_changes_and_no_new_container():
    def changed(td, held):
        held["seen"] = td[0]

    text = logged(changed, tree(), {})
    assert 'held["seen"] = td[0]' in text
    assert text.count("unable to find user stacks") == 2  # td[0] and its n


def test_installing_again_changes_nothing():
    from torch._dynamo.side_effects import SideEffects

    note = SideEffects._capture_user_stack
    assert construction.install_rules()
    assert SideEffects._capture_user_stack is note


def test_without_the_internals_there_is_no_rule(monkeypatch):
    rules = dict(VariableBuilder._id_dispatch())
    monkeypatch.delattr(VariableBuilder, "_id_dispatch")
    assert not construction.install_rules()
    monkeypatch.undo()
    assert VariableBuilder._id_dispatch() == rules
