"""TensorDictParams: locks of the content, copies, replacement, casts."""

from frame import cases, lines

PLAIN = "from tensordict.nn import TensorDictParams as P; p = P(td); "
LOCKED = "from tensordict.nn import TensorDictParams as P; p = P(td, lock=True); "
LOCKS = "(p.is_locked, p._param_td.is_locked, p['n'].is_locked)"


def on_nested(method: str, prefix: str, programs: str) -> list:
    """Cases on the parameters ``p`` that are made of a nested collection."""
    return [
        case
        for line in lines(programs)
        for case in cases(method, prefix + line, on="nested")
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
GRADIENTS = """
    sum((x**2).sum() for x in p.values(True, True)).backward();
        (p.grad, p.grad.is_locked, p['n'].grad.is_locked, type(p.grad))
    sum((x**2).sum() for x in p.values(True, True)).backward(); p.zero_grad(); p.grad
"""
HOOKS = """
    seen = []; p.register_get_post_hook(lambda p, v: seen.append(type(v).__name__));
        (p['a'], p['n'], p['n', 'b'], p.get('n'), p.get(('n', 'b')), seen)
    seen = []; p.register_get_post_hook(lambda p, v: seen.append(type(v).__name__)); (list(p.items(True, True)), seen)
    p.register_get_post_hook(lambda p, v: v * 0); (p['n', 'b'], p['n']['b'], {k: v for k, v in p.items(True, True)})
"""
AROUND = """
    r = TensorDict({'p': p}).clone(); (type(r['p']).__name__, type(r['p', 'a']).__name__, r['p', 'a'] is p['a'])
    r = TensorDict({'p': p}).clone(False); (type(r['p']).__name__, r['p', 'a'] is p['a'])
    import copy; r = copy.deepcopy(TensorDict({'p': p})); (type(r['p']).__name__, type(r['p', 'a']).__name__)
    type((TensorDict({'p': p}) + 1)['p']).__name__
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
    *on_nested("TensorDictParams gradients", PLAIN, GRADIENTS),
    *on_nested("TensorDictParams gradients", LOCKED, GRADIENTS),
    *on_nested("TensorDictParams hooks", PLAIN, HOOKS),
    *on_nested("TensorDictParams inside", PLAIN, AROUND),
    *on_nested("TensorDictParams changes", PLAIN, CHANGES),
    *on_nested("TensorDictParams changes", LOCKED, CHANGES),
    *cases(
        "params own",
        """
        x = T([3]); p = TensorDictParams(TensorDict({'a': x}, [3]), no_convert=True);
            (p.get('a') is x, isinstance(p['a'], torch.nn.Buffer))
        x = T([3]); p = TensorDictParams(TensorDict({'a': x}, [3]), no_convert='skip');
            (p.get('a') is x, isinstance(p['a'], torch.nn.Buffer))
        x = T([3]); p = TensorDictParams(TensorDict({}, [3]), no_convert='skip'); p.set('a', x);
            (p.get('a') is x, isinstance(p['a'], torch.nn.Buffer))
        x = T([3]); p = TensorDictParams(TensorDict({}, [3]), no_convert=True); p['n', 'a'] = x;
            (p['n', 'a'] is x, isinstance(p['n', 'a'], torch.nn.Buffer))
        x = T([3]); p = TensorDictParams(TensorDict({}, [3]), no_convert=True);
            p.update({'n': {'a': x}}); (p['n', 'a'] is x, isinstance(p['n', 'a'], torch.nn.Buffer))
        y = TensorDict({'a': T([3])}, [3]); p = TensorDictParams(TensorDict({}, [3]));
            p.set('n', y); (p['n'] is y, type(y['a']), type(p['n', 'a']))
        y = TensorDict({'a': T([3])}, [3]); p = TensorDictParams(TensorDict({}, [3]));
            p.update({'n': y}); (p['n'] is y, type(y['a']), type(p['n', 'a']))
        y = TensorDict({'a': T([3])}, [3]); p = TensorDictParams(TensorDict({}, [3]));
            p.update(TensorDict({'n': y}, [3])); (p['n'] is y, type(y['a']), type(p['n', 'a']))
        y = TensorDict({'a': T([3])}, [3]); p = TensorDictParams(TensorDict({'n': {}}, [3]));
            p.set(('n', 'm'), y); y['b'] = T([3]); ('b' in p['n', 'm'], type(y['a']))
        p = TensorDictParams(TensorDict({'a': T([3])}, [3])); (p[:] is p, p[...] is p, p[()] is p, type(p[0]))
        p = TensorDictParams(TensorDict({'a': T([3])}, [3]), lock=True); p.where(T([3], 'bool'), 0).is_locked
        p = TensorDictParams(TensorDict({'a': T([3])}, [3]), lock=True); p.where(T([3], 'bool'), p).is_locked
        p = TensorDictParams.from_dict({'a': T([3]), 'n': {'b': T([3], 'int64')}}, batch_size=[3]);
            (type(p), type(p['a']), p.no_convert, p.batch_size)
        p = TensorDictParams(TensorDict({'a': T([3])}, [3])).from_dict_instance({'a': T([3])});
            (type(p), type(p['a']), p.no_convert, type(p.set('b', T([3]))['b']))
        p = TensorDictParams(TensorDict({'a': T([3])}, [3]),
            no_convert=True).from_dict_instance({'a': T([3])});
            (type(p), isinstance(p['a'], torch.nn.Buffer), p.no_convert)
        p = TensorDictParams(TensorDict({'d': T([2]), 'c': T([2]), 'n': {'b': T([2]), 'a': T([2])}},
            [2])); list(p.select('c', ('n', 'a'), 'd', inplace=True).keys(True))
        p = TensorDictParams(TensorDict({'a': T([3])}, [3]), no_convert=True);
            [isinstance(x.get('a'), torch.nn.Buffer) for x in (p.data, p.clone(), p.to_tensordict(),
            p.detach(), p + 1, p.to(torch.float64), p.copy(), p.select('a'))]
        TensorDictParams(lazy_stack([TensorDict({'a': T([2])}), TensorDict({'a': T([2])})]))
        TensorDictParams(TensorDict({'l': lazy_stack([TensorDict({'a': T([2])}), TensorDict({'a': T([2])})])}))
    """,
        on="flat",
    ),
    *cases(
        "state_dict",
        """
        TensorDictParams(TensorDict(a=T([3]), n=TensorDict(b=T([2]), m=TensorDict(c=T([1]),
            s='x')))).state_dict(flatten=False)
        TensorDictParams(TensorDict(a=T([3]), n=TensorDict(b=T([2])))).state_dict(flatten=False, prefix='q.')
        TensorDictParams(TensorDict(a=T([3]), n=TensorDict(b=T([2])))).state_dict(flatten=False,
            keep_vars=True)['n']['b'].requires_grad
        TensorDictParams(TensorDict(a=T([3]), n=TensorDict(b=T([2])))).state_dict(None, 'q.', False, False)
        TensorDictParams(TensorDict(a=T([3]),
            n=TensorDict(b=T([2])))).load_state_dict({'a': T([3]) * 2, 'n': {'b': T([2]) * 3}})['n',
            'b']
        TensorDictParams(TensorDict(a=T([3]), n=TensorDict(b=T([2])))).load_state_dict({'a': T([3]),
            'n': {'c': T([2])}})
        """,
        on="none",
        message=False,
    ),
]

HELPERS = (PLAIN,)
"""The beginnings of programs: answers go by what follows them."""
