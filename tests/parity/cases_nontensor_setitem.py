"""Writing to values at an index: what is refused, and which of several errors it is."""

from frame import cases

SETUP = "from tensordict import MetaData, NonTensorData, NonTensorStack, lazy_stack; "

MAKERS = (
    "v = NonTensorStack('a', 'b')",
    "v = NonTensorStack(NonTensorStack('a', 'b'), NonTensorStack('c', 'd'))",
    "v = lazy_stack([NonTensorData(c, batch_size=[2]) for c in 'xy'])",
    "v = NonTensorStack('a', 'b').unflatten(-1, (-1, 1))",
)

ENTRIES = """
v[1] = TensorDict({}, v.shape[1:]); v
v[:1] = TensorDict({}, [1, *v.shape[1:]]); v
v[[1, 0]] = TensorDict({}, v.shape); v
v[torch.tensor([True, False])] = TensorDict({}, [1, *v.shape[1:]]); v
v[0] = TensorDict({'z': T(v.shape[1:])}, v.shape[1:])
v.update_at_(TensorDict({}, v.shape[1:]), 0)
v.update_at_(TensorDict({}, v.shape), [0, 1])
v.update_at_(TensorDict({'z': T(v.shape)}, v.shape), [0, 1])
v.update_at_({}, 0)
"""

PROGRAMS = """
v.update_at_({'z': 1}, 0)
v.update_at_({}, torch.zeros(7, dtype=torch.bool))
v.update_at_({}, 7)
v.update_at_({}, 1.5)
v.set_at_('n', 2, 99)
v.set_at_('n', 2, (0, 0, 0))
v.set_at_('n', 2, torch.zeros(7, dtype=torch.bool))
v.set_at_('n', 2, 1.5)
v.set_at_('n', 'g', 0)
v[1.5]
v[1.5] = 'x'
v[(1.5,)]
v[[1.5]]
v[[1.5]] = 'x'
v[[0.0, 1.0]]
v[np.array([0.5])]
v[np.float32(1)]
v[[True, 1.0]]
v.tolist()
"""

TABLES = (
    "td = TensorDict({'b': torch.ones(0, 2), 'l': []}, [0])",
    "td = TensorDict({'b': torch.ones(2, 2), 'l': [1, 2]}, [2])",
)

WRITES = """
td.set_at_('l', 'w', 5)
td.set_at_('b', 'w', 5)
td.set_at_('b', 'w', (0, 0, 0))
lazy_stack([td, td])[[1.5]]
lazy_stack([td, td])[[0.0, 1]]
"""

ONE = ("td = TensorDict({'s': 'yo', 'd': T([3])}, [3])",)

EQUAL = """
td[:2] = TensorDict({'s': NonTensorStack('yo', 'yo'), 'd': T([2])}, [2]); td
td[:2] = TensorDict({'s': NonTensorStack('yo', 'ya'), 'd': T([2])}, [2]); td
td[:0] = TensorDict({'s': 'ya', 'd': T([0])}, [0]); td
td[[0, 2]] = torch.stack([TensorDict({'s': 'yo', 'd': T([])}, [])] * 2); td
td[None] = TensorDict({'s': 'yo', 'd': T([1])}, [1]); td
td.update_at_(TensorDict({'s': NonTensorStack('yo', 'yo')}, [2]), slice(0, 2)); td
td.memmap_(); td[:2] = TensorDict({'s': NonTensorStack('yo', 'yo')}, [2]); td['s']
td.memmap_(); td[:2] = TensorDict({'s': NonTensorStack('yo', 'ya')}, [2])
"""

NAMED = (
    "td = TensorDict({'s': (1, 'a'), 'p': NonTensorStack('p', 'q')}, [2], names=['x'])",
)

NAMES = "[td.unsqueeze(1)[None].roll(1, 0).get(key).names for key in 'sp']"


def _programs(makers: tuple[str, ...], text: str) -> str:
    return "\n".join(
        f"{SETUP}{maker}; {line}"
        for maker in makers
        for line in text.split("\n")
        if line
    )


CASES = [
    *cases(
        "writes of no values", _programs(MAKERS, PROGRAMS), on="none", message=False
    ),
    *cases(
        "writes of no values", _programs(MAKERS[::2], ENTRIES), on="none", message=False
    ),
    *cases(
        "writes of no values",
        _programs(MAKERS[1:2], "v[1] = TensorDict({}, v.shape[1:]); v"),
        on="none",
        reason="what has no entries writes nothing; the release refuses it for rows of rows",
        ours="v.tolist() == [['a', 'b'], ['c', 'd']]",
    ),
    *cases("writes of texts", _programs(TABLES, WRITES), on="none", message=False),
    *cases("writes of equal values", _programs(ONE, EQUAL), on="none", message=False),
    *cases(
        "names of new dims",
        _programs(NAMED, NAMES),
        on="none",
        reason="values have the names of their collection; the release drops some of them",
        ours="result == [[None, 'x', None]] * 2",
    ),
    *cases(
        "load_state_dict",
        """
        TensorDict({'c': T([2]), 's': 'hi'}, [2]).load_state_dict(TensorDict({'c': T([2])}, [2]).state_dict())
        TensorDict({'c': T([2]), 's': 'hi'}, [2]).load_state_dict(TensorDict({'c': T([2])},
            [2]).state_dict(), strict=False)
        TensorDict({'c': T([2]), 'n': {'s': 'hi', 'c': T([2])}},
            [2]).load_state_dict(TensorDict({'c': T([2]), 'n': {'c': T([2])}}, [2]).state_dict())
        TensorDict({'c': T([2]), 'n': {'s': 'hi'}}, [2]).load_state_dict(TensorDict({'c': T([2])}, [2]).state_dict())
        TensorDict({'c': T([2]), 'n': {'n': {'s': 'hi'}}},
            [2]).load_state_dict(TensorDict({'c': T([2])}, [2]).state_dict())
        TensorDict({'c': T([2]), 'n': {'e': {}}}, [2]).load_state_dict(TensorDict({'c': T([2])}, [2]).state_dict())
        TensorDict({'c': T([2]), 's': 'hi'}, [2]).load_state_dict(TensorDict({'c': T([2]),
            's': 'x'}, []).state_dict()).get('s').batch_size
        TensorDict({'c': T([0]), 'n': {'s': 'hi'}}, [0]).load_state_dict(TensorDict({'c': T([]),
            'n': {'s': 'x'}}, []).state_dict()).get(('n', 's')).batch_size
        TensorDict({'c': T([2]), 's': MetaData('a')}, [2]).load_state_dict(TensorDict({'c': T([2])}, [2]).state_dict())
        """,
        on="none",
        message=False,
    ),
]

HELPERS = (SETUP,)
"""The beginnings of programs: answers go by what follows them."""
