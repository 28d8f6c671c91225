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
v & True
v % 2
v.mod(2)
v.bitwise_and(v)
v.logical_and(v)
v.rename_keys({'n': 'z'})
v.rename_keys({'n': 'z'}, strict=False)
v.rename_keys({'n': 'data'})
list(v.non_tensor_items())
v[()]
v.numpy()
v.to('cpu', inplace=True) is v
v.maybe_to_stack()
v.lock_().maybe_to_stack().is_locked
[part.is_locked for part in v.lock_().unbind(0)]
v.attrs()
v.grad
TensorDict(v=v, batch_size=v.batch_size).grad
v.masked_fill(T(v.batch_size) > 1, 0)
v.apply(lambda x: x)
v.apply(lambda x: x, filter_empty=True)
v.named_apply(lambda k, x: x, filter_empty=True)
v.sum(reduce=True)
v.sum(dim='feature', reduce=True)
v.amax(reduce=True)
v.amax(0, False)
v.var(dtype=torch.float64)
torch.exp(v)
torch.add(v, v)
torch.where(T(v.batch_size) > 1, v, v)
torch.flatten(v)
torch.unsqueeze(v, 0)
torch.transpose(v, 0, 0)
torch.nn.functional.mse_loss(v, v)
torch.nn.functional.mse_loss(v, v, reduction='none')
v.expand_as(T([2, 2, *v.batch_size]))
v._get_sub_tensordict(())
('a', 1) in v
None in v
'a' in v
v[0] = 'w'; v
v[0] = 'a'; v
v[9] = 'w'; v
v[9] = 'a'; v
v[9] = NonTensorData('w'); v
v[9] = NonTensorData('a'); v
v[1:1] = 'w'; v
v[1:1] = TensorDict({}, [0]); v
v.names = ['x']; v
v.is_locked = True; v.is_locked
del v['k']; v
"""

ONE = """
torch.stack([v, TensorDict({}, v.batch_size)])
v[object()] = 'w'; v
v.to_namedtuple()
pad_sequence([v, v])
pad_sequence([v, v[:1]])
v.pad([0, 1])
v.pad([0, 0])
v.pad([1])
"""

STACK = """
v[1:1] = NonTensorData('w'); v
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
td.permute(1, 0).get('s').names
td.unsqueeze(0).get('s').names
td.flip(0).get('s').names
td.rot90().get('s').names
td.gather(0, torch.zeros(1, 3, dtype=torch.long)).get('s').names
td.narrow(0, 0, 1).get('s').names
td.pad([0, 0, 1, 0]).get('s').names
td[:1].get('s').names
td[0].get('s').names
td[:, 0].get('s').names
td[[0, 1]].get('s').names
td[:, [0, 1]].get('s').names
td[None].get('s').names
td[torch.tensor([0, 1])].get('s').names
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
v[0] = 'w'; v
v[0, 0] = 'w'; v
v[:, 0] = 'w'; v
v[1:] = 2.0; v
v[[1]] = NonTensorData('w'); v
v[0] = NonTensorData('w', batch_size=[2]); v
v.update_at_(NonTensorData('x', batch_size=[2]), 0); v
v.update_at_(v[:, 0], np.s_[:, 0]); v
"""

ROWED = (
    "v = torch.stack([NonTensorData('a', batch_size=[2]), "
    "NonTensorData('b', batch_size=[2])])"
)


def _programs(makers: object, lines: str) -> str:
    lines = lines.strip().splitlines()
    return "\n".join(f"{SETUP}{maker}; {line}" for maker in makers for line in lines)


CASES = [
    *cases("values alone", _programs(MAKERS, PROGRAMS), on="none", message=False),
    *cases("one value", _programs(MAKERS[:2], ONE), on="none", message=False),
    *cases("stack of values", _programs(MAKERS[3:], STACK), on="none", message=False),
    *cases("names of values", _programs((NAMED,), NAMES), on="none"),
    *cases("rows of one value", _programs((ROWED,), ROWS), on="none", message=False),
    *cases(
        "values as entries",
        _programs(("import tensordict",), ENTRIES),
        on="none",
        message=False,
    ),
]
