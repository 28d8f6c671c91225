"""Rows of stacks of non-tensor data: one value, or a stack of values.

A row of a stack of values with batch dims is one value again when it is taken out, by an
index, a split or a view.
"""

from frame import Case, cases, differing

PREFIX = "from tensordict import MetaData, NonTensorData, NonTensorStack, lazy_stack; "

STACKS = {
    "rows of values": "lazy_stack([NonTensorData(x, batch_size=[2, 3]) for x in 'ab'])",
    "rows along the last dim": (
        "lazy_stack([NonTensorData(x, batch_size=[2, 3]) for x in 'ab'], 2)"
    ),
    "rows of stacks": (
        "NonTensorStack(*(NonTensorStack(NonTensorStack('a', 'b', x), "
        "NonTensorStack('a', 'd', x)) for x in 'xy'))"
    ),
}

INDICES = """
0, [1]
0, :, [1]
0, :, torch.tensor([[1, 0]])
torch.tensor(0), [1]
np.int64(1), :, [0]
[0], [1]
0, None, [1]
None, 0, [1]
None, 1, :, 0
..., 1, [0]
:, 1, 1
[True, False], [0]
np.array([0]), range(2)
0, T([2], 'bool')
0, [], 0
[1], [], 0
1:, :, 0
torch.zeros(2, 0, dtype=torch.long)
torch.tensor([[0, 0], [1, 0]])
"""

MOVES = """
v.flatten()
v.flatten(0, 1)
v.flatten(1, 2)
v.reshape(-1)
v.unbind(0)
v.unbind(1)
v.unbind(2)
v.roll(1, 0)
v.flip(1)
v.tile([2, 1, 1])
v.repeat(2, 1, 1)
v.unflatten(1, (2, 1)) if v.shape[1] else v.unflatten(1, (0, 2))
v.unsqueeze(0)[0]
v[:1].unbind(0)
"""

EXPANDED = """
v = NonTensorData('x', batch_size=[2, 3]); v.expand(3, -1, -1).unbind(0)
v = NonTensorData('x', batch_size=[2, 3]); v.expand(3, 1, -1, -1).unbind(0)
v = lazy_stack([NonTensorData(x, batch_size=[3]) for x in 'ab']); v.pad([0, 1, 0, 0]).unbind(0)
v = lazy_stack([NonTensorData(x, batch_size=[3]) for x in 'ab']); v.pad([0, 1, 1, 0]).unbind(0)
v = lazy_stack([NonTensorData(UnbatchedTensor(T([5])), batch_size=[2])] * 2); \
[type(x).__name__ for x in v.clone().unbind(0)]
"""

WRITES = """
v = NonTensorData('x', batch_size=[2]); v.update_at_(NonTensorData('y', batch_size=[2]), slice(None))
v = NonTensorData('x', batch_size=[2]); v.update_at_(NonTensorData('y', batch_size=[2]), ())
v = NonTensorData('x', batch_size=[2]); v.update_at_(NonTensorData('y', batch_size=[1]), slice(1))
v = NonTensorData('x', batch_size=[2]); v.update_at_(NonTensorStack('u', 'v'), slice(None))
v = TensorDict({'s': 'x'}, [0, 2]); v[torch.zeros(0, dtype=torch.long)] = TensorDict({'s': 'y'}, [0, 2]); v
v = TensorDict({'a': T([2]), 's': 'x', 'n': {'s': 'y'}}, [2], lock=True); \
v.where(T([2], 'bool'), TensorDict({'a': T([2])}, [2]), pad=0)
v = TensorDict({'a': T([2]), 's': 'x'}, [2], device='cpu'); \
v.where(T([2], 'bool'), TensorDict({'a': T([2]), 's': 'y'}, [2])).get('s').device
v = TensorDict({'n': {'a': T([3])}, 's': 'x', 'a': T([3])}, [3]).consolidate(); \
list(v.cpu().keys(True)), v.cpu().get('s').device
v = TensorDict({'a': T([3, 2]), 'm': {'k': 'v'}}, [3]); \
[x.get('m') for x in unpad_sequence(pad_sequence([v[:2], v[:1]], \
return_mask=True)).tensordicts][1]
v = lazy_stack([NonTensorData(x, batch_size=[0]) for x in 'ab'], 1); v.tolist(), v.transpose(0, 1).tolist()
"""


def given(made: str, programs: list[str]) -> str:
    """The programs, each with the stack that they are about."""
    return "\n".join(f"{PREFIX}v = {made}; {program}" for program in programs)


def lines(programs: str) -> list[str]:
    """The lines that are programs."""
    return programs.strip().splitlines()


NO_ELEMENTS = (
    "what an index without elements leaves of a row is a stack without elements"
)


def indexed(name: str, made: str) -> list[Case]:
    """The stack at each index."""
    programs = [f"v[{index}]" for index in lines(INDICES)]
    found = cases(f"{name}, indexed", given(made, programs), on="none")
    if name != "rows of stacks":
        parts = ("v[0, [], 0]", "v[[1], [], 0]")
        for part in parts if "last" in name else parts[:1]:
            ours = "result.batch_size.numel() == 0"
            found = differing(found, part, reason=NO_ELEMENTS, ours=ours)
    return found


CASES = [
    *(
        case
        for name, made in STACKS.items()
        for case in (
            *indexed(name, made),
            *cases(f"{name}, moved", given(made, lines(MOVES)), on="none"),
        )
    ),
    *cases(
        "rows of what was expanded",
        "\n".join(PREFIX + each for each in lines(EXPANDED)),
        on="none",
    ),
    *cases(
        "writes to rows", "\n".join(PREFIX + each for each in lines(WRITES)), on="none"
    ),
]

HELPERS = (PREFIX,)
"""The beginnings of programs: answers go by what follows them."""
