"""Stacks of values by hand: what is written where, and how shapes change."""

from frame import cases, differing

PREFIX = (
    "from tensordict import MetaData, NonTensorData, NonTensorStack, lazy_stack; "
    "import pickle; import numpy as np; import tensordict; "
    "show = lambda x: (type(x).__name__, x.tolist(), list(x.batch_size), x.names); "
    "V = NonTensorStack('a', 'b', 'c'); "
    "W = NonTensorStack.from_list([['a', 'b', 'c', 'd'], ['e', 'f', 'g', 'h']]); "
    "R = lazy_stack([NonTensorData('a', batch_size=[3]), "
    "NonTensorData('v', batch_size=[3])]); "
    "D = NonTensorData('a', batch_size=[2]); "
)

SHAPES = """
[show(V.reshape(*s)) for s in ((3, 1), (1, 3), (1, 1, 3), (3, 1, 1), (1, -1))]
[show(V.view(*s)) for s in ((3, 1), (1, 3), (1, 1, 3), (3, 1, 1))]
[show(V.atleast_1d()), show(V.atleast_2d()), show(V.atleast_3d())]
[show(W.reshape(*s)) for s in ((8,), (4, 2), (2, 4, 1), (1, 2, 4), (2, 1, 4), (8, 1))]
[show(W.reshape(*s)) for s in ((1, 2, 4, 1), (2, 1, 4, 1), (2, 2, 2), (2, 2, 1, 2))]
[show(W.view(*s)) for s in ((2, 4, 1), (1, 2, 4), (2, 1, 4), (2, 4, 1, 1), (2, 2, 2))]
[show(W.unflatten(1, s)) for s in ((2, 2), (1, 4), (4, 1), (2, 1, 2))]
[show(W.unflatten(0, s)) for s in ((2, 1), (1, 2), (1, 1, 2))]
[show(W.expand(2, 2, 4)), show(W.broadcast_to([3, 2, 4])), show(W.expand(-1, 4))]
[show(W.unsqueeze(dim)) for dim in (0, 1, 2, -1, -2, -3)]
[show(W.gather(0, T([0, 0]))), show(W.gather(1, T([0, 0])))]
[show(W.permute(1, 0)), show(W.flip(0)), show(W.roll(1, 1)), show(W.repeat(1, 2))]
[show(R.flatten()), show(R.unsqueeze(0)), show(R.expand(2, 2, 3))]
[show(R.gather(0, T([0, 0]))), show(R.permute(1, 0)), show(R.flip(0)[0])]
[show(R.reshape(*s)) for s in ((6,), (3, 2), (2, 3, 1), (1, 2, 3), (2, 1, 3), (6, 1))]
[show(torch.cat([W, W], dim)) for dim in (0, 1)]
[show(torch.cat([R, R], dim)[0]) for dim in (0, 1)]
[show(torch.cat([D, NonTensorData('x', batch_size=[2])], 0)[0])]
show(torch.cat([V, TensorDict(batch_size=[3])]))
show(V.to_lazystack(0)), show(W.to_lazystack(1))
D.to_lazystack(0).tolist()
show(V.empty(batch_size=[2])), show(W.empty(batch_size=[2]))
show(D + TensorDict(batch_size=[3, 2])), show(D + torch.ones(3, 2))
show(pickle.loads(pickle.dumps(lazy_stack([NonTensorData(i, batch_size=[0, 2]) for i in (1, 2, 3)]))))
W.names = ['x', 'y']; show(pickle.loads(pickle.dumps(W)))
V.contiguous().is_contiguous()
"""

INDEXED = """
[show(V[i]) for i in ((0, None), (None, 0), (..., 0, None), (True, 0), (0, None, None))]
[show(W[i]) for i in ((0, None), (None, 1), (0, 1, None), np.s_[:, None], np.s_[:, 0])]
show(W[None, :, 0][0])
[show(R[i]) for i in ((0, None), (None, 0), (0, 0, None), np.s_[:, 0, None], None)]
[show(R[i][0]) for i in ((0, None), np.s_[:, None], np.s_[:, 0, None], np.s_[0:1])]
[show(R[i][0]) for i in (T([1, 0]), [1, 0], T([True, False]), np.s_[:, 0:2])]
"""

WRITES = """
V.set('q', 'x')
V['data'] = ['x', 'y', 'z']; show(V)
V['data'] = [['x'], ['y'], ['z']]; show(V)
V['data'] = (1, 2); show(V)
V['data'] = torch.ones(3); show(V)
V['data'] = 3; show(V)
V.set_at_('data', 'x', 0); show(V)
V.set_at_('data', ['x', 'y'], slice(2)); show(V)
V.set_at_('q', 'x', 0)
V.set_at_('data', 'x', 5)
V[:2] = NonTensorStack('x'); show(V)
V[:2] = ['x']; show(V)
V[:2] = [['x'], ['y']]; show(V)
V[:2] = TensorDict(batch_size=[1]); show(V)
V[:2] = TensorDict(batch_size=[3]); show(V)
V[:2] = NonTensorStack('x', 'y', 'z'); show(V)
V[T([[0, 1], [1, 2]])] = NonTensorStack('x', 'y'); show(V)
W[:] = NonTensorStack('x', 'y', 'z', 'w'); show(W)
W[T([[1, 0], [1, 0]])] = W.clone(); show(W)
W[None] = W.clone(); show(W)
W[:, 0] = ['x', 'y']; show(W)
D.update(NonTensorStack('x', 'x'), inplace=True)
D.copy_at_(TensorDict(batch_size=[]), 0); show(D)
[show(D.copy_at_(TensorDict(batch_size=[2])[i], i, fast=False)) for i in (np.array([-1]), T([0]).long(), [0], ...)]
D.update_at_(D, np.array([-1]))
V.copy_at_(TensorDict(batch_size=[]), 0); show(V)
TensorDict(s=V, batch_size=[3]).copy_at_(TensorDict(s='x'), 0)
"""

SET = """
V.set('data', 3); V.tolist() == [3, 3, 3]
V.set('data', torch.ones(3)); [v.shape for v in V.tolist()] == [(3,)] * 3
V.set('data', (1, 2, 3)); V.tolist() == [(1, 2, 3)] * 3
V.set('data', {'x': 1}); V.tolist() == [{'x': 1}] * 3
V.set('data', [1, 2, 3]); V.tolist() == [1, 2, 3] and type(V.tolist()[0]) is int
V['data'] = ['x']; V.tolist() == ['x'] * 3
"""

MADE = """
show(NonTensorStack(D, NonTensorData('b', batch_size=[2]), stack_dim=-1))
show(NonTensorStack('a', 'b', stack_dim=-1))
NonTensorStack('a', 'b', stack_dim=-2)
NonTensorStack('a', 'b', stack_dim=1)
show(TensorDict.from_any(['a', 'b'])), show(TensorDict.from_any([{}, 1]))
show(TensorDict.from_any([['a'], ['b']])), show(TensorDict.from_any([(1, 2), (3, 4)]))
TensorDict.from_any([1, 2]), TensorDict.from_any([T([1]), 'a']).tolist()[1]
TensorDict.from_any([TensorDict(a=1)]).batch_size
repr(NonTensorStack(*['aaaa'] * 50)), repr(NonTensorStack('a' * 46))
repr(NonTensorStack('a' * 47)), repr(NonTensorStack(*range(30)))
V >= 'x'
V < None
V | 'x'
V == 'x', V != 'x'
lazy_stack([TensorDict(a=1), TensorDict(a=2)]) >= 'x'
"""

ENTRIES = """
E = TensorDict(s='x', a=torch.ones(3)); E[...] = 1; type(E.get('s')).__name__, E['s']
E = TensorDict(s='x', a=torch.ones(3)); E[None] = 1; type(E.get('s')).__name__, E['a']
E = TensorDict(s='a', batch_size=[2, 3], names=['t', 'x']); E[0] = 1; show(E.get('s'))
E = TensorDict(s='a').atleast_3d(); show(E.get('s'))
E = TensorDict(s='a', batch_size=[3]).atleast_3d(); show(E.get('s'))
E = TensorDict(s='a', b=torch.ones(2), batch_size=[2]).unsqueeze(-1); E.auto_batch_size_(1)
E = TensorDict(s='a', b=torch.ones(2), n={'t': 'b'}, batch_size=[2]); list(E.data_ptr())
E = TensorDict(s='a', batch_size=[2, 3]); tensordict.group_by(E, 's')[0]
E = W.unsqueeze(0); show(E.where(T([0, 0, 0, 0]).bool().expand(1, 2, 4), E.clone()))
show(W.pad([0, 1, 0, 0])), show(W.pad([0, 0, 1, 0]))
[V[i].stack_dim for i in (T([[0, 1]]), np.s_[None, T([[0, 1], [1, 1]])], np.s_[[0], None])]
[W[i].stack_dim for i in (T([[0, 1]]), np.s_[:, T([[0, 1]])], np.s_[None, [1], [0]])]
[W[i].stack_dim for i in (np.s_[[1, 0], [0, 1]], np.s_[None, [1, 0]], np.s_[:, [0], None])]
"""

STACKS = """
m = TensorDict(n={'z': 1}, a=1); L = lazy_stack([m, m]); L.rename_key_('a', 'q'); list(L.keys())
m = TensorDict(a=1); L = lazy_stack([m, m]); L.del_('a'); list(m.keys())
m = TensorDict(a=1); L = lazy_stack([m, m]); L.pop('a'), list(m.keys())
m = TensorDict(a=1, b=2); L = lazy_stack([m, m]); L.popitem(), list(m.keys())
L = lazy_stack([TensorDict(n={'b': T([1])}, a=1), TensorDict(n={}, a=2)]); L[0] = 5; L[0]
L = lazy_stack([TensorDict(n={'b': T([1])}, a=1), TensorDict(n={}, a=2)]); L[:] = 5; L[0]
L = lazy_stack([TensorDict(b=1, a=1), TensorDict(a=2)]); L[:] = 5; L[0], L[1]
L = lazy_stack([TensorDict(a=T([1, 2]).float(), batch_size=[2])] * 2); L.softmax(-1)['a']
L = lazy_stack([TensorDict(a=torch.ones(2, n), batch_size=[2]) for n in (1, 2)]); L.softmax(1)[1]['a']
L = lazy_stack([TensorDict(a=1), TensorDict(b=2)]); list(L.data_ptr().keys(True))
"""


LOCKED = "x = TensorDict({'s': 'hi', 'n': {'s': 'hi'}, 'a': T([3])}, [3], names=['t'], device='cpu')"

KEPT = f"""
{LOCKED}; x.lock_(); r = x.rename_keys({{'a': 'b'}}); r.get('s').is_locked, r.get(('n', 's')).is_locked, r.is_locked
{LOCKED}; r = x.rename_keys({{('n', 's'): 's2'}}); r.get('s').is_locked, list(r.keys(True))
{LOCKED}; TensorDict.load_memmap(x.memmap(tempfile.mkdtemp()).saved_path)['n'].get('s').names
{LOCKED}; x.auto_device_().memmap_like().get('s').device, x.memmap().get('s').device
{LOCKED}; x.clear_device_(); x.memmap_like().get('s').device, x.memmap().get('s').device
{LOCKED}; x.lock_(); out = torch.stack([x, x]) * 0; v = out.get('s'); \
torch.stack([x, x], out=out) is out, out.get('s') is v
{LOCKED}; x['s'] = ('p',); x[0] = x[0].clone(); type(x.get('s')).__name__
{LOCKED}; v = x._get_sub_tensordict(slice(1, 3)); v.empty(recurse=True)
{LOCKED}; v = x._get_sub_tensordict(None); torch.stack([v, v], out=torch.stack([v, v]) * 0).get('s').tolist()
{LOCKED}; v = x._get_sub_tensordict(2); v[...] = v.clone() * 2; x['a'], v.get(('n', 's'))
"""

NAMED = "st = lambda: NonTensorStack(*[NonTensorStack('p', 'q')] * 3); x = TensorDict({'s': st(), 'n': {'h': 'x', 's': st()}, 'a': T([3, 2])}, [3, 2], names=['y', 'x']); at = lambda r: (r.get('s').names, r.get(('n', 's')).names, r.get(('n', 'h')).names)"

NAMES = f"""
{NAMED}; v = x._get_sub_tensordict(slice(1)); at(v + 1), at(v.clone()), at(v.isreal()), \
at(v.double()), at(v.select('s', 'n'))
{NAMED}; v = x._get_sub_tensordict(([0],)); at(v > v)
{NAMED}; at(x.unsqueeze(0).to_tensordict()), at(x._get_sub_tensordict(([0],)).to_tensordict())
{NAMED}; v = x._get_sub_tensordict(([0],)); v['n', 'h'] = T([1, 2, 2]); at(v.abs()), at(v.unflatten(-1, (-1, 1)))
"""

EMPTY = """
x = TensorDict({'a': T([2, 3]), 's': MetaData('m')}, [2, 3]); x[1:1] = 2; x[[]] = 2; x[:, []] = 2; \
x[False] = 2; x[[False, False]] = 2.0; x
x = TensorDict({'a': T([2, 3]), 's': NonTensorData('m')}, [2, 3]); x[1:1] = 2
x = TensorDict({'s': NonTensorData(np.arange(2)), 'a': T([4])}, [4]); x[:2] = x[:2]; type(x.get('s')).__name__
x = TensorDict({'s': NonTensorData(np.arange(2)), 'a': T([4])}, [4]); \
x.update_at_(x[[0, 1]] * 0, [0, 1]); type(x.get('s')).__name__
x = TensorDict({'s': 'hi'}, [0, 2]).unsqueeze(0); \
[type(r.get('s')).__name__ for r in (x.view(-1), x.reshape(-1), x.flatten(0, 2), x.squeeze(0))]
x = TensorDict({'s': 'k', 'm': {'s': MetaData('l')}}, [2]); x.where(torch.ones(3, dtype=torch.bool), x)
"""

SPREAD = """
x = TensorDict({'s': MetaData('x'), 'a': T([2])}, [2]); x[None] = x.clone() * 2; \
x[None, :] = x.clone(); type(x.get('s')).__name__
x = TensorDict({'s': MetaData('x'), 'a': T([2])}, [2]); x[None, :, None] = x.clone().unsqueeze(-1); \
x[None, :] = TensorDict({'s': MetaData('y')}, [2]); x.get('s').tolist()
x = TensorDict({'s': MetaData('x'), 'a': T([0])}, [0]); x[None, :] = x.clone(); x['a']
x = TensorDict({'s': MetaData('x'), 'a': T([2])}, [2]); x[:] = TensorDict({'s': MetaData('x')}, [3])
x = TensorDict({'s': ['p', 'q']}, [2]).atleast_3d(); \
x.update_at_(TensorDict({'s': ['r', 's']}, [2])[..., None], np.s_[..., None])['s']
"""


def lines(programs: str) -> str:
    """The programs with what they start with."""
    found = programs.strip().splitlines()
    return "\n".join(f"{PREFIX}{line}" for line in found)


CASES = [
    *cases("values.shapes", lines(SHAPES), on="flat"),
    *cases("values.indexed", lines(INDEXED), on="flat"),
    *cases("values.writes", lines(WRITES), on="flat"),
    *cases(
        "values.indexed",
        lines(
            "[type(W[i][0]).__name__ for i in (np.s_[:, 0, None], np.s_[0, :, None])]"
        ),
        on="flat",
        reason="rows of a stack of elements are stacks, with a new dim too",
        ours="set(result) == {'NonTensorStack'}",
    ),
    *cases(
        "values.writes",
        lines(SET),
        on="flat",
        reason="what is set under 'data' is one value, but for lists and stacks of values",
        ours="result is True",
    ),
    *cases("values.entries", lines(ENTRIES), on="flat"),
    *cases("values.stacks", lines(STACKS), on="flat"),
    *cases("values.made", lines(MADE), on="flat"),
    *cases("values.kept", KEPT, on="none"),
    *cases("values.names", lines(NAMES), on="none"),
    *differing(
        cases("values.empty", lines(EMPTY), on="none"),
        "unsqueeze(0); [type",
        reason="one value without elements stays one, which keeps it",
        ours="set(result) == {'NonTensorData'}",
    ),
    *cases(
        "values.kept",
        lines(
            "x = TensorDict({'s': NonTensorData(np.arange(2)), 'a': T([4])}, [4]); "
            "x[:2] = x[:2].clone(); type(x.get('s')).__name__"
        ),
        on="none",
        reason="an array that equals the one value leaves it as it is, as any other does",
        ours="result == 'NonTensorData'",
    ),
    *cases("values.spread", lines(SPREAD), on="none"),
]

CASES += cases(
    "values.names",
    lines(
        f"{NAMED}; v = x._get_sub_tensordict(([0],)); v['n', 'h'] = T([1, 2, 2]); "
        "at(v.abs()), at(v.unflatten(-1, (-1, 1)))"
    ),
    on="none",
    reason="the release gives the name of a dim that is split to the last of the new ones",
    ours="result[1][0][1:] == ['x', None]",
)

HELPERS = (PREFIX,)
"""The beginnings of programs: answers go by what follows them."""
