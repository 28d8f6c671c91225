"""Programs of the hunt: every public operation, with every parameter.

The programs are those of ``tests/parity/parameters.txt``, which has each parameter of each
public method, and the further ones below. A program is text over ``td``, a container, and
the names of the prelude of ``tests/parity/frame.py``; ``F`` is a callback of the hunt, and
``D`` a folder that is there.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import torch

PARITY = Path(__file__).parents[1] / "parity"
sys.path.insert(0, str(PARITY))

from frame import FIXTURES, PRELUDE  # noqa: E402 - a folder of its own

FURTHER = """
F(td)
td.apply(F)
td.apply(F, td.clone())
td.apply(F, inplace=True)
td.apply(F, batch_size=[2])
td.apply(F, is_leaf=F)
td.apply(F, call_on_nested=True)
td.apply(F, filter_empty=True)
td.apply(F, out=td.clone())
td.apply_(F)
td.fast_apply(F) if hasattr(td, 'fast_apply') else None
td.named_apply(F2)
td.named_apply(F2, nested_keys=True)
td.named_apply(F2, td.clone(), inplace=True)
list(td.keys())
list(td.keys(True))
list(td.keys(True, True))
list(td.keys(True, True, is_leaf=F))
list(td.keys(True, is_leaf=F, sort=True))
list(td.values(True, True, is_leaf=F))
list(td.values())
list(td.items())
list(td.items(True, True))
list(td.items(True, is_leaf=F))
[F(k) for k in td.keys()]
[F(v) for v in td.values(True)]
[F(i) for i in td.items(True, True)]
[F(i) for i in td]
for k in td.keys(True): td.pop(k)
for k, v in td.items(): td[k] = v + 1
for v in td.values(True, True): F(v)
list(reversed(td))
sorted(td.keys(True, True), key=F)
'a' in td
('n', 'b') in td.keys(True)
'zz' in td.keys()
td == td
td != td.clone()
td == F
td + td
td - td.clone()
td * 2
td / td
td @ td
-td
~td
td ** 2
td // td
td % 2
td < td
td & td
td += td
del td['a']
del td['n', 'b']
td['x'] = T([2, 3])
td['n', 'x'] = T([2, 3])
td['n', 'm', 'x'] = 'text'
td[0]
td[..., 0]
td[T([2]) > 0]
td[:, None]
td[[0, 1]] = td[[0, 1]].clone()
td[0] = td[1]
td[T([2, 3], 'bool')] = 0
td['a'][0] = 7
td.is_shared()
td.is_memmap()
td.is_consolidated()
td.expand(4, 2, 3)
td.expand_as(td)
td.repeat(2, 1)
td.reshape(-1)
td.reshape(3, 2)
td.new_empty(2)
td.backward()
td.sum().backward()
td.requires_grad_().sum().backward()
td.grad
td.zero_grad()
td.cosh_()
td.acos_()
td.exp_()
td.frac_()
td.log10_()
td.sin_()
td.gather(0, T([1, 3], 'int64') * 0)
td.scatter(0, T([1, 3], 'int64') * 0, td)
td.data_ptr()
td.data_ptr(storage=True)
td.from_module(nn.Linear(2, 2))
td.from_modules(nn.Linear(2, 2), nn.Linear(2, 2))
TensorDict.from_module(nn.Linear(2, 2)).to_module(nn.Linear(2, 2))
TensorDict.from_module(nn.Linear(2, 2)).data.to_module(nn.Linear(2, 2), inplace=True)
td.to_module(nn.Linear(2, 2))
td.state_dict()
td.state_dict(flatten=True)
td.load_state_dict(td.state_dict())
td.load_state_dict(td.state_dict(), assign=True)
td.tolist()
td.tolist(convert_tensors=True)
td.to_pytree()
td.to_lazystack(0)
td.to_struct_array()
td.to_namedtuple()
td.refine_names('q', None)
td.pin_memory()
td.get_nestedtensor('a')
td.share_memory_()
td.consolidate()
td.consolidate(metadata=True)
td.consolidate(D + '/c', num_threads=2)
td.memmap(D)
td.memmap(D, copy_existing=True, num_threads=2)
td.memmap(D, return_early=True, num_threads=1).result()
td.memmap_(D)
td.memmap_like(D)
td.memmap(D).memmap_refresh_()
td.save(D)
td.dumps(D)
TensorDict.load(td.memmap(D)) if False else (td.memmap(D), TensorDict.load(D))
(td.memmap(D), TensorDict.load_memmap(D), td.load_memmap_(D))
td.make_memmap('mm', (2, 3), dtype=torch.float32)
td.make_memmap_from_tensor('mm', T([2, 3]))
td.memmap(D).make_memmap('mm', (2, 3), dtype=torch.float32)
td.saved_path
td.valid_keys
pickle.loads(pickle.dumps(td))
copy.deepcopy(td)
copy.copy(td)
str(td)
repr(td)
hash(td)
bool(td)
len(td)
dir(td)
vars(td)
td.__class__(td)
TensorDict(td, td.batch_size)
TensorDict(dict(td.items()), td.batch_size)
TensorDict({'a': td, 'b': {'c': td}}, td.batch_size)
TensorDict({'a': td}, [2], names=['x'], device='cpu', lock=True)
TensorDict(a=td, b=F)
TensorDict.from_dict({'a': td, 'b': [td, td]})
td.set('x', td)
td.set('x', {'y': T([2, 3])}, inplace=False)
td.set(('n', 'x'), td.clone())
td.set_('a', td['a'])
td.set_at_('a', T([3]), 0)
td.update({'a': T([2, 3]), 'n': {'b': T([2, 3])}})
td.update(td)
td.update_(td)
td.update(td.clone(), keys_to_update=['a'])
td.update({'a': F, 'x': td})
td.replace(td)
td.replace({'a': T([2, 3])})
td.pop('n')
td.popitem()
td.clear()
td.rename_key_('a', 'zz')
td.rename_key_('a', ('n', 'a'))
td.rename(x='y')
td.names
setattr(td, 'names', ['x', 'y'])
setattr(td, 'batch_size', [2])
setattr(td, 'batch_size', [1])
td.batch_size
td.shape
td.device
td.auto_batch_size_()
td.lock_().unlock_()
with td.unlock_(): td['q'] = T([2, 3])
with td.view(-1) as x: x['q'] = T([6])
with td.flatten_keys('.') as x: x['q'] = T([2, 3])
with td.transpose(0, 1) as x: x['a'] = x['a'] + 1
with td.permute(1, 0) as x: x.clear()
with td.unsqueeze(0) as x: F(x)
with td.lock_(): F(td)
td._get_sub_tensordict(0)
td._get_sub_tensordict(slice(0, 1)).set('a', T([1, 3]))
td._get_sub_tensordict(T([2], 'bool')).update_(td[T([2], 'bool')])
lazy_stack([td, td])
lazy_stack([td, td.clone()], 1)['a']
lazy_stack([td, td.clone()]).unbind(0)
lazy_stack([td, td.clone()]) + lazy_stack([td, td])
lazy_stack([td, td.clone()]).apply(F)
lazy_stack([td, td.clone()])[0, 0]
lazy_stack([td, td.clone()]).update(lazy_stack([td, td]))
lazy_stack([td]).append(td)
lazy_stack([td]).insert(0, td)
lazy_stack([td]).extend([td, td])
torch.stack([td, td])
torch.stack([td, td.clone()], 1)
torch.stack([td, td.clone()], out=torch.stack([td, td]))
torch.cat([td, td.clone()])
torch.cat([td, td], out=torch.cat([td, td]))
torch.unbind(td)
torch.split(td, 1)
torch.clone(td)
torch.exp(td)
torch.add(td, td)
torch.where(T([2, 3], 'bool'), td, td)
torch.zeros_like(td)
torch.full_like(td, 2)
torch.gather(td, 0, T([1, 3], 'int64') * 0)
torch.squeeze(td)
torch.permute(td, (1, 0))
torch.vmap(lambda t: t + 1)(td)
torch.vmap(lambda t: F(t) or t)(td)
torch.utils._pytree.tree_map(lambda v: v, td)
TensorDictParams(td)
TensorDictParams(td).apply(F)
TensorDictParams(td).clone()
TensorDictParams(td.data).state_dict()
list(TensorDictParams(td).parameters())
NonTensorData(td)
NonTensorData(F, batch_size=[2])
NonTensorStack(F, td)
NonTensorData('x', [2, 3]).tolist()
tensordict.nn.TensorDictModule(lambda a: a + 1, ['a'], ['a'])(td)
tensordict.nn.TensorDictModule(F, ['a'], ['x'])(td)
tensordict.nn.TensorDictModule(F, ['a', ('n', 'b')], [('n', 'x')])(td)
tensordict.nn.TensorDictSequential(tensordict.nn.TensorDictModule(F, ['a'], ['x']), tensordict.nn.TensorDictModule(F, ['x'], ['a']))(td)
td.reduce(F) if False else td.sum(reduce=True)
td.map(F, num_workers=0, chunksize=1) if False else None
td.map_iter(F, num_workers=0, chunksize=1) if False else None
td.register_module('mod', nn.Linear(1, 1)) if hasattr(td, 'register_module') else None
td.to_tensordict()
td.to_dict()
td.to(torch.float64)
td.to('meta')
td.to('cpu', non_blocking=True)
td.cuda() if torch.cuda.is_available() else None
td.clone(False)
td.clone(True)
td.copy()
td.detach()
td.detach_()
td.data
td.float().half().bfloat16()
td.flatten_keys().unflatten_keys()
td.flatten_keys('.', is_leaf=F)
td.flatten_keys('.', inplace=True)
td.select('a', ('n', 'b'), inplace=True)
td.exclude('a', ('n', 'b'))
td.split_keys(['a'], [('n', 'b')])
td.filter_non_tensor_data()
td.filter_empty_()
td.nested_keys() if hasattr(td, 'nested_keys') else None
td.non_tensor_items(include_nested=True)
td.unbind(-1)
td.split([1, 1])
td.chunk(2, -1)
td.masked_fill(T([2, 3], 'bool'), 0)
td.numel()
td.bytes()
td.dtype
td.depth
td.is_empty()
td.is_locked
td.all()
td.any()
td.norm()
td.separates('a')
td.cat_tensors('a', 'd', out_key='q')
td.stack_tensors('a', 'd', out_key='q')
td.create_nested('q')
td.fill_('a', 0)
td.zero_()
td.empty(True)
td.entry_class('a')
td.assert_close(td)
td.clamp(0, 1)
td.lerp(td, 0.5)
td.addcmul(td, td)
td.softmax(0)
td.logsumexp(0)
td.quantile(0.5, 0)
td.get('a', F)
td.get(('n', 'zz'), default=None)
td.get_at('a', 0)
td.setdefault('zz', T([2, 3]))
td.a
td.n
td.n.b
setattr(td, 'a', T([2, 3]))
setattr(td, 'zz', F)
getattr(td, 'zz', None)
delattr(td, 'a')
td.get_non_tensor('s')
td.set_non_tensor(('n', 's'), F)
td.consolidate().clone()
td.consolidate().to('cpu')
td.gather_and_stack(0) if False else None
td.is_non_tensor()
td.from_tensordict(td) if hasattr(td, 'from_tensordict') else None
td.maybe_to_stack() if hasattr(td, 'maybe_to_stack') else None
td.tensordicts if hasattr(td, 'tensordicts') else None
td.append(td[0]) if hasattr(td, 'append') else None
td.insert(0, td[0]) if hasattr(td, 'insert') else None
td.extend([td[0]]) if hasattr(td, 'extend') else None
td.stack_from_tensordict(dim=0)
td.cat_from_tensordict(dim=0)
td.pack() if hasattr(td, 'pack') else None
td.fields() if hasattr(td, 'fields') else None
td.dumps(D, robust_key=False)
"""

KINDS = """
flat nested deep empty_nested scalar locked named subclass sub picked lazy lazy_last
lazy_hetero lazy_text lazy_tc tc tc_nested tc_text tc_in typed unbatched grad lazy_view
lazy_permuted uneven lazy_deep cpu c_shadow c_values params nontensor
""".split()
"""The containers that programs are tried on, by their names in ``frame.FIXTURES``."""

MADE = {
    **{name: FIXTURES[name] for name in KINDS if name in FIXTURES},
    "params": "td = TensorDictParams(TensorDict({'a': T([2, 3]), 'n': {'b': T([2, 3])}}, [2, 3]))",
    "nontensor": (
        "td = TensorDict({'a': T([2, 3]), 's': 'text', 't': NonTensorStack('x', 'y'), "
        "'n': {'o': object(), 'b': T([2, 3])}}, [2])"
    ),
}

SLOW = re.compile(
    r"compile|num_workers|share_memory|gather_and|recv|send|isend|pin_memory"
)


def names() -> dict[str, Any]:
    """The names that programs and containers use."""
    space: dict[str, Any] = {"__name__": "hunt"}
    sys.modules.setdefault("hunt", sys.modules[__name__])
    exec(PRELUDE, space)
    return space


def programs() -> dict[str, CodeType]:
    """The programs, ready to run, by their texts."""
    texts = [line.strip() for line in FURTHER.strip().splitlines()]
    table = (PARITY / "parameters.txt").read_text(encoding="utf-8")
    texts += [line.split(" | ")[2].strip() for line in table.splitlines() if line]
    return {
        text: compile(text, "<program>", "exec")
        for text in dict.fromkeys(texts)
        if not SLOW.search(text)
    }


def containers() -> dict[str, CodeType]:
    """Return a function that makes a container, for each kind."""
    return {name: compile(MADE[name], "<container>", "exec") for name in KINDS}


def untried() -> set[str]:
    """The public methods of collections that no program names."""
    from tensordict import (
        LazyStackedTensorDict,
        NonTensorStack,
        TensorClass,
        TensorDict,
    )

    text = "\n".join(programs())
    classes = (TensorDict, LazyStackedTensorDict, TensorClass, NonTensorStack)
    public = {
        name
        for cls in classes
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }
    named = set(re.findall(r"\w+", text))
    return public - named - set(dir(torch.nn.Module))
