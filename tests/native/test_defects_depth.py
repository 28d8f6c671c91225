"""Nesting of any depth, on a stack of any size, is walked or is a RecursionError."""

import sys

import pytest

from separate_process import check_separately

PROGRAM = """
import copy
from concurrent.futures import ThreadPoolExecutor
from tensordict import maybe_dense_stack

OPERATIONS = [
    lambda td: td + td, lambda td: td + 1, lambda td: td == td, lambda td: td.clone(),
    lambda td: td.clone(False), copy.deepcopy, lambda td: list(td.keys(True, True)),
    lambda td: list(td.items(True, True)), lambda td: list(td.values(True, True)),
    lambda td: list(td.keys(True)), lambda td: list(td.items(True)), repr,
    lambda td: td.apply(lambda leaf: leaf), lambda td: td.named_apply(lambda _, x: x),
    lambda td: td[0], lambda td: td[torch.tensor([True, False])], lambda td: td.view(-1),
    lambda td: td.unsqueeze(0), lambda td: td.expand(3, 2), lambda td: td.double(),
    lambda td: td.lock_().unlock_(), lambda td: td.flatten_keys("."),
    lambda td: td.exclude(("n", "b")), lambda td: td.update(td.clone(False)),
    lambda td: td.update_(td), lambda td: torch.stack([td, td]), lambda td: td.sum(),
    lambda td: torch.cat([td, td]), lambda td: maybe_dense_stack([td, td]),
    lambda td: LazyStackedTensorDict.lazy_stack([td, td]).contiguous(),
    lambda td: td.unbind(0), lambda td: td.split(1), lambda td: td.to_dict(),
    lambda td: TensorDict(td, [2]), lambda td: td.is_empty(), lambda td: td.data,
    lambda td: td.memmap(), lambda td: td.consolidate(), lambda td: td.numpy(),
    lambda td: td.tolist(), lambda td: td.to_namedtuple(), lambda td: td.abs(),
    lambda td: td.empty(True), lambda td: td.to_tensordict(), lambda td: td.bytes(),
]

def hang(holder, key, value):
    holder._tensordict[key] = value

def check(td):
    for operation in OPERATIONS:
        try:
            operation(td)
        except (RecursionError, RuntimeError, ValueError):
            pass

def on_small_stack(make):
    threading.stack_size(SIZE << 10)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: check(make())).result()
"""


# From 3.12 on the interpreter counts its own calls in C and does not measure them: its
# copies and pickles of deep nesting need more than 256 KiB.
SIZES = [256, 512, 1024] if sys.version_info < (3, 12) else [512, 1024]


@pytest.mark.parametrize("size", SIZES)
def test_deep_nesting_on_small_stacks(tmp_path, size):
    check_separately(
        PROGRAM.replace("SIZE", str(size))
        + """
def dense():
    td = TensorDict({"b": torch.ones(2)}, [2])
    for _ in range(980):
        outer = TensorDict({"b": torch.ones(2)}, [2])
        hang(outer, "n", td)
        td = outer
    return td

on_small_stack(dense)
""",
        tmp_path,
    )


def test_containers_that_hold_themselves(tmp_path):
    check_separately(
        PROGRAM.replace("SIZE", "8192")
        + """
for keys in (["n"], ["n", "m"]):
    def circle():
        td = TensorDict({"b": torch.ones(2)}, [2])
        for key in keys:
            hang(td, key, td)
        return td

    on_small_stack(circle)
    with pytest.raises(RecursionError):
        circle() + circle()
    with pytest.raises(RecursionError):
        maybe_dense_stack([circle(), circle()])
""",
        tmp_path,
        timeout=60,
    )
