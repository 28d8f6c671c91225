"""Values that are no tensors: conversion, reading, writing, operations."""

from frame import cases

PLAIN = (
    "from tensordict import MetaData, NonTensorData, NonTensorStack; "
    "from tensordict import is_leaf_nontensor, is_non_tensor; "
    "td = TensorDict(s='a', t=['x', 'y'], m=MetaData('m'), u=T([2]), n={'z': 'q'}, "
    "batch_size=[2]); "
)

VALUES = """
'new'
None
['p', 'q']
['p', 1]
['p', ['q']]
['p']
[['p', 'q'], ['r', 's']]
('p', 'q')
{1, 2}
{'k': 'v'}
1j
NonTensorData('N')
NonTensorData('N', batch_size=[2])
NonTensorStack('1', '2')
MetaData('M', batch_size=[2])
[(1, 2), (3, 4)]
[{'k': 1}, {'k': 2}]
[T([2]), T([3])]
"""

WRITES = [
    "td['k'] = {}; td.get('k').tolist() if is_non_tensor(td.get('k')) else td['k']",
    "td.set_('s', {}); td.get('s').tolist()",
    "td.set_('t', {}); td.get('t').tolist()",
    "td.update_({{'t': {}}}); td.get('t').tolist()",
    "td.update({{'s': {}}}); td.get('s').batch_size",
    "td[0] = TensorDict(t={}); td.get('t').tolist()",
]

READS = """
td['s'], td['m'], td['n', 'z'], td['t'] == ['x', 'y']
td.get('s').data, td.get('s').batch_size, td.get('t').batch_size
td.get('missing') is None
td.get_non_tensor('s'), td.get_non_tensor('missing', None)
td.get_non_tensor('missing')
td.is_non_tensor('s'), td.is_non_tensor('u')
td.is_non_tensor('missing')
list(td.keys(True, True))
list(td.keys(True, True, is_leaf=is_leaf_nontensor))
[key for key, _ in td.non_tensor_items()]
list(td.filter_non_tensor_data().keys())
td.to_dict()
td.is_empty(), td.select('s').is_empty()
td.depth
td.get('t').tolist(), td.get('s').tolist(), td.get('s').to_dict()
td.get('t').data
torch.stack([td.get('s')[0], td.get('s')[1]]).data
td[0]['s'], td[1]['t'], td[:1].get('t').tolist()
td[5]
td[T([2]).long()].get('t').tolist()
td[T([2]) > 0].get('t').tolist()
td.flip(0).get('t').tolist()
td.roll(1, 0).get('t').tolist()
td.view(2, 1).get('t').tolist()
td.expand(3, 2).get('s').tolist()
td.repeat(2).get('t').tolist()
td.repeat_interleave(2).get('t').tolist()
td.split(1)[1].get('t').tolist()
td.unbind(0)[1].get('t').data
td.gather(0, torch.tensor([1, 0, 1])).get('t').tolist()
torch.stack([td, td]).get('t').tolist()
torch.stack([td, td], 1).get('t').tolist()
torch.cat([td, td]).get('t').tolist()
torch.cat([td, td]).get('s').batch_size
(td == td).get('t')
(td != td).get('s')
(td + 1).get('t').tolist()
(td * td).get('s').data
td.sum(0)
td.apply(lambda x: x + 1).get('t').tolist()
td.named_apply(lambda name, x: name, is_leaf=is_leaf_nontensor).get('t').data
td.where(torch.tensor([True, False]), td.clone().update({'s': 'b'})).get('s').tolist()
NonTensorData('a') == NonTensorData('a', batch_size=[2])
NonTensorData('a')[0]
NonTensorData('a', batch_size=[2]).maybe_to_stack().tolist()
NonTensorData('a').foo
NonTensorStack('a', 'b') == NonTensorStack('a', 'c')
NonTensorStack.from_list([['a', 'b'], ['c', 'd']]).batch_size
NonTensorStack('a', 'b', stack_dim=1)
MetaData('a').batch_size, torch.stack([MetaData('a'), MetaData('a')]).batch_size
td.contiguous().get('t').tolist()
o = set_printoptions(compact=True).__enter__(); \
r = repr(TensorDict(a='x', b=['p', 'q'], c=MetaData(1), d=len, batch_size=[2])); \
o = set_printoptions(compact=False).set(); r
td.atleast_2d().get('s').tolist()
td.expand(2).get('s').tolist()
td.auto_device_().get('s').device
td.get('s')[:] is td.get('s'), td.get('t')[...] is td.get('t')
td.state_dict()._metadata['s'], td.state_dict()._metadata['n.z']
sd = td.state_dict(); td.update({'s': 'b', 'n': {'z': 'p'}}); td.load_state_dict(sd); td['s'], td['n', 'z']
sd = NonTensorData('a').state_dict(); NonTensorData('b').load_state_dict(sd).data
NonTensorData.from_tensordict(TensorDict({}, [2]), {'data': 'x'})
td.select('s', 'u').requires_grad_().apply(lambda x: x).get('s').data
x = TensorDict(s='a', u=T([2]), batch_size=[2]).requires_grad_(); x['u'].sum().backward(); x.grad['s'], x.grad['u']
"""

NAMES = """
td.get('s').names, td.get('t').names
td.get('s').maybe_to_stack().names
td['k'] = ['p', 'q']; td.get('k').names
td['k'] = NonTensorStack('p', 'q'); td.get('k').names
td.set_non_tensor('k', ['p', 'q']); td.get('k').names
torch.stack([td, td]).get('s').names
torch.cat([td, td]).get('s').names, torch.cat([td, td]).get('t').names
td.set_at_('s', 'w', 0); td.get('s').names
td.unsqueeze(0).get('s').names, td.unsqueeze(0).get('t').names
td.expand(3, 2).get('s').names, td.expand(3, 2).get('t').names
td.names = ['x']; td.get('t').names, td.clone().get('t').names
td.rename(t='x').get('t').names
td[:1].get('t').names
"""

STACKS = """
x.unsqueeze(0)
x.unsqueeze(-1)
x.repeat(2, 2)
x.repeat_interleave(2, 1)
x.narrow(0, 0, 1)
x.split(1, 1)[0]
x.broadcast_to([2, 3])
x.permute(1, 0)
x[:, None]
x[:, :1]
x[torch.tensor([1, 0])]
"""

REARRANGED = """
x.reshape(3, 2)
x.view(2, 3, 1)
x.unflatten(0, (1, 2))
x.unflatten(0, (2, 1))
x.unflatten(1, (3, 1))
x.roll(1, 0)
x.flip(0)
x.rot90()
x.gather(0, torch.zeros(1, 3, dtype=torch.long))
"""

LAZY = """
s.get('s')[0] = 'z'; s[0]['s']
s.get('s')[0].data = 'z'; s[0]['s']
s.get('s').update_(NonTensorStack('x', 'y')); s[0]['s'], s[1]['s']
s.set_at_('s', 'q', 0); s[0]['s'], s[1]['s']
"""

CASES = [
    *(
        case
        for each in NAMES.strip().splitlines()
        for case in cases(
            "names",
            PLAIN + "td.names = None; td = TensorDict(s='a', "
            "t=['x', 'y'], batch_size=[2], names=['t']); " + each,
            on="none",
        )
    ),
    *(
        case
        for made in (
            "torch.stack([NonTensorStack('a', 'b', 'c'), NonTensorStack(1, 2, 3)])",
            "torch.stack([NonTensorStack('a', 'b') for _ in range(3)], 1)",
        )
        for listed, says in ((STACKS, "y.stack_dim, "), (REARRANGED, ""))
        for each in listed.strip().splitlines()
        for case in cases(
            "stack_dim",
            PLAIN + f"x = {made}; y = {each}; {says}y.batch_size, y.tolist()",
            on="none",
        )
    ),
    *cases(
        "stack_dim",
        PLAIN + "x = torch.stack([NonTensorStack(*'ab'), NonTensorStack(*'cd')], 1); "
        "x.reshape(4, 1).stack_dim, x.reshape(2, 1, 2).stack_dim, x.roll(1, 0).stack_dim",
        on="none",
        reason="a stack keeps its dim while the number of dims stays, and has 0 after regrouping",
        ours="result == (1, 0, 1)",
    ),
    *(
        case
        for each in LAZY.strip().splitlines()
        for case in cases(
            "lazy",
            PLAIN + "s = lazy_stack([TensorDict(s='a'), TensorDict(s='b')]); " + each,
            on="none",
        )
    ),
    *cases(
        "from_tensordict",
        PLAIN + "NonTensorData.from_tensordict(TensorDict(a=T([2])), {'data': 'x'})",
        on="none",
        message=False,
    ),
    *cases(
        "state_dict",
        PLAIN + "sd = td.state_dict(); td['t'] = ['p', 'q']; td.load_state_dict(sd); "
        "td.get('t').tolist()",
        on="none",
        reason="a state dict of the release has no stacks of values",
        ours="result == ['x', 'y']",
    ),
    *(
        case
        for each in READS.strip().splitlines()
        for case in cases("reads", PLAIN + each, on="none")
    ),
    *(
        case
        for template in WRITES
        for value in VALUES.strip().splitlines()
        if "update_" not in template or not value.startswith("(")
        for case in cases(
            "writes", PLAIN + template.format(value), on="none", message=False
        )
    ),
    *cases(
        "update_",
        PLAIN + "td.update_({'t': ('p', 'q')}); td.get('t').tolist()",
        on="none",
        reason="a tuple is one value, not a collection of its items",
        ours="result == [('p', 'q'), ('p', 'q')]",
    ),
]

HELPERS = (PLAIN,)
"""The beginnings of programs: answers go by what follows them."""
