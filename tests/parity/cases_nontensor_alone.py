"""A value that is no tensor, or a stack of them, that is no entry of a collection."""

from frame import cases

SETUP = "from tensordict import MetaData, NonTensorData, NonTensorStack, pad_sequence; "

MAKERS = (
    "v = NonTensorData('a', batch_size=[3])",
    "v = MetaData('a', batch_size=[3])",
    "v = NonTensorData('a')",
    "v = NonTensorStack('a', 'b', 'c')",
    "v = NonTensorStack(NonTensorStack('a', 'b'), NonTensorStack('c', 'd'))",
)

PROGRAMS = """
v.to_tensordict() is v
v == 1
v != 1
v == T(v.batch_size)
v == 'a'
v == None
v == TensorDict({}, v.batch_size)
v | True
v | v
v ^ T(v.batch_size) ^ True
v.rename_keys({'n': 'data'})
list(v.non_tensor_items())
v[()]
v.maybe_to_stack()
v.lock_().maybe_to_stack().is_locked
[part.is_locked for part in v.lock_().unbind(0)]
TensorDict(v=v, batch_size=v.batch_size).grad
v.masked_fill(T(v.batch_size) > 1, 0)
v.apply(lambda x: x)
v.amax(0, False)
v._get_sub_tensordict(())
v[0] = 'w'; v
v[0] = 'a'; v
v[9] = 'w'; v
v[9] = 'a'; v
v[9] = NonTensorData('a'); v
v[1:1] = TensorDict({}, [0]); v
v.is_locked = True; v.is_locked
del v['k']; v
"""

REDUCED = """
v.sum(reduce=True)
v.sum(dim='feature', reduce=True)
v.amax(reduce=True)
v.var(dtype=torch.float64)
"""

ONE = """
torch.stack([v, TensorDict({}, v.batch_size)])
pad_sequence([v, v])
pad_sequence([v, v[:1]])
v.pad([0, 0])
v.pad([1])
v[1:1] = 'w'; v
v.names = ['x']; v
"""

TAKES_PART = """
v & True
v % 2
v.apply(lambda x: x, filter_empty=True)
torch.exp(v)
torch.add(v, v)
torch.nn.functional.mse_loss(v, v, reduction='none')
"""

STACK = """
v[:0] = 1; v
"""

ENTRIES = """
td = TensorDict(s=NonTensorStack('a', 'b'), a=T([2]), batch_size=[2]); td.attrs()
td = TensorDict(s=NonTensorStack('a', 'b'), a=T([2]), batch_size=[2]); td.max()
td = TensorDict(s=NonTensorStack('a', 'b'), a=T([2]), batch_size=[2]); td.amax()
td = TensorDict(s=NonTensorStack('a', 'b'), a=T([2]), batch_size=[2]); td.amin(0)
td = TensorDict(s=NonTensorStack('a', 'b'), a=T([2]), batch_size=[2]); td.sum(reduce=True)
td = TensorDict(s=NonTensorStack('a', 'b'), a=T([2]), batch_size=[2]); td.sum(dim='feature')
td = TensorDict(s='a', a=T([]), batch_size=[]); td.set_at_('s', 'w', 0)
td = TensorDict(s='a', a=T([]), batch_size=[]); td.get('s')[0] = 'w'
NonTensorStack(1, 2).set('data', tensordict.UnbatchedTensor(T([5]))).tolist()
"""

NAMES = """
td[0].get('s').names
torch.cat([td, td]).get('s').names
(td > td).get('s').names, (td > td).get('m').names
td.empty(recurse=True).get('m').names
td.where(T([2, 3]) > 1, td.clone()).get('s').names
td.clone().get('s').names, td.transpose(0, 1).get('s').names
"""

NAMED = (
    "td = TensorDict(s=NonTensorStack(NonTensorStack('a', 'b', 'c'), "
    "NonTensorStack('d', 'e', 'f')), m='x', a=T([2, 3]), batch_size=[2, 3], "
    "names=['t', 'u'])"
)

ROWS = """
v[0, 0] = 'w'; v
v[:, 0] = 'w'; v
v[0] = NonTensorData('w', batch_size=[2]); v
v.update_at_(NonTensorData('x', batch_size=[2]), 0); v
"""

PARTS_OF_ROWS = """
v[0] = 'w'; v[:, 0] = 'u'
v[0] = NonTensorStack('w', 'w'); v[:, 0] = 'u'
v[0] = NonTensorData('w'); v.update_at_(NonTensorStack('u', 'u'), np.s_[:, 0])
"""

NOTHING_SELECTED = """
v[5:9] = 'w'
v[1:1] = NonTensorData('w')
"""

ROWED = (
    "v = torch.stack([NonTensorData('a', batch_size=[2]), "
    "NonTensorData('b', batch_size=[2])])"
)


SAME = """
v.get(('data',)), v.get('nope', 3)
v.get(1)
v.get(('data', 1))
v.get_at(None, 0, None)
v.rename_keys({None: 'z'}, strict=False)
v.separates('n')
v.where(T(v.batch_size, dtype='bool'), 0).is_locked
v.lock_().where(T(v.batch_size, dtype='bool'), 0).is_locked
v.where(torch.tensor([True, False, True]), MetaData('z', batch_size=[3]))
v.where(torch.tensor([True, False, True]), NonTensorData('z', batch_size=[3]))
v.where(torch.tensor([True, False, True]), NonTensorStack('x', 'y', 'z'))
v.new_zeros(3)
v.new_ones(2, 2)
v.new_full((3,), 1)
v.new_tensor(1.0)
v.new_tensor(NonTensorStack('x', 'y'))
v == 1j
v != np.int64(1)
v == np.array([1, 2])
with v.unsqueeze(0) as w: pass
with v.view(-1) as w: pass
v._get_sub_tensordict(0)
"""

COLUMNS = """
v.quantile(torch.tensor([0.25, 0.5]), dim=-1)
v.quantile(0.5)
v.nansum(0)
v.update_at_({'z': 1}, ())
v.update_at_(NonTensorData('w'), ()); v
v[5:9] = v[5:9].clone(); v
v[5:9] = NonTensorData('w', batch_size=[0, *v.batch_size[1:]]); v
v.clone().load_state_dict(v.state_dict())
TensorDict(s=v, batch_size=v.batch_size).tolist(as_linked_list=True)
"""

WRITTEN = """
[[1, 2], [3]]
[['a', 'b'], 'c']
[[1], 'a']
[[], []]
[None, {'k': 1}]
(1, 2)
('a', 'b')
{'k': [1, 2]}
range(2)
np.array([1, 2])
"""

FILES = """
import tempfile; d = tempfile.mkdtemp(); TensorDict(s=['a', 'b'], n={'s': ['a', 'b']}, \
batch_size=[2]).memmap(d); td = TensorDict.load_memmap(d); \
td.get('s').device, td['n'].get('s').device, td[0].get('s').device
f = lambda x: x; td = TensorDict(f=NonTensorData(f), s=NonTensorStack(f, f), a=T([2]), \
batch_size=[2]); m = td.memmap(); m['f'] is f, m.get('s')[0].data is f, m.is_memmap()
f = lambda x: x; td = TensorDict(f=NonTensorData(f), a=T([2]), batch_size=[2]); td.memmap_()['f'] is f
f = lambda x: x; td = TensorDict(f=NonTensorData(f), a=T([2]), batch_size=[2]); td.memmap_like()['f'] is f
f = lambda x: x; v = NonTensorStack(f, f).memmap(); v[0].data is f, v.is_memmap()
import tempfile; TensorDict(f=NonTensorData(lambda x: x), a=T([2]), batch_size=[2]).memmap(tempfile.mkdtemp())
import threading; v = NonTensorStack(threading.Lock(), 'a'); v.clone()[0].data is v[0].data
import threading; v = NonTensorData(threading.Lock(), batch_size=[2]).clone()
nan = float('nan'); v = NonTensorStack(nan, nan); v.data is nan
nan = float('nan'); v = MetaData(nan, batch_size=[2]); \
type(torch.stack([v, v.clone()])).__name__, type(torch.cat([v, v])).__name__
td = TensorDict(s='x'); td[0] = 'w'
td = TensorDict(s='x'); td[0, 's'] = 'w'
torch.stack([TensorDict(s=[1, 2, 3]), TensorDict(s='q')])
torch.stack([TensorDict(s=T([2]), batch_size=[2]), TensorDict(s='q', batch_size=[2])])
"""

SHARED_MAKERS = (
    "v = NonTensorData('a', batch_size=[3])",
    "v = MetaData('a', batch_size=[3])",
    "v = NonTensorStack('a', 'b', 'c')",
)

COLUMN_MAKERS = (
    "v = NonTensorStack('a', 'b', 'c')",
    "v = NonTensorStack([1], [2], [3])",
    "v = torch.stack([NonTensorStack([1], [2]), NonTensorStack([3], [4])])",
)

MORE_ENTRIES = """
NonTensorStack.from_nontensordata(NonTensorData('a', device='cpu'))
NonTensorStack.from_nontensordata(MetaData('a'))
NonTensorStack.from_nontensordata(MetaData('a', batch_size=[2])).tolist()
NonTensorStack.from_nontensordata(MetaData('a', batch_size=[2]))[0]
NonTensorStack.from_nontensordata(NonTensorStack('a', 'b'))
NonTensorStack.from_nontensordata(TensorDict({}, [2])).batch_size
NonTensorStack.from_nontensordata('a')
v = NonTensorData('a')._get_sub_tensordict(0)
td = TensorDict(s='x', a=T([2, 3]), batch_size=[2, 3], names=['t', 'u']); td == td
td = TensorDict(s='x', a=T([2, 3]), batch_size=[2, 3], names=['t', 'u']); td > td
td = TensorDict(s='x', a=T([2, 3]), batch_size=[2, 3], names=['t', 'u']); td != {'s': 'x', 'a': 1}
td = TensorDict(n={'s': 'x'}, a=T([2]), batch_size=[2], names=['t']); td == td
td = TensorDict(a=T([2, 3]), n={}, batch_size=[2, 3], names=['t', 'u']); \
td == TensorDict(a=T([2, 3]), n=T([2, 3]), batch_size=[2, 3])
td = TensorDict(a=T([3, 2]), s='x', batch_size=[3]); td[0, 's'] = 'w'
td = TensorDict(a=T([3, 2]), s='x', batch_size=[3]); td[0, 's']
td = TensorDict(a=T([3, 2]), s='x', batch_size=[3]); td['s', 0] = 1
td = TensorDict(a=T([3, 2]), s='x', batch_size=[3]); td[9, 's'] = 'w'
td = TensorDict(a=T([3]), s='x', batch_size=[3]); td[0, 's'] = 'w'
td = TensorDict(a=T([3]), s='x', batch_size=[3]); td[0, ('s',)] = 'w'
td = TensorDict(a=T([0, 2]), s='x', batch_size=[0, 2]); td[0, 's'] = 'w'
td = TensorDict(a=T([0, 2]), s='x', batch_size=[0, 2]); td[0, 's']
td = TensorDict(n={'a': T([2, 2])}, s='x', batch_size=[2]); td[0, ('n', 's')] = 'w'
td = TensorDict(a=T([2, 2]), s='x', batch_size=[]); td[0, 's'] = 'w'
torch.nn.functional.mse_loss(*[TensorDict(a=T([2]), s=['a', 'b'], t='x', n={'s': ['a', 'b']}, batch_size=[2])] * 2)
torch.nn.functional.l1_loss(*[TensorDict(s=['a', 'b'], batch_size=[2])] * 2, reduction='sum')
torch.nn.functional.mse_loss(*[TensorDict(a=T([2]), s=['a', 'b'], batch_size=[2])] * 2, reduction='none')
TensorDict(a=T([]), s='x').repeat_interleave(2)
TensorDict(a=T([]), s='x').repeat_interleave(2, 0)
torch.cat([TensorDict(a=T([2]), batch_size=[2]), TensorDict(a={}, batch_size=[2])])
torch.stack([TensorDict(a='x', batch_size=[2]), TensorDict(a=T([2]), batch_size=[2])])
TensorDict.maybe_dense_stack([TensorDict(a=T([2]), batch_size=[2]), TensorDict(a={}, batch_size=[2])])
v = torch.stack([NonTensorStack(*'abc'), NonTensorStack(*'def')]).reshape(2, 3, 1).flatten(1, 2); v.tolist()
v = torch.stack([NonTensorData('a', batch_size=[2, 3]), NonTensorData('b', batch_size=[2, 3])]); \
[x.tolist() for x in (v.reshape(2, -1), v.flatten(0, 1), v.flatten(1, 2), v.reshape(-1))]
td = TensorDict(a=T([2, 3]), n={'k': {'s': 'x'}}, batch_size=[2, 3]); td.set_at_(('n', 'k', 's'), 'w', 0); td
td = TensorDict(a=T([2, 3]), n={'k': {'s': 'x'}}, batch_size=[2, 3]); td.set_at_(('n', 'k'), {'s': 'v'}, 0); td
td = TensorDict(batch_size=[2], names=['t']); td['m'] = MetaData('x', batch_size=[2], names=['p'])
td = TensorDict(batch_size=[2]); td['m'] = MetaData('x', batch_size=[2], names=['p']); td.get('m').names, td.names
td = TensorDict(batch_size=[2], names=['t']); td['m'] = MetaData('x'); td.get('m').names, td.get('m').batch_size
TensorDict(s=['a', 'b'], a=T([2]), t='x', batch_size=[2]).new_zeros(2)
TensorDict(s=['a', 'b'], a=T([2]), t='x', batch_size=[2]).new_tensor(TensorDict(s=['c', 'd'], \
a=T([2]), t='y', batch_size=[2]))
"""


def _programs(makers: object, lines: str) -> str:
    lines = lines.strip().splitlines()
    return "\n".join(f"{SETUP}{maker}; {line}" for maker in makers for line in lines)


WITHOUT_ELEMENTS = """
x = NonTensorData('x', batch_size=[0]); torch.stack([x, x])[1]
x = NonTensorData('x', batch_size=[0]); x.unsqueeze(0)[0]
x = NonTensorData('x', batch_size=[0]); x[None][0]
x = NonTensorData('x', batch_size=[0]); torch.cat([x, NonTensorData('y', batch_size=[0])])
td = TensorDict(s='x', batch_size=[0]); torch.stack([td, td])[1].get('s')
"""

DIFFERENT_WITHOUT_ELEMENTS = """
x, y = (NonTensorData(i, batch_size=[0]) for i in 'xy'); torch.stack([x, y])[1]
"""

LOCKED = (
    "L = lambda x: [y.is_locked for y in x] if isinstance(x, (tuple, list)) else "
    "x.is_locked; E = lambda x: [y.get('s').is_locked for y in x] if isinstance(x, "
    "(tuple, list)) else x.get('s').is_locked; "
    "v = NonTensorStack(1, 2, 3).lock_(); "
    "w = torch.stack([NonTensorData('x', batch_size=[2]), "
    "NonTensorData('y', batch_size=[2])]).lock_(); "
    "td = TensorDict(s=['a', 'b', 'c'], a=torch.zeros(3), batch_size=[3]).lock_()"
)

LOCKS = """
[L(v[i]) for i in (0, slice(0, 1), slice(None), ..., (), None, (0,), (slice(1),))]
[L(v[i]) for i in ([0], torch.tensor([0]), torch.tensor(0), torch.tensor([True, False, True]))]
[L(v[i]) for i in (range(2), torch.tensor([[0]]))]
L(v.unbind(0)), L(list(v)), L(torch.cat([v, v])), L(torch.stack([v, v]))
L(torch.cat([v, v.clone()])), L(torch.stack([v.clone(), v])), L(TensorDict.stack([v, v]))
[L(w[i]) for i in (0, slice(0, 1), ..., None, (slice(1), 0), (Ellipsis, 0))]
[L(w[i]) for i in ((slice(None), [0]), ([0], 0), ([0], [0]))]
[L(x) for x in (w.unbind(0), w.split(1, 1))]
[E(td[i]) for i in (0, slice(0, 1), slice(None), ..., (), None, (0,), (slice(1),))]
[E(td[i]) for i in ([0], torch.tensor([0]), torch.tensor(0), torch.tensor([True, False, True]))]
E(td.unbind(0)), E(list(td)), E(torch.cat([td, td])), E(torch.stack([td, td])), td[:1].is_locked
E(torch.cat([td, td.clone()])), E(torch.stack([td.clone(), td]))
u = TensorDict(td, [3]); u.get('s').is_locked, u.get('s') is td.get('s'), u.is_locked
u = TensorDict(td, [3]); u['s'][0] = 'z'; u['s'], td['s']
u = TensorDict(TensorDict(s='x', device='cpu'), []); u.get('s').device
u = td.select('s').pad([0, 0]); u.get('s') is td.get('s'), u.get('s').is_locked
"""

STACKED = (
    "F = lambda dim, *size: torch.stack([NonTensorData(1, batch_size=size)] * 2, dim)"
)

STACK_DIMS = """
v = F(0, 2); v.names = ['x', 'y', 'z']; v.names
v = F(0, 2); v.names = ['x']
td = TensorDict(a=T([2, 3]), l=1j, batch_size=[2, 3], names=['t', 'u']); pad_sequence([td, td[:1]]).names
"""

WRITTEN_TO = (
    "d = NonTensorData('hi', batch_size=[2, 3]); m = MetaData('x', batch_size=[4]); "
    "w = torch.stack([NonTensorData(1, batch_size=[3]), NonTensorData(2, batch_size=[3])])"
)

SIZES = """
d[0] = NonTensorStack('hi', 'hi', 'hi'); d
w[0] = w.clone()
w[0] = NonTensorStack('a', 'b')
w[:, 0] = NonTensorStack('a', 'b', 'c')
w[0] = NonTensorData(1, batch_size=[3]); w
d.set((), 1)
d.set(1, 1)
d.set(('data',), 1); d
d.lock_().set('a', 1)
m.lock_().set('a', 1, inplace=True)
s = torch.stack([NonTensorStack([1], [2], [3]), NonTensorStack('u', 'v')]); c = s.clone(); \
c.load_state_dict(s.state_dict()); c.tolist()
"""

CASES = [
    *cases("values", _programs(SHARED_MAKERS, SAME), on="none", message=False),
    *cases("columns", _programs(COLUMN_MAKERS, COLUMNS), on="none", message=False),
    *cases(
        "written values",
        "\n".join(
            f"{SETUP}import numpy as np; v = NonTensorStack('a', 'b'); v.set('data', {each}); v"
            for each in WRITTEN.strip().splitlines()
        ),
        on="none",
        message=False,
    ),
    *cases(
        "files of values",
        _programs(("import tensordict",), FILES),
        on="none",
        message=False,
    ),
    *cases(
        "values and entries",
        _programs(("import numpy as np",), MORE_ENTRIES),
        on="none",
        message=False,
    ),
    *cases("values alone", _programs(MAKERS, PROGRAMS), on="none", message=False),
    *cases("values alone", _programs(MAKERS[:3], REDUCED), on="none", message=False),
    *cases(
        "values alone",
        _programs(MAKERS[3:], REDUCED),
        on="none",
        reason="nothing is computed of values, whatever the arguments",
        ours="isinstance(error, RuntimeError)",
    ),
    *cases(
        "values alone",
        _programs(MAKERS[:3], TAKES_PART),
        on="none",
        reason="one value takes part in what computes, as it does as an entry",
        ours="type(result) is type(v) and result.data == 'a'",
    ),
    *cases("one value", _programs(MAKERS[:2], ONE), on="none", message=False),
    *cases("stack of values", _programs(MAKERS[3:], STACK), on="none", message=False),
    *cases(
        "rows without elements",
        "\n".join(SETUP + line for line in WITHOUT_ELEMENTS.strip().splitlines()),
        on="none",
        message=False,
    ),
    *cases(
        "rows without elements",
        SETUP + DIFFERENT_WITHOUT_ELEMENTS.strip(),
        on="none",
        reason="a stack of different values that have no elements holds none of them",
        ours="result.batch_size == (0,) and result.tolist() == []",
    ),
    *cases(
        "locks of values",
        _programs((LOCKED,), LOCKS),
        on="none",
        message=False,
    ),
    *cases(
        "locks of values",
        _programs(
            (LOCKED,),
            "L(w[0, 0]), L(w[0, :1]), L(v[True]), L(v[True, :1]), L(v[None, 0]), L(w.unbind(1)[0])",
        ),
        on="none",
        reason="what writes to a locked stack is locked, and copies are not",
        ours="result == (True, True, False, False, True, True)",
    ),
    *cases(
        "stack dims of values",
        _programs((STACKED,), STACK_DIMS),
        on="none",
        message=False,
    ),
    *cases(
        "writes of values",
        _programs((WRITTEN_TO,), SIZES),
        on="none",
        message=False,
    ),
    *cases("names of values", _programs((NAMED,), NAMES), on="none"),
    *cases(
        "names of values",
        _programs((NAMED,), "td.permute(1, 0).get('s').names"),
        on="none",
        reason="a stack has the names of its collection; the release drops some of them",
        ours="result == ['u', 't']",
    ),
    *cases(
        "rows of one value",
        _programs((ROWED,), PARTS_OF_ROWS),
        on="none",
        reason="a row of one value takes several, and is a stack then; the release refuses",
        ours="v.tolist() == [['u', 'w'], ['u', 'b']]",
    ),
    *cases(
        "nothing is selected",
        _programs(("v = NonTensorStack('a', 'b')",), NOTHING_SELECTED),
        on="none",
        reason="what selects nothing writes nothing, as to a tensor; the release refuses it",
        ours="v.tolist() == ['a', 'b']",
    ),
    *cases("rows of one value", _programs((ROWED,), ROWS), on="none", message=False),
    *cases(
        "values as entries",
        _programs(("import tensordict",), ENTRIES),
        on="none",
        message=False,
    ),
]

HELPERS = (SETUP,)
"""The beginnings of programs: answers go by what follows them."""
