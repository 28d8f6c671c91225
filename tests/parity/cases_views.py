"""Views: cases that random comparisons found."""

from frame import cases

CASES = [
    *cases(
        "view",
        """
        c = td.copy(); c.pop('a'); list(c.keys()), list(td.keys()), list(o.keys())
        c = td.clone(False); c.set('w', T(td.shape)); c
        c = td.copy(); c.set_('a', td['a'] * 0); o
        td.rename_('x', 'y')
        td.rename_(None)
        td.rename_()
        td.where(torch.ones(td.shape, dtype=torch.bool), 0)
        torch.where(torch.ones(td.shape, dtype=torch.bool), td, td * 0)
        TensorDict(td, batch_size=td.shape)
        td.pin_memory()
        td.is_locked = False
        td.is_locked = True
        td.unflatten(0, (-1, 1))
        td.update_({'n': {'nope': T(td.shape)}})
        td.update_at_({'n': {'nope': T(td.shape)}}, 0)
    """,
        on="sub",
        message=False,
    ),
    *cases(
        "view",
        """
        v = td._get_sub_tensordict(slice(0, 1)); v.where(torch.ones(v.shape, dtype=torch.bool), 0)
        v = td._get_sub_tensordict(slice(0, 1)); v.unflatten(1, (-1, 1))
        v = td._get_sub_tensordict(slice(0, 1)); v.copy()
        v = td._get_sub_tensordict(slice(0, 1)); v.set_(('nope', 'z'), T(v.shape))
        v = td._get_sub_tensordict(slice(0, 1)); v.is_locked = True
    """,
        on="locked",
    ),
    *cases(
        "view keys",
        """
        v = td._get_sub_tensordict(slice(0, 1)); (list(v.keys()), 'a' in v, ('n', 'b') in v)
        v = td._get_sub_tensordict(slice(0, 1)); v.keys(sort=True)
        v = td._get_sub_tensordict(slice(0, 1))._get_sub_tensordict(0); (list(v.keys()), 'a' in v)
    """,
        on="flat nested",
    ),
    *cases(
        "view outside",
        """
        td._get_sub_tensordict(torch.tensor([99])).batch_size
        td._get_sub_tensordict((slice(None), torch.tensor([0, -9]))).batch_size
        td._get_sub_tensordict(0)[np.array([3])].batch_size
        td._get_sub_tensordict(torch.tensor([99]))['a']
        td._get_sub_tensordict(torch.tensor([99])).set_('a', T([1, 3]))
        td._get_sub_tensordict(torch.tensor([99])).zero_()
        td._get_sub_tensordict(torch.tensor([99])).to_tensordict()
    """,
        on="flat nested",
    ),
    *cases(
        "view copies",
        """
        v = td._get_sub_tensordict(0).select('a', 'b'); v.zero_()
        v = td._get_sub_tensordict(slice(0, 1)).exclude('c'); v.zero_()
        v = td._get_sub_tensordict(slice(0, 1)).select('a'); v.set_('a', v['a'] * 0)
    """,
        on="flat named",
    ),
    *cases(
        "mask fill",
        """
        td[[True, False]] = torch.tensor(2.5)
        td[:, [True, False, True]] = torch.tensor(2.5)
        td[0, [True, False, True]] = torch.tensor(2.5)
        td[..., np.array([True, False, True])] = torch.tensor(2.5)
        td[[[True, False, True], [True, True, True]]] = torch.tensor([2.5])
        td[0, [0, 1]] = torch.tensor(2.5)
    """,
        on="flat",
        message=False,
    ),
    *cases(
        "mask fill",
        "td[:, torch.tensor([True, False, True])] = torch.tensor(2.5, requires_grad=True)",
        on="flat",
        reason="the release has integer and bool tensors require a gradient",
        ours="error is None and [x.requires_grad for x in td.values()] == [True, False, False]",
    ),
    *cases(
        "split locked",
        """
        td.separates('nope')
        td.separates('nope', strict=False)
        td.separates('a')
        td.separates()
        td.split_keys(['a'], ['nope'], inplace=True)
        td.split_keys(['nope'], inplace=True, strict=False)
        td.split_keys(['a'], inplace=True)
        td.split_keys([], inplace=True)
        td.split_keys([('n', 'nope')], inplace=True)
    """,
        on="locked nested",
        message=False,
    ),
    *cases(
        "rename beside empty",
        """
        x = TensorDict({'n': {'m': {'c': T([2]), 'e': {}}}}, [2]); x.rename_keys({('n', 'm', 'c'): ('a', 'z')})
        x = TensorDict({'n': {'m': {'c': T([2])}, 'e': {}}}, [2]); x.rename_keys({('n', 'm', 'c'): ('a', 'z')})
        x = TensorDict({'n': {'m': {'c': T([2])}}}, [2]); x.rename_keys({('n', 'm', 'c'): 'n'})
    """,
        on="flat",
    ),
    *cases(
        "state of other sizes",
        """
        td.load_state_dict(TensorDict({key: x[0, 0].clone() for key, x in td.items()}).state_dict())
        td.load_state_dict(TensorDict({key: x[0] for key, x in td.items()}, [3]).state_dict())
        x = TensorDict({'b': T([3, 2]), 'n': {'a': T([3, 2])}}, [3, 2]); x.load_state_dict(x[0].state_dict())
        x = TensorDict({'b': T([3, 2]), 'n': {'a': T([3, 2])}}, [3, 2]);
            x.load_state_dict(x[0, 0].clone().state_dict(flatten=True), from_flatten=True)
        x = TensorDict({'b': T([3, 2]), 'n': {'a': T([3, 2])}}, [3, 2]);
            x.load_state_dict(x[0].state_dict(), assign=True)
    """,
        on="flat",
        message=False,
    ),
    *cases(
        "state of other sizes",
        """
        td.load_state_dict(TensorDict({key: x[0, 0] for key, x in td.items()}).state_dict())
        """,
        on="flat",
        reason="the release takes an element of an entry for the entry and writes nothing",
        ours="result.batch_size == () and all((x == x[0, 0]).all() for x in td.values())",
    ),
    *cases(
        "gradients apart",
        """
        x = TensorDict({'a': T([2]).requires_grad_(), 'b': T([2])}, [2]) * T([2]); [y.requires_grad for y in x.values()]
        x = TensorDict({'a': T([2]).requires_grad_(), 'b': T([2])}, [2]).div(T([2]));
            [y.requires_grad for y in x.values()]
        x = TensorDict({'a': T([2]).requires_grad_(), 'b': T([2])}, [2]) + T([2]).requires_grad_();
            [y.requires_grad for y in x.values()]
        x = TensorDict({'a': T([0, 2]).requires_grad_(), 'b': T([0])}, [0]); x.apply(lambda y: y + 1, inplace=True)
    """,
        on="flat",
    ),
    *cases(
        "other arguments",
        """
        td.update_([('a', 0)])
        td.update_(5)
        td.update_('ab')
        td.copy_(5)
        td.set_('n', {'b': 0})
        td.set_('n', {'b': [0]})
        td.rename_keys({'x': 'z', 'y': 'z'})
        td.rename_keys({'a': 'z', 'y': 'z'}, strict=False)
        td.gather(0, [0])
        td.get((('a',),))
        td.get(('a', 'z'), None)
        td.get('nope', default=T([2]))
        td.pop(('a', 'b'), 1)
        td.keys() & {'a'}
        0 in td.keys()
        () in td.keys(True)
        td.select((('n',), 'b'), strict=False)
        td.flatten_keys('')
        td.rename_key_('a', ('a', 'z'))
        td.update({'z': T([2, 3])}, keys_to_update='z')
        td.update({'z': T([2, 3])}, keys_to_update=[])
        td.sum(dim='feature')
        td.float().mean(dim='feature')
        td.sum(dim=())
        td == {}
        td == None
        td < 'a'
        td + 'a'
        td + np.ones(2)
        td @ td
        td.clamp()
        td.size(dim=5)
        td.batch_size = None
        td.names = 5
        td[0] = 'text'
        td[0] = None
        torch.stack([td, 1])
        torch.sort(td)
        td.apply(5)
        td.apply(lambda x: None, filter_empty=False)
        td.apply(lambda x: x, out=TensorDict({}, [2, 3]))
        td.to(5)
        td.to(batch_size=[2])
        pad(td, (1,))
        td.load_state_dict({})
    """,
        on="flat nested locked",
        message=False,
    ),
    *cases(
        "view in place",
        """
        v = td._get_sub_tensordict(slice(0, 1)); v.update_({'a': T(v['a'].shape, start=3)[None, None]})
        v = td._get_sub_tensordict(0); v.update_({'n': {'nope': T([3])}})
        v = td._get_sub_tensordict(0); v.update_({'n': {'nope': T([3])}, 'a': T([7, 7, 7])})
        v = td._get_sub_tensordict(0); v.update_({'n': {'b': T(v['n', 'b'].shape, 'int64', start=5)}})
        v = td._get_sub_tensordict(0); v.update_({('n', 'b'): T(v['n', 'b'].shape, 'int64', start=5)})
        v = td._get_sub_tensordict(0); v.update_({'a': T([3]), 'n': {'b': T(v['n', 'b'].shape,
            'int64')}}, keys_to_update=['n'])
        v = td._get_sub_tensordict(0); v.view(size=[-1])
        v = td._get_sub_tensordict(0); v.view(size=v.shape)
    """,
        on="nested",
        message=False,
    ),
    *cases(
        "masked_fill_ refused",
        "x = td.clone(); x.masked_fill_(torch.tensor([True, False]), math.nan)",
        on="flat",
        reason="the leaves before the one of integers are written",
        ours="isinstance(error, RuntimeError) and not any(v.isnan().any() for v in x.values())",
    ),
    *cases(
        "view pickled",
        "v = td._get_sub_tensordict(slice(0, 1)); w = pickle.loads(pickle.dumps(v)); (type(w).__name__, w.batch_size, w['a'])",
        on="flat named",
    ),
    *cases(
        "fewer dims",
        """
        td['n'].batch_size = [2]; td.unsqueeze(0)
        td['n'].batch_size = [2]; td.unsqueeze(1)
        td['n'].batch_size = [2]; td.sum(0)
        td['n'].batch_size = [2]; td.unbind(0)
        td['n'].batch_size = [2]; td.chunk(2, 0)
        td['n'].batch_size = [2]; td.flip(0)
        td['n'].batch_size = [2]; td.unflatten(0, [2, 1])
        td['n'].batch_size = []; td.unsqueeze(0)
    """,
        on="flat nested named",
        message=False,
    ),
    *cases(
        "maybe_dense_stack",
        """
        x = td.clone(); x['n', 'new'] = T([2, 3]); maybe_dense_stack([td, x])
        x = td.clone(); x['n', 'new'] = T([2, 3]); maybe_dense_stack([x, td], -1)
        x = td.clone(); x['n', 'new'] = T([2, 3]); dense_stack_tds([td, x], 1)
        x = td.clone(); x['new'] = T([2, 3]); maybe_dense_stack([td, x], 1)
        x = td.clone(); x['new'] = T([2, 3]); dense_stack_tds([td, x], 0)
        x = td.clone(); x['a'] = T([2, 3, 7]); dense_stack_tds([td, x], 0)
    """,
        on="nested subclass named locked",
        message=False,
    ),
    *cases(
        "update_at_",
        """
        td.update_at_(TensorDict({'n': {'new': T([3])}}, [3]), 0)
        td.update_at_(TensorDict({'n': {'new': {'q': T([3, 2])}}}, [3]), 1)
        td.update_at_(TensorDict({'n': {'new': T([1, 3])}}, [1, 3]), [1])
        td.update_at_({'n': {'new': T([3])}}, 0)
        td.update_at_(TensorDict({'new': T([3])}, [3]), 0)
        td.update_at_(td.clone()[0], 0, keys_to_update=['n', ('n', 'b')])
    """,
        on="nested locked",
        message=False,
    ),
    *cases(
        "update",
        """
        td.update(td.clone().zero_(), keys_to_update=['n', ('n', 'b')])
        td.update(td.clone().zero_(), keys_to_update=[('n', 'b'), 'n', 'a'])
        td.update(td.clone().zero_().to_dict(), keys_to_update=['n', ('n', 'b')])
        td.update_(td.clone().zero_(), keys_to_update=['n', ('n', 'b')])
        td.update_({'a': {}, 'n': {'b': td['n', 'b'] * 0}})
        v = td._get_sub_tensordict(0); v.update({'new': {}, 'a': T([5])})
        v = td._get_sub_tensordict(0); v[0] = np.zeros(())
        v = td._get_sub_tensordict(0); v[()] = [1, 2, 3]
    """,
        on="nested",
        message=False,
    ),
    *cases(
        "without elements",
        """
        td.set_('a', torch.zeros(0, 3, 7))
        td.set_('a', torch.zeros(0, 3, 7, dtype=torch.int64))
        td.set_(('n', 'b'), [])
        td.set('a', torch.zeros(0, 3, 5), inplace=True)
        td.update({'a': torch.zeros(0, 3, 5)}, inplace=True)
        td.update_({'a': torch.zeros(0, 3, 5)})
    """,
        on="zero",
        message=False,
    ),
    *cases(
        "number",
        """
        td[0] = math.nan
        td[:, 1] = 1e30
        td.set_at_('b', math.nan, 0)
        td[0] = 300
        td += 1.5
        td.exp_()
        td.add_(td.float())
        td.fill_('b', 1e30)
    """,
        on="flat mixed",
        message=False,
    ),
    *cases(
        "number of a view",
        "td[0] = math.nan",
        on="sub",
        reason="an entry of integers gets what the cast gives",
        ours="isinstance(error, RuntimeError) and not td['a'].isnan().any()",
    ),
    *cases(
        "mask and dtype",
        """
        m = torch.tensor([True, False]); x = td[:, :1].select('a'); x[m] = x[:1].bool(); x
        m = torch.tensor([True, False]); x = td[:, 0].select('a'); x[m] = x[:1].double(); x
        m = torch.tensor([True, False]); x = td[:, :2].select('a'); x[m] = x[:1].double(); x
        x = td.select('a'); x[[True, False]] = x[:1].double(); x
    """,
        on="flat nested",
        message=False,
    ),
    *cases(
        "locked without leaves",
        """
        x = TensorDict({}, [2], lock=True); [(x + 1).is_locked, x.abs().is_locked, (-x).is_locked,
            x.mul(x).is_locked, x.float().is_locked]
        x = TensorDict({'n': {}}, [2], lock=True); [(x + 1).is_locked, x.abs().is_locked, x.clamp(0,
            1).is_locked, x.lerp(x, 0.5).is_locked]
        x = TensorDict({'a': T([2])}, [2]).share_memory_(); y = x.memmap(tempfile.mkdtemp());
            (y.is_memmap(), y.is_shared(), x.is_shared())
        x = TensorDict({'a': T([2])}, [2]).share_memory_(); x.memmap_(tempfile.mkdtemp())
        x = TensorDict({'a': T([2])}, [2]).share_memory_(); x.memmap_like(tempfile.mkdtemp())['a']
        x = TensorDict({'a': T([1, 2])}, [1, 2]).memmap_();
            (x.squeeze().is_memmap(), x.squeeze(0).is_memmap(), x.atleast_3d().is_memmap(),
            x._get_sub_tensordict(0).saved_path)
        x = lazy_stack([TensorDict({'a': T([2])}, [2]), TensorDict({'a': T([2])}, [2])]);
            type(pad_sequence([x, x])).__name__
    """,
        on="none",
        message=False,
    ),
    *cases(
        "_get_sub_tensordict",
        """
        x = TensorDict({'a': T([3, 1], 'int64')}, [3]);
            v = x._get_sub_tensordict(torch.tensor([False, True, False]));
            v['a'] = torch.ones(1, 1, dtype=torch.float64); x
        x = TensorDict({'a': T([3, 1], 'int64')}, [3]);
            v = x._get_sub_tensordict((..., torch.tensor([False, True, False])));
            v.set('a', torch.ones(1, 1, dtype=torch.float64), inplace=True); x
        x = TensorDict({'a': T([3, 1], 'int64')}, [3]);
            v = x._get_sub_tensordict((None, torch.tensor([False, True, False])));
            v.apply_(lambda t: t + 1.0); x
        x = TensorDict({'a': T([3, 1], 'int64')}, [3]);
            v = x._get_sub_tensordict(torch.tensor([1]));
            v['a'] = torch.ones(1, 1, dtype=torch.float64); x
        x = TensorDict({'a': T([3, 1], 'int64')}, [3]);
            v = x._get_sub_tensordict(torch.tensor([True, True, False])); v['a'] = torch.ones(2, 1);
            x
    """,
        on="none",
    ),
    *cases(
        "dtype at an index",
        """
        td.set_at_('a', T([1, 3], 'int64'), [0])
        td.set_at_('a', T([2, 3], 'int64'), torch.tensor([0, 1]))
        td.set_at_('a', T([3], 'int64'), 0)
        td.set_at_('a', T([3], 'int64'), torch.tensor(0))
        td.set_at_('a', torch.tensor(2, dtype=torch.int64), torch.tensor([True, False]))
        td.set_at_('a', [[1, 2, 3]], range(1))
        td.update_at_({'a': T([1, 3]) + 1, 'b': T([1, 3, 2], 'float64')}, [0])
        td.update_at_({'a': T([1, 3]) + 1, 'b': T([1, 3, 2], 'float64')}, slice(0, 1))
        td.update_at_(td[[1]].double(), [0])
        td.update_at_(td[:1, 0].double(), (torch.tensor([True, False]), 0))
        td[[0]] = td[[1]].double()
        td[torch.tensor([True, False])] = td[:1].double()
        td[[0]] = T([1, 3], 'float64')
        td.set_at_((), 0, 0)
        td.set_at_(1, 0, 0)
        td.fill_(('a', ()), 0)
        td.fill_(None, 0)
    """,
        on="flat nested",
        message=False,
    ),
    *cases(
        "all or nothing",
        """
        x = td.select('a'); x['z'] = T([2, 3], 'int64');
            y = TensorDict({'a': T([1, 3]) + 7, 'z': T([1, 3])}, [1, 3]); x[[0]] = y
        x = td.select('a'); x['z'] = T([2, 3], 'int64'); x.update_at_({'a': T([1, 3]) + 7, 'z': T([1, 3])}, [0])
    """,
        on="flat",
        reason="the entries before the one that does not fit are written",
        ours="isinstance(error, RuntimeError) and (x['a'] == td['a']).all()",
    ),
    *cases(
        "view keys",
        """
        v = td._get_sub_tensordict(0); x = v.unflatten_keys(); x.zero_(); (type(x).__name__, x.batch_size)
        v = td._get_sub_tensordict([0]); x = v.unflatten_keys(); x.zero_(); td
        v = td._get_sub_tensordict(0); x = v.unflatten_keys(); x['z'] = T([3]); ('z' in td.keys(), x['z'])
        v = td._get_sub_tensordict(0); x = v.split_keys(['a']); x[1].zero_();
            [(type(y).__name__, list(y.keys(True))) for y in x]
        v = td._get_sub_tensordict([1]); x = v.split_keys(['a'], reproduce_struct=True);
            [(type(y).__name__, list(y.keys(True))) for y in x]
        v = td._get_sub_tensordict(0); v.split_keys(['a'], ['nope'])
        td['a.x'] = T([2, 3]); v = td._get_sub_tensordict(0); del td['a']; v.unflatten_keys(inplace=True); td
        td['q.x'] = T([2, 3]); v = td._get_sub_tensordict([0]); x = v.unflatten_keys(); x.zero_(); td
    """,
        on="flat nested",
        message=False,
    ),
    *cases(
        "copy_at_",
        """
        td.copy_at_(TensorDict({}, td.shape)[[0]], [0])
        td.copy_at_(td[[0]].clone(), [0])
        td.copy_at_(td[0].clone(), 1)
        x = td.clone().clear(); x.copy_at_(x[0], 0); x
        x = td._get_sub_tensordict(0); x.copy_at_(td[1, 0].clone(), 0); td
        Sub = type('Sub', (TensorDict,), {}); td.copy_at_(Sub({}, td.shape)[0], 0)
    """,
        on="flat nested",
        message=False,
    ),
    *cases(
        "with in place",
        """
        with td.unflatten(0, (1, 2), inplace=True) as v: v['z'] = T([1, 2, 3]); o = v.batch_size
        with td.unflatten(-1, (3, -1), inplace=True) as v: v['z'] = T([2, 3, 1])
    """,
        on="flat nested",
        message=False,
    ),
    *cases(
        "in place",
        """
        x = td.select('a'); x['z'] = T([2, 3, 2]); y = x.clone(); y['z'] = T([2, 3, 4]); x.add_(y)
        x = td.select('a'); x['z'] = T([2, 3, 2]); y = x.clone(); y['z'] = T([2, 3, 4]); x *= y
        x = td.select('a'); x['z'] = T([2, 3, 2]); y = x.clone(); y['z'] = T([2, 3, 4]); x.addcmul_(x, y)
        x = td.select('a'); x['z'] = T([2, 3, 2]); y = x.clone(); y['z'] = T([2, 3, 4]); x.lerp_(y, 0.5)
        x = td.select('a'); x['z'] = T([2, 3, 1]); y = x.clone(); y['z'] = T([2, 3, 4]); x.maximum_(y)
    """,
        on="flat",
        reason="the entries before the one that does not fit are written",
        ours="isinstance(error, RuntimeError) and (x['a'] == td['a']).all()",
    ),
    *cases(
        "in place",
        """
        x = td.select('a'); x['z'] = T([2, 3, 2]); y = x.clone(); y['z'] = T([2, 3, 1]); x.add_(y)['z']
        x = td.select('a'); x['z'] = T([2, 3, 2]); y = x.clone(); y['z'] = T([2, 3, 1]); x.addcmul_(x, y)['z']
    """,
        on="flat",
    ),
    *cases(
        "cat with fewer dims",
        """
        x = td.clone(); x['n'].batch_size = [2]; y = torch.cat([x, x], 1); y['n'].batch_size, y['n', 'b'].shape
        x = td.clone(); x['n'].batch_size = []; y = torch.cat([x, x[:, :1]], -1); y['n'].batch_size, y['n', 'b'].shape
    """,
        on="nested",
        reason="a nested collection that was given fewer dims cannot be joined along them",
        ours="y['n', 'b'].equal(torch.cat([x['n', 'b'], x['n', 'b']], 1)[:, : y.shape[1]])",
    ),
]

CASES += cases(
    "fewer dims",
    "td['n'].batch_size = [2]; td.unflatten(0, [2, 1])",
    on="named",
    reason="the release gives the name of a dim that is split to the last of the new ones",
    ours="result.names == ['x', None, 'y']",
)
