"""TensorDictParams: locks of the content, copies, replacement, casts."""

from frame import cases

PLAIN = "from tensordict.nn import TensorDictParams as P; p = P(td); "
LOCKED = "from tensordict.nn import TensorDictParams as P; p = P(td, lock=True); "
LOCKS = "(p.is_locked, p._param_td.is_locked, p['n'].is_locked)"


def on_nested(method: str, prefix: str, programs: str) -> list:
    """Cases on the parameters ``p`` that are made of a nested collection."""
    lines = [line.strip() for line in programs.strip().splitlines()]
    return [
        case for line in lines for case in cases(method, prefix + line, on="nested")
    ]


LOCKING = f"""
    p.lock_(); {LOCKS}
    p.lock_(); p.unlock_(); {LOCKS}
    p.lock_().unlock_(); p['z'] = 1.0; {LOCKS}
    with p.lock_(): r = {LOCKS}; r
    with p.lock_(): r = 1; {LOCKS}
    with p.unlock_(): p['z'] = 1.0; {LOCKS}
    o = TensorDict({{'p': p}}).lock_(); {LOCKS}
    o = TensorDict({{'p': p}}).lock_(); o.unlock_(); {LOCKS}
    o = TensorDict({{'p': p}}).lock_(); p.unlock_()
    td.lock_(); {LOCKS}
    td.lock_(); p.unlock_(); {LOCKS}
"""
SHAPES = """
    p.data
    p.data = p.data
    p.abs().is_locked
    p.float().is_locked
    p.detach().is_locked
    p.isnan()['n'].is_locked
    p.view(3, 2).is_locked
    p.permute(1, 0).is_locked
    p.unsqueeze(0).is_locked
    p.reshape(-1).is_locked
    p.transpose(0, 1).is_locked
    p.expand(2, 2, 3).is_locked
    p.to(torch.float64)._param_td.is_locked
    p.clone()._param_td.is_locked
"""
COPIES = """
    r = p.clone(); (r.no_convert, type(r).__name__)
    r = p.clone(False); r['z'] = torch.ones(2, 3); type(r['z']).__name__
    r = p.replace(a=torch.ones(2, 3)); (type(r).__name__, type(r['a']).__name__)
    r = p.replace({'z': torch.ones(2, 3)}); type(r['z']).__name__
    p.replace() is p
    r = p.split_keys(['a']); [type(x).__name__ for x in r]
    type(p.exclude()).__name__
    type(p.exclude('a')).__name__
    r = p.to(torch.int32); {k: (type(v).__name__, str(v.dtype)) for k, v in r.items(True, True)}
    r = p.to(torch.float64); {k: (type(v).__name__, str(v.dtype)) for k, v in r.items(True, True)}
"""
CHANGES = f"""
    p.exclude('a', inplace=True) is p; (list(p.keys()), {LOCKS})
    p.select('n', inplace=True) is p; (list(p.keys()), {LOCKS})
    p.flatten_keys('.', inplace=True) is p; (list(p.keys()), p._param_td.is_locked)
    p.rename_key_('a', 'z'); (list(p.keys()), {LOCKS})
    k, v = p.popitem(); (k, p._param_td.is_locked, getattr(v, 'is_locked', None))
    p.lock_(); p.exclude('a', inplace=True)
"""

CASES = [
    *on_nested("TensorDictParams locks", PLAIN, LOCKING),
    *on_nested("TensorDictParams locks", LOCKED, LOCKING),
    *on_nested("TensorDictParams shapes", PLAIN, SHAPES),
    *on_nested("TensorDictParams shapes", LOCKED, SHAPES),
    *on_nested("TensorDictParams copies", PLAIN, COPIES),
    *on_nested("TensorDictParams copies", LOCKED, COPIES),
    *on_nested("TensorDictParams changes", PLAIN, CHANGES),
    *on_nested("TensorDictParams changes", LOCKED, CHANGES),
]
