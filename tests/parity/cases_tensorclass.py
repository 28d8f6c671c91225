"""Tensorclasses and typed dictionaries: declaring, making, fields, operations."""

from frame import cases, differing

ALL = "tc tc_nested tc_locked tc_named tc_in typed"
"""Containers that are typed or hold something typed, all of tensors."""

FORMS = "tc tc_nested tc_locked tc_named"

CASES = [
    *cases(
        "tensorclass",
        """
        Data(T([2, 3]), batch_size=[2])
        Data(a=T([2, 3]), b=T([2]), batch_size=[2], device='cpu')
        Data(T([2, 3]), batch_size=[2], names=['t'])
        Data(T([2, 3]))
        Data(T([2, 3]), batch_size=2)
        Data(T([2, 3]), batch_size=torch.Size([2]))
        Data()
        Data(T([2, 3]), T([3]), batch_size=[2])
        Data(T([2, 3]), q=1)
        Data(T([2]), T([2]), None, 4)
        Data(3)
        Data(2.5).a
        Data([1, 2]).a
        Data(np.ones(3)).a
        Data(T([2]), n=TensorDict(z=T([2])), batch_size=[2]).n
        Data(T([2]), TensorDict(z=T([2])), batch_size=[2]).b
        Point(T([2]), 'x', batch_size=[2]).s
        Point(T([2]), k=3, batch_size=[2]).k
        Point(T([2]), k=3).k
        Point(T([2]), k=2.5, batch_size=[2])
        Point(T([2]), ('x', 1), batch_size=[2]).s
        Point(T([2]), {'x': 1}, batch_size=[2]).s
        is_tensorclass(Data), is_tensorclass(Point(T([2]))), is_tensorclass(TensorDict)
        is_tensor_collection(Point(T([2]))), isinstance(Point(T([2])), TensorDictBase)
        isinstance(Data(T([2])), TensorCollection), isinstance(Data(T([2])), TensorClass)
        [field.name for field in dataclasses.fields(Data)]
        [field.name for field in Data.fields()]
        dataclasses.is_dataclass(Point), dataclasses.is_dataclass(Point(T([2])))
        Data.__doc__, Point.__doc__, Point.__name__
        sorted(Data.__expected_keys__)
        sorted(vars(Data(T([2]))))
        Data(T([2])).double
        Point(T([2]), 'x').shifted(1).a
        hash(Data(T([2])))
        bool(Data(T([2])))
        len(Data(T([2, 3]), batch_size=[2]))
        Point(T([2]), 'x').nope
        Data.nope
        hasattr(Data(T([2])), 'nope'), getattr(Data(T([2])), 'nope', 3)
        p=Point(T([2]), 'x'); p.__getattr__('a'), p.__getattr__('s'), Point.__getattr__(p, 'batch_size')
        Data.__getattr__(Data(T([2])), 'nope')
        [p.a.shape for p in Data(T([2, 3]), batch_size=[2])]
        """,
        on="none",
    ),
    *cases(
        "tensorclass options",
        """
        TensorClass['nocast', 'autocast']
        TensorClass['unknown']
        TensorClass()
        tensorclass(tensor_only=True)(type('X', (), {'__annotations__': {'a': str}}))
        tensorclass(autocast=True, nocast=True)(type('X', (), {'__annotations__': {'a': str}}))
        tensorclass(tensor_only=True, nocast=True)(type('X', (), {'__annotations__': {'a': Tensor}}))
        tensorclass(nocast=True)(type('X', (), {'__annotations__': {'a': int}}))(3).a
        tensorclass(nocast=True)(type('X', (), {'__annotations__': {'a': Tensor}}))(np.ones(2)).a
        tensorclass(autocast=True)(type('X', (), {'__annotations__': {'a': int}}))(2.5).a
        tensorclass(autocast=True)(type('X', (), {'__annotations__': {'a': str}}))(2.5).a
        tensorclass(autocast=True)(type('X', (), {'__annotations__': {'a': Tensor}}))([1, 2]).a
        tensorclass(autocast=True)(type('X', (), {'__annotations__': {'a': list}}))((1, 2)).a
        tensorclass(autocast=True)(type('X', (), {'__annotations__': {'a': int}}))('x')
        tensorclass(autocast=True)(type('X', (), {'__annotations__': {'a': Tensor}}))([1, 'x'])
        tensorclass(frozen=True)(type('X', (), {'__annotations__': {'a': Tensor}}))(T([2])).is_locked
        setattr(tensorclass(frozen=True)(type('X', (), {'__annotations__': {'a': Tensor}}))(T([2])), 'a', T([2]))
        tensorclass(type('X', (), {'__annotations__': {'keys': Tensor}}))
        tensorclass(type('X', (), {'__annotations__': {'batch_size': Tensor}}))
        tensorclass(type('X', (), {'__annotations__': {'_tensordict': Tensor}}))
        tensorclass(shadow=True)(type('X', (), {'__annotations__': {'keys': Tensor}}))(T([2])).keys
        tensorclass(type('X', (), {'__annotations__': {'data': Tensor, 'T': Tensor}}))(T([2]), T([3])).T
        tensorclass(type('X', (), {'__annotations__': {'a': 'Tensor'}}))(T([2])).a
        tensorclass(type('X', (), {'__annotations__': {'a': 'Unknown'}}))(T([2])).a
        tensorclass(kw_only=True)(type('X', (), {'__annotations__': {'a': Tensor}}))(T([2]))
        tensorclass(kw_only=True)(type('X', (), {'__annotations__': {'a': Tensor}}))(a=T([2])).a
        """,
        on="none",
    ),
    *cases(
        "fields",
        """
        td.a
        td.b
        td.n
        td.zz
        td.a = T([2, 3], start=1)
        td.b = T([2])
        td.b = None
        td.b = 3
        td.zz = 1
        td.a = TensorDict(q=T([2, 3]), batch_size=[2, 3])
        td['a']
        td['a'] = T([2, 3])
        td['n', 'z']
        td.get('a')
        td.get('b')
        td.get('b', 4)
        td.get('zz')
        td.get('zz', 4)
        td.get(('n', 'z'))
        td.get(('n', 'zz'), 5)
        td.set('a', T([2, 3], start=2))
        td.set('zz', T([2, 3]))
        td.set_('a', T([2, 3], start=2))
        td.set_('zz', T([2, 3]))
        td.update({'a': T([2, 3], start=3)})
        td.update_({'a': T([2, 3], start=3)})
        td.del_('a')
        td.del_('n')
        td.pop('a')
        'a' in td
        'a' in td.keys()
        list(td.keys())
        list(td.keys(True, True))
        """,
        on=FORMS,
    ),
    *cases(
        "indexing",
        """
        td[0]
        td[0, 1]
        td[:, 1]
        td[..., 0]
        td[None]
        td[T([2], 'bool')]
        td[torch.tensor([1, 0])]
        td[[0, 1]]
        td[5]
        td[0] = td[1]
        td[0] = td[1].to_tensordict()
        td[0] = 0
        td[0] = 2.5
        td[:, 0] = torch.tensor(4)
        td[0] = 'x'
        td[0] = {'a': 1}
        td[0] = Inner(T([3]), batch_size=[3])
        """,
        on=FORMS,
    ),
    *cases(
        "shapes",
        """
        td.view(-1)
        td.reshape(3, 2)
        td.permute(1, 0)
        td.transpose(0, 1)
        td.unsqueeze(0)
        td.unsqueeze(0).squeeze(0)
        td.expand(4, 2, 3)
        td.flatten()
        td.unbind(0)
        td.split(1)
        td.chunk(2, 1)
        td.batch_size = [2]
        td.names = ['p', 'q']
        td.repeat(2, 1)
        td.gather(0, torch.tensor([[0, 1, 0]]))
        """,
        on=ALL,
    ),
    *cases(
        "operations",
        """
        td.clone()
        td.clone(False)
        copy.copy(td)
        copy.deepcopy(td)
        td.empty()
        td.select('a')
        td.select('zz', strict=False)
        td.exclude('a')
        td.to(torch.float64)
        td.to('cpu')
        td.apply(lambda x: x + 1)
        td.named_apply(lambda k, x: x + 1)
        td.apply(lambda x: None)
        td.apply(lambda x: x[0], batch_size=[3])
        td + 1
        1 - td
        td + td
        td == td
        td == td.to_tensordict()
        td != 0
        (td == td).all()
        (td == td).any(0)
        -td
        td.abs()
        td.zero_()
        td.mean(dim=1)
        td.lock_()
        td.unlock_()
        td.lock_().is_locked
        td.to_tensordict()
        td.to_dict()
        td.numpy()
        td.is_empty()
        td.numel(), td.ndim, td.shape, td.device
        td.replace({'a': T([2, 3], start=4)})
        td.masked_fill(T([2, 3], 'bool'), 5)
        td.where(T([2, 3], 'bool'), td + 1)
        td.detach()
        td.contiguous()
        pickle.loads(pickle.dumps(td))
        """,
        on=ALL,
    ),
    *cases(
        "torch functions",
        """
        torch.stack([td, td])
        torch.stack([td, td], 1)
        torch.cat([td, td])
        torch.cat([td, td], 1)
        torch.unbind(td, 0)
        torch.clone(td)
        torch.zeros_like(td)
        torch.ones_like(td)
        torch.permute(td, (1, 0))
        lazy_stack([td, td])
        lazy_stack([td, td])[0]
        torch.utils._pytree.tree_map(lambda x: x + 1, td)
        """,
        on=ALL,
    ),
    *cases(
        "factories",
        """
        Data.from_tensordict(TensorDict(a=T([2]), batch_size=[2]))
        Data.from_tensordict(TensorDict(a=T([2]), n=TensorDict(z=T([2])))).n
        Data.from_dict({'a': T([2])})
        Data.from_dict({'a': T([2])}, auto_batch_size=True)
        Data.from_dict({'a': T([2]), 'n': {'z': T([2])}}).n
        Data.from_dict({'a': T([2]), 'b': None})
        Data.fromkeys(['a', 'b'])
        Data.from_dataclass(Plain(T([2]), T([3])))
        from_dataclass(Plain(T([2]), T([3]))).b
        from_dataclass(Plain).__name__
        from_dataclass(3)
        TensorDict.from_dataclass(Plain(T([2]), T([3])), as_tensorclass=True).a
        Data.stack([Data(T([2])), Data(T([2]))])
        Data.cat([Data(T([2]), batch_size=[2]), Data(T([2]), batch_size=[2])])
        TensorDict(a=T([2]), n={'b': T([3])}).attrs()['n', 'b'].tgt_shape
        TensorAttrs.from_tensor(T([2])).tgt_dtype
        """,
        on="none",
        ordered=False,
    ),
    *cases(
        "TypedTensorDict",
        """
        Typed(a=T([2]), batch_size=[2])
        Typed(batch_size=[2])
        Typed(a=T([2]), q=T([2]))
        Typed({'a': T([2])}, batch_size=[2])
        Typed(a=T([2])).b
        Typed(a=T([2])).a
        Typed(a=T([3]), batch_size=[2])
        Typed.from_tensordict(TensorDict(a=T([2])))
        Typed.from_tensordict(TensorDict(q=T([2])))
        Typed.from_tensordict(TensorDict(q=T([2])), check=False)
        sorted(Typed.__required_keys__), sorted(Typed.__optional_keys__)
        TypedTensorDict['unknown']
        """,
        on="none",
    ),
    # A list that is written to a stack has an item for each member.
    *cases(
        "set",
        """
        td=lazy_stack([Data(T([2]), batch_size=[2])] * 2); td.set('a', [[1, 2], [3, 4]]); td
        td=lazy_stack([Data(T([])), Data(T([]))]); td.a = [1, 2]; td.a
        td=lazy_stack([TensorDict(a=T([])), TensorDict(a=T([]))]); td['s'] = ['x', 'y']; td['s']
        x=lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]); x['b'] = [T([3]), T([2])]; x[0]['b'], x[1]['b']
        """,
        on="none",
    ),
    *cases(
        "set",
        """
        td=lazy_stack([TensorDict(a=T([2]), batch_size=[2])] * 2); td['s'] = ['x', 'y', 'z']
        td=lazy_stack([TensorDict(a=T([2]), batch_size=[2])] * 2); td['s'] = ['x']
        """,
        on="none",
        reason="the release fills the first members, or all, before it notices",
        ours="isinstance(error, ValueError) and 's' not in td[0]",
    ),
    *cases(
        "data_ptr",
        """
        list(Point(T([2]), 'x', batch_size=[2]).data_ptr().keys())
        list(TensorDict(a=T([2]), s='x', n={'q': T([2]), 'z': 'y'}).data_ptr().keys(True, True))
        list(lazy_stack([TensorDict(a=T([2]), s='x')] * 2).data_ptr().keys(True, True))
        list(lazy_stack([Data(T([2]))] * 2).data_ptr(storage=True).keys(True))
        """,
        on="none",
    ),
    *cases(
        "from_dict_instance",
        """
        Point(T([2]), 'x', batch_size=[2]).from_dict_instance({'a': T([3])})
        Point(T([2]), 'x', 4).from_dict_instance({'a': T([3]), 's': 'y'}).s
        Data(T([2])).from_dict_instance({'a': T([3])}).b
        """,
        on="none",
    ),
    *cases(
        "setitem",
        """
        x=TensorDict(s='x', a=T([3])); x[...] = 0; x['s'], x['a']
        x=Point(T([3]), 'x'); x[None, ...] = 0; x.s, x.a
        """,
        on="none",
    ),
    # A nested collection in one is a plain container, and so are results of reductions.
    *cases(
        "TypedTensorDict",
        """
        td['n', 'z'] = T([2, 3]); type(td['n']).__name__
        td['n'] = {'z': T([2, 3])}; type(td['n']).__name__
        td.update({('n', 'm', 'z'): T([2, 3])}); type(td['n']['m']).__name__
        td.create_nested(('n', 'm')); type(td['n', 'm']).__name__
        td.setdefault(('n', 'z'), T([2, 3])); type(td['n']).__name__
        td.rename_key_('a', ('n', 'z')); type(td).__name__, type(td['n']).__name__
        td.rename_keys({'a': ('n', 'z')})
        td['n.z'] = T([2, 3]); td.unflatten_keys('.')
        td['n', 'z'] = T([2, 3]); td.select(('n', 'z'))
        td['n', 'z'] = T([2, 3]); td.split_keys([('n', 'z')])
        td.from_dict_instance({'n': {'z': T([2, 3])}, 'a': T([2])}, batch_size=[2])
        td.float().sum()
        td.float().mean(dim=0)
        td.float().mean(dim=(0, 1), keepdim=True)
        td.float().std(dim=1)
        td.float().var(dim=0, keepdim=True)
        td.prod(dim=0)
        td.float().nansum(dim=-1)
        td.float().nanmean()
        td.float().quantile(0.5, dim=0)
        td.amax(0)
        td.amin()
        td.max(0)
        td.min(dim=0, keepdim=True)
        td.cummax(0)
        td.cummin(dim=1, return_indices=False)
        td.cumsum(0)
        td.float().logsumexp(0)
        td.float().norm()
        td.float().softmax(0)
        td.float().sum(reduce=True)
        td.sum(dim='feature')
        td['q'] = Typed(a=T([2, 3]), batch_size=[2, 3]); td.sum(0)
        td <= T([2, 3])
        T([2, 3]) > td
        td == td
        td != 0
        td.masked_select(T([2, 3], 'bool'))
        torch.masked_select(td, T([2, 3], 'bool'))
        td.masked_select(T([2], 'bool'))
        """,
        on="typed",
    ),
    *cases(
        "softmax",
        "td.float().softmax((0,))\n td.float().softmax('feature')".replace(" td", "td"),
        on="flat",
        message=False,
    ),
    *cases("TypedTensorDict", "td.a; td.b", on="typed"),
    *cases("TypedTensorDict", "td.a = T([2, 3], start=1); td['a']", on="typed"),
    *cases(
        "tensorclass",
        "Data(T([2]), n=Inner(T([2]), batch_size=[2]), batch_size=[2])",
        on="none",
    ),
    *cases("set", "td.set(('n', 'z'), T([2, 3]))", on="tc_nested"),
    *cases("set", "td.set(('n', 'z'), T([2, 3]))", on="tc tc_named", message=False),
    *cases(
        "tensorclass keys",
        """
        td.get(('a', 'z'))
        td.get(('n', 'z'))
        td.get(('n', 'z'), 3)
        td.get(('a', 'z'), default=3)
        td.get('zz', 5)
        td.get('b', 5)
        td.get(('a',))
        td.set_non_tensor('zz', 'x'); list(td.keys())
        td.setdefault('zz', T([2, 3])).shape
        td.setdefault(('zz', 'y'), T([2, 3])).shape
        td.create_nested('zz'); list(td.keys())
        td.create_nested(('zz', 'y')); list(td.keys(True))
        td.rename_key_('a', 'zz'); list(td.keys())
        td.rename_key_('a', ('zz', 'y')); list(td.keys(True))
        td.update(TensorDict(zz=T([2, 3]), batch_size=td.batch_size)); list(td.keys())
        [key for key, _ in td.non_tensor_items()]
        torch.squeeze(td) is td, torch.squeeze(td)._tensordict is td._tensordict
        torch.permute(td, tuple(range(td.ndim))) is td
        td.squeeze() is td
        td.attrs().device
    """,
        on=FORMS,
    ),
    *cases(
        "tensorclass keys",
        """
        td.set((), 1)
        td.set(1, 1)
        td.set(None, 1)
        td.set(('a', 'z'), T([2, 3]))
        td.set(('zz', 'z'), T([2, 3]))
        td.set('zz', T([2, 3]), inplace=True)
        td.set('a', td.a + 1, inplace=True); td.a
        td.set('a', 'x', inplace=True)
        td.set('a', [1, 2], inplace=True)
        td.set('b', T([2, 3]), inplace=True); td.b
        td.set('a', None); td.a
        td.setdefault('zz', T([2, 3])); td[0]
        td.setdefault('zz', T([2, 3])); td.clone()
        td.setdefault('zz', T([2, 3])); td + 1
        td.setdefault('zz', T([2, 3])); td.view(-1)
        td.setdefault('zz', T([2, 3])); td.replace(a=td.a)
        td.setdefault('zz', T([2, 3])); td.to_tensordict()
        td.setdefault('zz', T([2, 3])); td.select('a')
        del td.zz
    """,
        on=FORMS,
        message=False,
    ),
    *cases(
        "tensorclass from outside",
        """
        o = TensorDict(n=Data(T([2]))); o['n', 'zz'] = 5; list(o.keys(True))
        o = TensorDict(n=Data(T([2]))); o.set(('n', 'zz', 'y'), T([2])); list(o.keys(True))
        o = TensorDict(p=Point(T([2]))); o['p', 'k'] = 5; o['p'].k
        o = TensorDict(p=Point(T([2]))); o['p', 's'] = np.ones(2); o['p'].s
        o = TensorDict(n=Data(T([2]))); o['n', 'a'] = None; o['n'].a
        lazy_stack([Data(T([2]), n=Data(T([2]))), Data(T([2]))]).n
        s = lazy_stack([Data(T([2]), n=Data(T([2]))), Data(T([2]))]); s.n = None; s.n, s[0].n
        Data.from_tensordict({'a': 1})
        s = lazy_stack([Data(None), Data(None)]); s.load_state_dict(s.state_dict()); s.batch_size
    """,
        on="none",
    ),
    *cases(
        "tensorclass from outside",
        """
        Data.from_tensordict(TensorDict(a=1), {'zz': 'x'})
        tensorclass(type('Odd', (), {'__annotations__': {'a': int, 'b': int}, 'a': 1}))
        tensorclass(type('Odd', (), {'__annotations__': {'keys': int}}))
    """,
        on="none",
        message=False,
    ),
    *cases("update", "td.update({'zz': T([2, 3])})", on=FORMS, message=False),
    *cases(
        "from_tensordict",
        """
        Data.from_tensordict(TensorDict(a=T([2]), zz=T([2]), batch_size=[2]))
        Data.from_dict({'zz': T([2])})
        """,
        on="none",
        message=False,
    ),
    *cases(
        "from_any",
        "Data.from_any(Plain(T([2])))",
        on="none",
        reason="a field that is None is not set, as in from_dict",
        ours="result.b is None and list(result.keys()) == ['a']",
    ),
    *cases("batch_size", "td.batch_size = [3]", on=FORMS + " typed"),
    *cases("batch_size", "td.batch_size = [3]", on="tc_in", message=False),
    *cases("sum", "td.sum(0)", on=FORMS + " tc_in typed"),
    *cases("sum", "td.sum()", on=FORMS + " tc_in"),
]

CASES = differing(
    CASES,
    "Point(T([2]), k=3).k",
    reason="a field of numbers keeps them without batch dims, too",
    ours="result == 3 and type(result) is int",
)
