"""Collections and stacks whose rows differ in length, from one list of rows."""

import torch

from tensordict import TensorDict, lazy_stack

ROWS = [[1.0, 2.0], [3.0, 4.0, 5.0], [6.0]]


def nested_tensor(rows):
    return torch.nested.as_nested_tensor(
        [torch.tensor(row) for row in rows], layout=torch.jagged
    )


def ragged():
    """A stack of tensors of other lengths."""
    return lazy_stack([TensorDict(a=torch.tensor(row)) for row in ROWS])


def jagged():
    """A collection whose entry is a jagged tensor."""
    return ragged().densify(layout=torch.jagged)


def nested():
    """A stack along the last dim whose members have jagged tensors."""
    return lazy_stack(
        [
            TensorDict(a=nested_tensor(ROWS), batch_size=[3]),
            TensorDict(a=nested_tensor(ROWS[::-1]), batch_size=[3]),
        ],
        1,
    )


def outer():
    """A stack along the first dim whose members have jagged tensors."""
    pairs = zip(ROWS, [*ROWS[1:], ROWS[0]], strict=True)
    return lazy_stack(
        [TensorDict(a=nested_tensor(pair), batch_size=[2]) for pair in pairs]
    )
