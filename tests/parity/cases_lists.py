"""Lists, tuples and scalars of numpy as entries, by the way in which they are given."""

from frame import cases, differing

PREFIX = (
    "import numpy as np; from tensordict import NonTensorData, NonTensorStack; "
    "from tensordict import from_any, from_dict, set_list_to_stack; "
    "kind = lambda x: (type(x).__name__, list(x.batch_size), x.tolist()) "
    "if hasattr(x, 'batch_size') else (str(x.dtype), x.tolist()); "
)

LISTS = """
[1, 2]
[1, 2.0]
[True, 1]
[True, False]
[1j, 2j]
[1, 'a']
['a', 1]
[None, 1]
['a', 'b']
[]
[[], []]
[[1], [2]]
[[1], [2.0]]
[[1, 2], [3]]
[[1, 2.0], [3]]
[[1, 2], []]
[[1, 2], [3, 'a']]
[[[1, 2], [3]], [[4]]]
[['a'], ['b', 'c']]
[(1, 2), (3, 4)]
[{'a': 1}, {'a': 2}]
[NonTensorData('a'), 'b']
[np.int64(1), np.int64(2)]
[np.int64(1), np.int32(2)]
[np.float32(1), np.float32(2)]
[np.float64(1), np.float64(2)]
[np.float32(1), np.float64(2)]
[1, np.int64(2)]
[np.int64(1), 2]
[np.bool_(True), np.bool_(False)]
[[np.float32(1)], [np.float32(2)]]
[np.str_('a'), np.str_('b')]
[np.array([1]), np.array([2])]
[torch.tensor(1), torch.tensor(2)]
[torch.zeros(2), torch.zeros(2)]
[torch.zeros(2), torch.zeros(3)]
(np.int64(1), 2)
"""

WAYS = [
    "kind(TensorDict({{'x': {}}}).get('x'))",
    "kind(from_dict({{'x': {}}}).get('x'))",
    "kind(from_dict({{'n': {{'x': {}}}}}).get(('n', 'x')))",
    "kind(from_any({{'x': {}}}).get('x'))",
    "kind(from_any({}))",
    "td = TensorDict(batch_size=[2]); td['x'] = {}; kind(td.get('x'))",
    "td = TensorDict(x='old', batch_size=[2]); td.update({{'x': {}}}); kind(td.get('x'))",
]

WRITTEN = """
[1, 2]
['a', 'b']
('a', 'b')
(1, 2)
np.array([1, 2])
np.array(['a', 'b'])
np.float32(1)
np.int64(1)
torch.Size([2])
3
'new'
None
{1, 2}
"""

WRITES = [
    "td = TensorDict(x='old', batch_size=[2]); td.set_at_('x', {}, 0); td['x']",
    "td = TensorDict(x=['p', 'q'], batch_size=[2]); td.set_at_('x', {}, 0); td['x']",
    "td = TensorDict(x='o', batch_size=[2]); td.set_at_('x', {}, slice(None)); td['x']",
]

OTHERS = """
with set_list_to_stack(False): td = from_dict({'x': ['a', 'b']}).get('x')
with set_list_to_stack(False): td = from_dict({'x': [1, 2.0]}).get('x')
from_dict({'x': [1, 2.0], 'y': [1, 2]}, auto_batch_size=True)
TensorDict().from_dict_instance({'x': [np.int64(1), np.int64(2)]})['x']
td = TensorDict(x='old', batch_size=[2]); td.update_({'x': np.float32(1)})
td = TensorDict(x='old', batch_size=[2]); td.update_({'x': np.array([1, 2])})
"""

JOINS = """
torch.cat([TensorDict({}, [2]), NonTensorStack('a', 'b')]).tensordicts[2:]
torch.cat([NonTensorStack('a', 'b'), TensorDict({}, [2])])
torch.cat([TensorDict(x={}, batch_size=[2]), TensorDict(x=['a', 'b'], batch_size=[2])])
"""

CASES = [
    *cases(
        "lists",
        "\n".join(
            PREFIX + way.format(value)
            for way in WAYS
            for value in LISTS.splitlines()
            if value and not (value.startswith("(") and "from_" in way)
        ),
        on="empty",
    ),
    *cases(
        "lists",
        "\n".join(
            PREFIX + way.format(value)
            for way in WRITES
            for value in WRITTEN.splitlines()
            if value
        ),
        on="empty",
    ),
    *cases(
        "lists",
        "\n".join(PREFIX + line for line in f"{OTHERS}{JOINS}".splitlines() if line),
        on="empty",
    ),
]

CASES = differing(
    CASES,
    "td.set_at_('x', np.array(['a', 'b']), slice(None))",
    reason="an array of text is a column: in the release each row has all of it",
    ours="list(result) == ['a', 'b']",
)

HELPERS = (PREFIX,)
"""The beginnings of programs: answers go by what follows them."""
