"""Reading and writing entries."""

from frame import EVERY, cases

NO_TRACE = "the release leaves what it wrote before the error"

CASES = [
    *cases(
        "__getitem__",
        """
        td['a']
        td['n', 'b']
        td['n', ('b',)]
        td[('a',)]
        td['nope']
        td['n', 'nope']
        td['nope', 'b']
        td['a', 'b']
        td['n', 'b', 'c']
        """,
        on=EVERY + " half_named meta nested_subclass",
    ),
    *cases(
        "get",
        """
        td.get('a')
        td.get('nope')
        td.get('nope', 5)
        td.get('nope', default=6)
        td.get(('n', 'b'))
        td.get(('n', 'nope'))
        td.get(('nope', 'b'), 7)
        td.get(('a', 'b'))
        td.get(('a', 'b'), None)
        td.get(('a', 'b', 'c'), 7)
        td.get(())
        td.get(1)
        td.get(('a', 1), 7)
        td.get(None)
        td.get('nope', 1, 2)
        td.get('a', foo=1)
        """,
    ),
    *cases(
        "__contains__",
        """
        'a' in td
        ('n', 'b') in td
        (('n',), 'b') in td
        ('a', 'b') in td
        'nope' in td
        1 in td
        () in td
        T([2]) in td
        """,
        on="flat nested empty locked sub",
    ),
    *cases("__len__", "len(td)"),
    *cases("__iter__", "list(td)"),
    *cases("is_empty", "td.is_empty()", on=EVERY + " empty_nested"),
    *cases(
        "get_at",
        """
        td.get_at('a', 0)
        td.get_at('a', [0]), td.get_at('a', [[0]]), td.get_at('a', [[0], [1]]), td.get_at('a', [[0, 1], [1, 0]])
        td.get_at(('n', 'b'), 0)
        td.get_at('n', 0)
        td.get_at('nope', 0)
        td.get_at('nope', 0, 5)
        td.get_at('nope', 0, default=5)
        td.get_at('nope', index=0)
        td.get_at('a', 9)
        td.get_at('a', (0, 1))
        td.get_at('a')
        td.get_at(1, 0)
        """,
        on="flat nested named locked sub",
    ),
    *cases(
        "get_non_tensor",
        """
        td.get_non_tensor('a')
        td.get_non_tensor('nope')
        td.get_non_tensor('nope', 5)
        td.get_non_tensor(1)
        """,
        on="flat nested sub",
        message=False,
    ),
    *cases(
        "set",
        """
        td.set('z', T([2, 3, 5]))
        td.set('a', T([2, 3, 5]))
        td.set('a', T([2]))
        td.set('n', T([2, 3]))
        td.set(('n', 'z'), T([2, 3, 4]))
        td.set('z', 1)
        td.set('z', {'q': T([2, 3])})
        td.set('z', {'q': {'r': T([2, 3])}, ('s', 't'): T([2, 3])})
        td.set('z', {})
        td.set('z', {1: T([2, 3])})
        td.set('z', TensorDict({'q': T([2, 3])}, [2, 3]))
        td.set('z', TensorDict({'q': T([2, 3])}, []))
        td.set('z', TensorDict({'q': T([2, 3, 4])}, [2, 3, 4]))
        td.set('z', TensorDict({'q': T([7])}, [7]))
        td.set('z', TensorDict({}, [7]))
        td.set('z', Sub({'q': T([2, 3])}, [2, 3]))
        td.set('z', T([2, 3]).numpy())
        td.set('z', T([2, 3]).tolist())
        td.set('z', [T([3]), T([3])])
        td.set(1, T([2, 3]))
        td.set((), T([2, 3]))
        td.set(None, T([2, 3]))
        td.set(('a', 1), T([2, 3]))
        td.set('z', td)
        """,
        on=EVERY + " half_named nested_subclass",
    ),
    *cases(
        "set",
        """
        x = T([2, 3]); td.set('z', x); td.get('z') is x
        x = TensorDict({'q': T([2, 3])}, [2, 3]); td.set('z', x); td.get('z') is x
        x = TensorDict({'q': T([2, 3])}, [2]); td.set('z', x); td.get('z') is x, x.batch_size
        x = TensorDict({'q': T([2, 3])}, [2, 3]).lock_(); td.set('z', x); x.is_locked, td.get('z').is_locked
        x = TensorDict({'q': T([2, 3])}, []).lock_(); td.set('z', x); x.is_locked, td.get('z').is_locked
        x = TensorDict({'q': T([2, 3])}, [2, 3], names=['p', 'q']); td.set('z', x)
        x = TensorDict({'q': T([2, 3])}, [2, 3], names=['x', 'y']); td.set('z', x); td.get('z') is x
        x = TensorDict({'q': T([2, 3])}, [2, 3], names=['x', None]); td.set('z', x); td.get('z') is x
        x = TensorDict({'q': T([2, 3])}, [2, 3], device='cpu'); td.set('z', x); td.get('z') is x
        x = TensorDict({'m': {'q': T([2, 3])}}, [2, 3]); m = x['m']; td.set('z', x); td['z', 'm'] is m
        p = nn.Parameter(T([2, 3])); td.set('z', p); td.get('z') is p
        """,
        on="flat named half_named cpu meta subclass",
    ),
    *cases(
        "set",
        """
        td.set('z', 2.5)
        td.set('z', True)
        td.set('z', np.float64(1.5))
        td.set('z', np.float32(1.5))
        td.set('z', np.int8(3))
        td.set('z', np.bool_(True))
        td.set('z', np.array(3))
        td.set('z', np.array([1.5, 2]))
        td.set('z', np.arange(6)[::-1])
        td.set('z', np.array([1, 2], dtype='>f4'))
        td.set('z', np.array([1 + 2j]))
        td.set('z', [1, 2])
        td.set('z', (1, 2))
        td.set('z', [1.5, 2])
        td.set('z', (1.5, 2))
        td.set('z', [True, False])
        td.set('z', [[1, 2], [3, 4]])
        td.set('z', [])
        td.set('z', ())
        td.set('z', [T([2]), T([2])])
        td.set('z', (T([2]), T([2])))
        td.set('z', [[T([2])], [T([2])]])
        td.set('z', torch.Size([2]))
        td.set('z', 2 ** 63)
        td.set('z', [2 ** 63])
        td.set('z', float('inf'))
        td.set('z', [np.float64(1.5)])
        td.set('z', collections.OrderedDict(q=T([])))
        """,
        on="scalar",
    ),
    *cases(
        "set",
        """
        td.set(('z', 'w'), T([2, 3]))
        td.set(('a', 'w'), T([2, 3]))
        td.set((('z',), 'w'), T([2, 3]))
        """,
        on="flat nested deep locked named cpu subclass half_named",
        message=False,
    ),
    *cases(
        "set",
        """
        td.set('a', T([2, 3], start=5), inplace=True)
        td.set('a', T([2, 3], 'float64'), inplace=True)
        td.set('a', T([2, 1]), inplace=True)
        td.set('a', T([2, 3, 5]), inplace=True)
        td.set('z', T([2, 3]), inplace=True)
        td.set(('n', 'z'), T([2, 3]), inplace=True)
        td.set('n', {'b': T([2, 3, 4], start=3)}, inplace=True)
        td.set('n', TensorDict({'b': T([2, 3, 4])}, [2, 3]), inplace=True)
        td.set('a', {'q': T([2, 3])}, inplace=True)
        td.set('a', 1, inplace=True)
        """,
        on="flat nested named locked sub subclass",
        message=False,
    ),
    *cases(
        "set",
        "td.set('n', T([2, 3]), inplace=True)",
        on="flat nested named locked subclass",
        message=False,
    ),
    *cases(
        "set_",
        """
        td.set_('a', T([2, 3], start=5))
        td.set_('a', T([2, 3], 'int64'))
        td.set_('a', T([2, 3, 5]))
        td.set_('a', T([5]))
        td.set_('a', T([2, 3]).numpy())
        td.set_('nope', T([2, 3]))
        td.set_(('n', 'b'), T([2, 3, 4], start=3))
        td.set_(('n', 'nope'), T([2, 3]))
        td.set_('n', {'b': T([2, 3, 4], start=3)})
        td.set_('a', {'q': T([2, 3])})
        x = td.get('a'); td.set_('a', T([2, 3], start=5)); td.get('a') is x
        """,
        on="flat nested named locked sub subclass",
        message=False,
    ),
    *cases(
        "__setitem__",
        """
        td['z'] = T([2, 3])
        td['a'] = T([2, 3])
        td['n', 'z'] = T([2, 3])
        td['n'] = {'q': T([2, 3])}
        td['a'] = T([5])
        """,
        on=EVERY + " meta",
    ),
    *cases(
        "setdefault",
        """
        td.setdefault('a', T([2, 3], start=5))
        td.setdefault('z', T([2, 3]))
        td.setdefault(('n', 'z'), T([2, 3]))
        td.setdefault('z', T([5]))
        td.setdefault('z', {'q': T([2, 3])})
        """,
        on="flat nested named locked sub subclass",
        message=False,
    ),
    *cases(
        "setdefault",
        "td.setdefault(('a', 'z'), T([2, 3]))",
        on="flat nested named locked subclass",
        message=False,
    ),
    *cases(
        "del_",
        """
        td.del_('a')
        td.del_(('n', 'b'))
        td.del_('nope')
        td.del_(('n', 'nope'))
        td.del_(1)
        """,
        on="flat nested named locked sub subclass",
        message=False,
    ),
    *cases("__delitem__", "del td['a']\ndel td['nope']", on="flat nested locked sub"),
    *cases(
        "pop",
        """
        td.pop('a')
        td.pop('n')
        td.pop(('n', 'b'))
        td.pop('nope')
        td.pop('nope', None)
        td.pop('nope', default=3)
        td.pop(('n', 'nope'))
        td.pop(('a', 'nope'))
        td.pop(('a', 'nope'), 3)
        td.pop(1)
        td.pop((), 1)
        """,
        on="flat nested named locked subclass",
    ),
    *cases("popitem", "td.popitem()", on="flat nested empty locked subclass"),
    *cases("clear", "td.clear()", on="flat nested empty named locked subclass"),
    *cases(
        "update",
        """
        td.update(None)
        td.update()
        td.update({})
        td.update({'a': T([2, 3], start=5)})
        td.update({'z': T([2, 3]), 'a': T([2, 3])})
        td.update(z=T([2, 3]))
        td.update({'z': T([2, 3])}, y=T([2, 3]))
        td.update({'n': {'z': T([2, 3])}})
        td.update({'n': {'b': T([2, 3])}, 'm': {'z': T([2, 3])}})
        td.update({('n', 'z'): T([2, 3]), ('m', 'z'): T([2, 3])})
        td.update({'a': {'z': T([2, 3])}})
        td.update(TensorDict({'z': T([7])}, [7]))
        td.update({'z': T([7])})
        td.update({'a': T([2, 3], start=5)}, inplace=True)
        td.update({'z': T([2, 3])}, inplace=True)
        td.update({'n': {'b': T([2, 3, 4], start=3)}}, inplace=True)
        td.update({'a': T([2, 3, 5])}, inplace=True)
        td.update({'n': T([2, 3])}, inplace=True)
        td.update({'a': T([2, 3]), 'z': T([2, 3])}, keys_to_update=['z'])
        td.update({'n': {'z': T([2, 3])}}, keys_to_update=['n'])
        td.update({'z': T([2, 3])}, keys_to_update='z')
        td.update({'n': {'z': T([2, 3])}}, is_leaf=lambda cls: True)
        td.update(td)
        td.update(5)
        x = T([2, 3]); td.update({'z': x}); td['z'] is x
        x = T([2, 3]); td.update({'z': x}, clone=True); td['z'] is x
        x = TensorDict({'q': T([2, 3])}, [2, 3]); td.update({'z': x}); td['z'] is x
        x = TensorDict({'q': T([2, 3])}, [2, 3]); td.update({'z': x}, clone=True); td['z'] is x
        td.update(TensorDict({'a': T([5, 2])}, [5]), keys_to_update=['nope'])
        td.update(TensorDict({'a': T([5, 2])}, [5]), keys_to_update=['a'])
        td.update(TensorDict({'a': T([5, 2])}, [5]), keys_to_update=[])
        td.update(TensorDict({'a': T([5, 2])}, [5]), keys_to_update='a')
        """,
        on="flat nested deep named locked cpu sub subclass",
        message=False,
    ),
    *cases(
        "update",
        """
        td.update(TensorDict({'a': T([7]), 'b': T([7]), 'c': T([7])}, [7]), update_batch_size=True)
        td.update(TensorDict({'a': T([7])}, [7]), update_batch_size=True)
        td.update(TensorDict({'a': T([2, 3])}, [2, 3]), update_batch_size=True)
        td.update(TensorDict({'a': T([2, 3, 4])}, [2, 3, 4]), update_batch_size=True)
        td.update(TensorDict({'a': T([2])}, [2]), update_batch_size=True)
        """,
        on="flat empty",
        message=False,
    ),
    *cases(
        "update",
        "td.update({1: T([2, 3])})\ntd.update({'n': T([2, 3])})",
        on="flat nested deep locked subclass",
    ),
    *cases(
        "update",
        "td.update({'a': T([2, 3]), 'z': T([5])})",
        on="flat nested",
        reason=NO_TRACE,
        ours="isinstance(error, RuntimeError) and 'z' not in td",
    ),
    *cases(
        "update",
        "td.update(TensorDict({'a': T([2, 3], start=5), 'n': {'z': T([2, 3])}}, [2, 3]))",
        on="flat nested named cpu subclass",
    ),
    *cases(
        "update",
        "td.update(TensorDict({'a': T([2, 3], start=5), 'n': {'z': T([2, 3])}}, [2, 3]))",
        on="deep",
        reason=NO_TRACE,
        ours="isinstance(error, RuntimeError) and td['a'].flatten()[0] == -3",
    ),
    *cases(
        "update",
        "td.update({'z': T([2, 3])}, ignore_lock=True)",
        on="locked",
        reason="the release refuses, as if ignore_lock were false",
        ours="'z' in td and td.is_locked",
    ),
    *cases(
        "set",
        "td.set(('z', 'w'), T([5]))",
        on="flat nested",
        reason="the release leaves an empty 'z' behind",
        ours="isinstance(error, RuntimeError) and 'z' not in td",
    ),
    *cases(
        "update",
        "td.update({'n': {'z': T([2, 3]), 'y': T([2, 3])}}, keys_to_update=[('n', 'z')])",
        on="nested subclass",
    ),
    *cases(
        "update",
        "td.update({'n': {'z': T([2, 3]), 'y': T([2, 3])}}, keys_to_update=[('n', 'z')])",
        on="flat",
        reason="the release stores all of a container that is new",
        ours="list(td['n'].keys()) == ['z']",
    ),
    *cases(
        "update_",
        """
        td.update_({'a': T([2, 3], start=5)})
        td.update_(a=T([2, 3], start=5))
        td.update_({'a': T([3])})
        td.update_({'a': T([2, 3, 5])})
        td.update_({'nope': T([2, 3])})
        td.update_({'n': {'b': T([2, 3, 4], start=3)}})
        td.update_({('n', 'b'): T([2, 3, 4], start=3)})
        td.update_({'n': {'nope': T([2, 3])}})
        td.update_(TensorDict({'a': T([2, 3], start=5)}, [2, 3]))
        td.update_({'a': T([2, 3], start=5)}, keys_to_update=['a'])
        td.update_({'a': T([2, 3], start=5)}, keys_to_update=['n'])
        td.update_(td)
        td.update_(None)
        x = td.get('a'); td.update_({'a': T([2, 3], start=5)}); td.get('a') is x
        """,
        on="flat nested named locked sub subclass",
        message=False,
    ),
    *cases(
        "update_",
        """
        td.update_({'a': 1})
        td.update_({'a': T([2, 3], start=5), 'nope': T([2, 3])})
        """,
        on="flat nested named locked subclass",
    ),
    *cases(
        "update_",
        """
        td.update_({'z': T([2, 3])}, keys_to_update=['z'])
        td.update_({'a': T([2, 3]), 'n': {'z': T([2, 3])}}, keys_to_update=['n'])
        td.update_({'a': T([2, 3]), 'm': {'z': 1}}, keys_to_update=['a', ('m', 'z')])
        td.update_({'a': T([2, 3]), 'm': {'z': 1}}, keys_to_update=['a', ('m', 'y')])
        td.update_({'a': T([2, 3]), 'm': {}}, keys_to_update=['a', 'm'])
        """,
        on="flat nested named locked subclass lazy",
    ),
    *cases(
        "copy_",
        """
        td.copy_(td.clone())
        td.copy_({'a': T([2, 3], start=5)})
        td.copy_(TensorDict({'nope': T([2, 3])}, [2, 3]))
        """,
        on="flat nested named locked subclass",
        message=False,
    ),
    *cases(
        "set_at_",
        """
        td.set_at_('a', T([3], start=5), 0)
        td.set_at_('a', 1, 0)
        td.set_at_('a', 2.5, slice(None))
        td.set_at_('a', [1, 2, 3], 0)
        td.set_at_('a', np.ones(3), 0)
        td.set_at_('a', T([5]), 0)
        td.set_at_('a', T([3]), 9)
        td.set_at_(('n', 'b'), T([3, 4]), 0)
        td.set_at_('nope', T([3]), 0)
        """,
        on="flat nested named locked sub",
        message=False,
    ),
    *cases(
        "update_at_",
        """
        td.update_at_({'a': T([3], start=5)}, 0)
        td.update_at_({'a': T([1, 3], start=5)}, slice(0, 1))
        td.update_at_({'a': T([2, 3], start=5)}, [0, 1])
        td.update_at_({'n': {'b': T([3, 4])}}, 0)
        td.update_at_(TensorDict({'a': T([3], start=5)}, [3]), 0)
        td.update_at_({'nope': T([3])}, 0)
        td.update_at_({'a': T([3])}, 9)
        td.update_at_({'a': T([2, 3])}, [0, 9])
        td.update_at_({'a': T([4, 3])}, [0, 9])
        td.update_at_({'a': T([4])}, (..., [0, -9]))
        td.update_at_({'a': T([3], start=5)}, 0, keys_to_update=['nope'])
        td.update_at_(td[0].clone() * 2, 1)
        """,
        on="flat nested named locked sub",
        message=False,
    ),
    *cases(
        "copy_at_",
        """
        td.copy_at_(td[0].clone() * 2, 1)
        td.copy_at_(td[:1].clone() * 2, slice(1, 2))
        td.copy_at_(td[0].clone() * 2, 1, fast=False)
        td.copy_at_({'a': T([3])}, 1)
        td.copy_at_(td.clone() * 2, [0, 1])
        """,
        on="flat nested locked",
    ),
    *cases(
        "fill_",
        """
        td.fill_('a', 1)
        td.fill_('n', 1)
        td.fill_(('n', 'b'), 1)
        td.fill_('nope', 1)
        td.fill_('a', True)
        """,
        on="flat nested named locked sub",
        message=False,
    ),
    *cases("zero_", "td.zero_()"),
    *cases(
        "_set_str",
        """
        td._set_str('z', T([2, 3]), inplace=False, validated=True)
        td._set_str('z', T([5]), inplace=False, validated=True)
        td._set_str('z', T([5]), inplace=False, validated=False)
        td._set_str('z', T([2, 3]), inplace=True, validated=False)
        td._set_str('a', T([2, 3], start=5), inplace=True, validated=True)
        td._set_str('a', T([2, 3]), inplace=False, validated=True, ignore_lock=True)
        """,
        on="flat nested locked subclass",
    ),
    *cases(
        "_get_str",
        """
        td._get_str('a', None)
        td._get_str('nope', None)
        td._get_str('nope', tensordict.base.NO_DEFAULT)
        """,
        on="flat nested sub",
    ),
]
