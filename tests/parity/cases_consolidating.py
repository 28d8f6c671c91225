"""Consolidated containers, in memory and in files."""

from frame import SOME, cases

NO_SUB = "flat nested deep empty scalar zero locked named cpu"
PLAIN = "flat nested deep empty scalar zero locked named cpu"

CASES = [
    *cases(
        "consolidate",
        """
        td.consolidate()
        td.consolidate(metadata=True)
        td.consolidate(num_threads=2)
        td.consolidate(return_early=True)
        td.consolidate(num_threads=2, return_early=True).result()
        td.consolidate(use_buffer=True)
        td.consolidate(share_memory=True)
        td.consolidate(device='cpu')
        td.consolidate(non_blocking=True).is_consolidated()
        td.consolidate().is_consolidated(), td.is_consolidated()
    """,
    ),
    *cases(
        "consolidate",
        """
        td.consolidate()._consolidated['metadata']
        td.consolidate()._consolidated['storage']
    """,
        on=f"{PLAIN} mixed half_named empty_nested",
    ),
    *cases(
        "consolidate",
        """
        c = td.consolidate(); c.consolidate() is c
        c = td.consolidate(); [c.unlock_().is_consolidated(), c.lock_().is_consolidated()]
        c = td.consolidate(); c.unlock_(); c['z'] = T([*td.shape, 2]); c.is_consolidated()
        c = td.consolidate(); [c.clone().is_consolidated(), c.clone(False).is_locked]
        c = td.consolidate().to('meta'); [c.is_consolidated(), c.is_locked, c.device]
        c = td.consolidate().to('cpu'); [c.is_consolidated(), c.is_locked, c.device]
        td.consolidate().to(torch.float64).is_consolidated()
        c = td.consolidate(); c.zero_(); [c.is_consolidated(), c]
        c = td.consolidate(); (c + 1).is_consolidated()
        c = td.consolidate(); c.apply(lambda x: x).is_consolidated()
        with td.consolidate() as c: pass; c.is_locked
        pickle.loads(pickle.dumps(td.consolidate()))
        pickle.loads(pickle.dumps(td.consolidate())).is_consolidated()
        copy.deepcopy(td.consolidate()).is_consolidated()
        copy.copy(td.consolidate()).is_consolidated()
    """,
        on="flat nested named locked cpu",
    ),
    *cases(
        "consolidate",
        """
        td.consolidate(inplace=True)
        td.consolidate(inplace=True) is td
        td.consolidate(inplace=True).is_consolidated()
    """,
        on=NO_SUB,
    ),
    *cases(
        "consolidate",
        """
        td.consolidate(tempfile.mkdtemp() + '/x')
        td.consolidate(tempfile.mkdtemp() + '/x', use_buffer=True)
        td.consolidate(tempfile.mkdtemp() + '/x', num_threads=2, return_early=True).result()
        p = tempfile.mkdtemp() + '/x'; td.consolidate(p); from_consolidated(p)
        p = tempfile.mkdtemp() + '/x'; td.consolidate(p); TensorDict.from_consolidated(p)
        p = tempfile.mkdtemp() + '/x'; td.consolidate(p); from_consolidated(p).is_locked
        p = tempfile.mkdtemp() + '/x'; c = td.consolidate(p); c.consolidate(p) is c
        td.consolidate(tempfile.mkdtemp() + '/x', device='meta')
        td.consolidate(tempfile.mkdtemp() + '/x', device='cpu')
    """,
        on="flat scalar empty locked cpu mixed",
    ),
    *cases(
        "consolidate",
        """
        td.consolidate()['a'].requires_grad
        td.consolidate()['n', 'b'].is_leaf
    """,
        on="grad",
    ),
    *cases(
        "consolidate",
        """
        TensorDict({'a': T([2, 3]).T}).consolidate()['a'].stride()
        TensorDict({'a': T([1]).expand(3)}).consolidate()['a'].stride()
        TensorDict({'a': nn.Parameter(T([3]))}).consolidate()['a']
        TensorDict.from_module(nn.Linear(2, 2)).consolidate().keys()
        x = T([3]); TensorDict({'a': x, 'b': x}).consolidate()._consolidated['metadata']
        TensorDict({'a': T([3])}).consolidate(device='meta')['a']
        TensorDict({'a': torch.nested.nested_tensor([T([2]), T([3])])}).consolidate()
        type(TensorDictParams(TensorDict({'a': T([2])})).consolidate())
    """,
        on="none",
    ),
    *cases(
        "consolidate",
        "c = td.consolidate(); c.consolidate(tempfile.mkdtemp() + '/x') is c",
        on="flat",
        reason="the release returns it as it is and writes no file",
        ours="result is False",
    ),
    *cases(
        "consolidate",
        "td.consolidate(tempfile.mkdtemp() + '/x', inplace=True); td.device",
        on="flat scalar empty mixed",
    ),
    *cases(
        "consolidate",
        "td.consolidate(tempfile.mkdtemp() + '/x', inplace=True)",
        on="cpu",
        reason="the release raises a TypeError that speaks of a device of None",
        ours="result is td and td.is_consolidated()",
    ),
    *cases("from_consolidated", "from_consolidated('/nowhere/at/all')", on="none"),
    *cases(
        "is_consolidated",
        "td.is_consolidated()",
        on=f"{SOME} meta grad",
    ),
]
