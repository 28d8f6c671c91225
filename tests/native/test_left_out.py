"""Native primitives that are left out, so that what each gains can be measured."""

import pytest

from separate_process import run_freshly
from tensordict import _rust
from tensordict.primitives import STEMS, left_out

PROGRAM = """
import sys, types
import torch
from tensordict import TensorDict, _rust
from tensordict.primitives import keys
assert _rust.select is keys.select and _rust.flatten_keys is keys.flatten_keys
assert isinstance(_rust.map_leaves, types.BuiltinFunctionType)
for name, module in sys.modules.items():
    held = vars(module).get("select") if name.startswith("tensordict") else None
    assert not isinstance(held, types.BuiltinFunctionType), name
td = TensorDict(a=torch.ones(2), b=dict(c=torch.zeros(2)), batch_size=[2])
print(list(td.flatten_keys().select("b.c").keys()))
"""


def test_a_program_runs_without_what_is_left_out():
    done = run_freshly(PROGRAM, environment={"TENSORDICT_NATIVE": "-keys,-containers"})
    assert (done.stdout, done.stderr) == ("['b.c']\n", "")


@pytest.mark.parametrize("setting", ["keys", "-keyz", "-keys,-flatten_kyes", "-"])
def test_a_name_of_no_primitive_is_refused_and_nothing_is_left_out(setting):
    native = _rust.flatten_keys
    with pytest.raises(ValueError, match="lists the native primitives.*-keys|-flatten"):
        left_out.leave_out(setting, STEMS)
    assert _rust.flatten_keys is native
