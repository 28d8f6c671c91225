"""Entries of classes and of collections that hold values: removing, indexing, writing."""

from frame import cases

CASES = [
    *cases(
        "tensorclass entries",
        """
        Data(T([2]), batch_size=[2])[()]
        d = Data(T([2]), batch_size=[2]); d[()] = d.clone() * 2; d.a
        Data(T([2]))._get_sub_tensordict(()).a
        Data(T([2])).del_('n').n
        Data(T([2])).del_('nope')
        Data(T([2])).del_(('n', 'a'))
        Data(T([2])).del_(('a', 'b'))
        Data(T([2])).del_(('b', 'c'))
        Data(T([2]), n=Data(T([2]))).del_(('n', 'nope'))
        Data(T([2]), n=Data(T([2]))).del_(('n', 'b')).n.b
        Data(T([2])).lock_().del_('nope')
        Data(T([2])).lock_().del_('a')
        Data(T([2])).lock_().del_(('n', 'a'))
        Point(T([2]), 'x').del_(('s', 'y'))
        Point(T([2]), 'x').del_('s').s
        s = lazy_stack([Data(T([2]), n=Data(T([2]))), Data(T([2]))]); lazy_stack([s, s.clone()]).n
        s = lazy_stack([Data(T([2]), n=Data(T([2]))), Data(T([2]))]); s.view(1, 2).n
        s = lazy_stack([Data(T([2]), n=Data(T([2]))), Data(T([2]))]); s.unsqueeze(0).n
        Data(T([0, 2]), batch_size=[0]).to_lazystack(0)
        """,
        on="none",
        message=False,
    ),
    *cases("to_lazystack", "td.to_lazystack(0)", on="zero"),
    *cases(
        "sum",
        """
        TensorDict(s=NonTensorStack('a', 'b'), a=T([2, 3]), batch_size=[2]).sum(dim='feature')
        TensorDict(n=TensorDict(s=NonTensorStack('a', 'b'), batch_size=[2]), a=T([2, 3]),
            batch_size=[2]).std(dim='feature')
        TensorDict(s='a', a=T([2, 3]), batch_size=[2]).sum(dim='feature')
        """,
        on="none",
        message=False,
    ),
    *cases(
        "setitem values",
        """
        td = TensorDict(s='a', b=T([3, 3], 'int64'), c=T([3], 'bool'), batch_size=[3]); td[[1]] = 0
        td = TensorDict(s='a', b=T([3, 3], 'int64'), c=T([3], 'bool'), batch_size=[3]); td[[1]] = 0.5
        td = TensorDict(s='a', b=T([3], 'int64'), batch_size=[3]); td[torch.tensor([True, False, True])] = 0.5
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[0] = TensorDict(s='x', batch_size=[3])
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[0] = TensorDict(s='x')
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[0] = TensorDict(s='x', batch_size=[2, 3])
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[0] = TensorDict(s='x', batch_size=[1, 3])
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[0] = TensorDict(s='x', batch_size=[5])
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[:1] = TensorDict(s='x', batch_size=[3, 1])
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[:1] = TensorDict(s='x', batch_size=[1])
        """,
        on="none",
        message=False,
    ),
    *cases(
        "set_at_ values",
        """
        td = lazy_stack([TensorDict(s='a', batch_size=[2]), TensorDict(s='b', batch_size=[2])]);
            td.set_at_('s', T([]), (1, 0)); td['s']
        td = lazy_stack([TensorDict(s='a', batch_size=[2]), TensorDict(s='b', batch_size=[2])]);
            td.set_at_('s', 'z', [1]); td['s']
        td = TensorDict(s='a', a=T([2]), batch_size=[2]); td[[]] = 0
        td = TensorDict(s='a', a=T([2]), batch_size=[2]); td[5:9] = T([])
        td = TensorDict(s='a', a=T([2]), batch_size=[2]); td.set_at_('s', 1, [])
        td = TensorDict(s='a', a=T([2])); td.set_at_('s', 1, False); td['s']
        """,
        on="none",
        message=False,
        ordered=False,
    ),
    *cases(
        "pad_sequence classes",
        """
        d = Data(T([2, 1]), batch_size=[2]); type(pad_sequence([lazy_stack([d, d]), lazy_stack([d])])).__name__
        d = Typed(a=T([2, 1]), batch_size=[2]); type(pad_sequence([d, d[:1]], return_mask=True)['masks']).__name__
        d = Sub(a=T([2, 1]), batch_size=[2]); type(pad_sequence([d, d[:1]], return_mask=True)['masks']).__name__
        """,
        on="none",
    ),
    *cases(
        "stacks of classes",
        """
        type(lazy_stack([Sub(a=T([2])), Sub(a=T([2]))])[1:1]).__name__
        type(lazy_stack([Typed(a=T([2])), Typed(a=T([2]))])[5:]).__name__
        type(lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))])[1:1]).__name__
        s = lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]).lock_();
            s.flatten_keys().is_locked, s.unflatten_keys().is_locked
        LazyStackedTensorDict(T([2]))
        LazyStackedTensorDict(TensorDict(), T([2]))
        LazyStackedTensorDict(3)
        merge_tensordicts(Data(T([2])), TensorDict(z=T([2])))
        merge_tensordicts(Data(T([2])), TensorDict(b=T([2]))).b
        """,
        on="none",
        message=False,
    ),
    *cases(
        "pack",
        """
        Data(T([3])).pack()[1].keys
        Data(T([3]), s=None).pack()[0]
        Data(T([3]), n=Data(T([3]), s=None), s=None).pack()[1].keys
        Data(T([3]), s='x').pack()
        Point(T([3]), s=None).pack()[0]
        lazy_stack([Point(T([3]), None), Point(T([3]), None)]).pack()[0]
        d = Point(T([3])).clear(); d.pack()[1].unpack(d.pack()[0])
        d = Point(T([2, 3]), None, batch_size=[2]); d.pack()[1].unpack(d.pack()[0])
        d = Data(T([3]), n=Data(T([3]), s=None), s=None); d.pack()[1].unpack(d.pack()[0]).n
        d = TensorDict(n=Data(T([3]), n=Data(T([3]), s=None), s=None), q=TensorDict(w=Point(T([3]),
            None))); d.pack()[1].unpack(d.pack()[0])
        d = Point(T([3]), 'x'); d.s = None; d.pack()[0]
        d = Point(T([3]), 'x'); d.set('s', NonTensorData(None)); d.pack()
        """,
        on="none",
        message=False,
    ),
    *cases(
        "where",
        """
        d = TensorDict(a=T([3, 2]), s='x', batch_size=[3, 2]);
            d.where(d['a'] > 0, TensorDict(a=T([2]), s='y', batch_size=[2]))
        d = TensorDict(a=T([3, 2]), s='x', batch_size=[3, 2]);
            d.where(d['a'] > 0, TensorDict(a=T([1, 2]), s='y', batch_size=[1, 2]))
        d = TensorDict(a=T([3, 2]), s='x', batch_size=[3, 2]); d.where(d['a'] > 0, TensorDict(a=T([]), s='y'))
        d = TensorDict(a=T([3, 2]), s='x', batch_size=[3, 2]); d.where(d['a'] > 0, TensorDict(a=T([]), s='x'))
        d = TensorDict(a=T([3, 2]), s='x', batch_size=[3, 2]);
            d.where(d['a'] > 0, TensorDict(a=T([3, 2]), s='y', batch_size=[3]))
        d = TensorDict(a=T([3, 2]), s='x', batch_size=[3, 2]); d.where(d['a'] > 99, TensorDict(a=T([]), s='y'))
        d = TensorDict(a=T([3, 2]), s='x', batch_size=[3, 2]); d.where(d['a'] < 99, TensorDict(a=T([]), s='y'))
        d = TensorDict(a=T([3, 2]), s='x', batch_size=[3, 2]);
            d.where(d['a'][:, 0] > 99, TensorDict(a=T([3, 2]), s='y', batch_size=[3, 2]))
        d = Point(T([3, 2]), 'x', batch_size=[3, 2]); torch.where(d.a > 0, d, TensorDict(a=T([]), s='y')).s
        """,
        on="none",
    ),
    *cases(
        "auto_batch_size_",
        """
        TensorDict(a=T([2, 3, 1]), s='x').auto_batch_size_()
        TensorDict(a=T([2, 3, 1]), s='x', batch_size=[2]).auto_batch_size_()
        TensorDict(a=T([2, 3, 1]), s=['x', 'y']).auto_batch_size_()
        TensorDict(a=T([2, 3]), s='x', batch_size=[2, 3]).auto_batch_size_(1)
        TensorDict(a=T([2, 3]), n=TensorDict(s='x', batch_size=[2]), batch_size=[2]).auto_batch_size_()
        Point(T([2, 3]), 'x', batch_size=[2]).auto_batch_size_().batch_size
        lazy_stack([Point(T([2, 3]), 'x', batch_size=[2])] * 2).auto_batch_size_().batch_size
        """,
        on="none",
        message=False,
    ),
    *cases(
        "lazy_stack",
        """
        lazy_stack([Point(T([3, 2]), batch_size=[3]), Point(T([3, 2]), batch_size=[3])], -3).batch_size
        lazy_stack([TensorDict(a=T([3, 2]), batch_size=[3]), TensorDict(a=T([3, 2]), batch_size=[3])], -4)
        lazy_stack([TensorDict(a=T([3, 2]), batch_size=[3]), TensorDict(a=T([3, 2]), batch_size=[3])], -5)
        lazy_stack([TensorDict(a=T([3]))], -2).stack_dim
        """,
        on="none",
        message=False,
    ),
    *cases(
        "_get_sub_tensordict",
        """
        m = TensorDict(a=T([3]), batch_size=[3]); lazy_stack([m, m])._get_sub_tensordict(0).zero_(); m
        m = TensorDict(a=T([3]), batch_size=[3]); lazy_stack([m, m])._get_sub_tensordict(-1).set_('a', T([3]) * 5); m
        m = TensorDict(a=T([3]), batch_size=[3]); lazy_stack([m, m])._get_sub_tensordict(0).add_(1); m
        s = lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]);
            torch.cat([s, s])._get_sub_tensordict(-3).fill_('a', 9); s
        """,
        on="none",
    ),
    *cases(
        "set_at_",
        """
        lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]).set_at_(1, 0, 0)
        lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]).set_at_(('a', 1), 0, 0)
        TensorDict(a=T([3])).set_at_(1, 0, 0)
        """,
        on="none",
        message=False,
    ),
    *cases(
        "to_tensordict",
        """
        d = TensorDict(a=T([2]), s='x', batch_size=[2]).memmap_().to_tensordict(); d.device, d.get('s').device
        d = Point(T([2]), 'x', batch_size=[2]).memmap_().to_tensordict(); d.device, d.get('s').device
        """,
        on="none",
    ),
    *cases(
        "update_",
        """
        TensorDict({'s': 'x'}, [3]).update_(TensorDict({'s': 'y', 'a': T([3])}, [3]))
        TensorDict({'s': 'x', 'b': T([3])}, [3]).update_({'s': 'y', 'a': T([3])})
        TensorDict({'s': 'x', 'b': T([3])}, [3]).update_({'s': 'y', 'b': T([3]), 'a': T([3])})
        d = Point(a=T([3]), s='x', batch_size=[3]); d.del_('a'); d.update_(Point(a=T([3]), s='y', batch_size=[3]))
        """,
        on="none",
    ),
    *cases(
        "copy_at_",
        """
        TensorDict(n=Point(a=T([3]), s='x', batch_size=[3]), a=T([3]),
            batch_size=[3]).copy_at_(TensorDict(a=T([])), torch.tensor(2))
        TensorDict(n=Point(a=T([3]), s='x', batch_size=[3]), a=T([3]),
            batch_size=[3]).copy_at_(TensorDict(a=T([3]), batch_size=[3]), ...)
        """,
        on="none",
    ),
    *cases(
        "unflatten_keys",
        """
        lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]).lock_().unflatten_keys('.', inplace=True)
        lazy_stack([TensorDict({'a.b': T([3])}), TensorDict({'a.b': T([3])})]).lock_().unflatten_keys('.', inplace=True)
        lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]).lock_().flatten_keys('.', inplace=True)
        """,
        on="none",
        message=False,
    ),
    *cases(
        "set",
        """
        td.set('a', {'q': T([2, 3])}, inplace=True)
        td.set('a', {}, inplace=True)
        td.set('s', {}, inplace=True)
        td.set('s', 7, inplace=True).s
        td.set('i', '12', inplace=True).i
        td.set('a', {'q': T([2, 3])}).a
        """,
        on="c_autocast",
        message=False,
    ),
    *cases(
        "keys of nested values",
        """
        TensorDict(n=TensorDict(b=T([2]), e=TensorDict(s='x')),
            b=T([2])).clamp_max_(TensorDict(n=TensorDict(b=T([2])), b=T([2])))
        TensorDict(n=TensorDict(b=T([2]), e=TensorDict(s='x')),
            b=T([2])).add(TensorDict(n=TensorDict(b=T([2])), b=T([2])))
        TensorDict(n=TensorDict(b=T([2]), e=TensorDict(s='x')),
            b=T([2])) * TensorDict(n=TensorDict(b=T([2]), q=TensorDict(s='x')), b=T([2]))
        TensorDict(n=TensorDict(b=T([2]), e=TensorDict(s='x')), b=T([2])).add(TensorDict(b=T([2])))
        TensorDict(n=TensorDict(b=T([2]), e=TensorDict(s='x')),
            b=T([2])) == TensorDict(n=TensorDict(b=T([2])), b=T([2]))
        """,
        on="none",
        message=False,
    ),
    *cases(
        "classes on the way",
        """
        td = lazy_stack([Sub(a=T([2])), Sub(a=T([2]))]); td['n', 'z'] = T([2]); type(td.tensordicts[0]['n']).__name__
        td = lazy_stack([Sub(a=T([2])), Sub(a=T([2]))]); td.set(('n', 'm', 'z'), T([2]));
            type(td.tensordicts[0]['n', 'm']).__name__
        td = lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]);
            td.set(('n', 'm', 'z'), T([2])); type(td.tensordicts[0]['n', 'm']).__name__
        td = TensorDictParams(Sub(a=T([2]))); td['n', 'z'] = T([2]); type(td['n']).__name__
        """,
        on="none",
    ),
    *cases(
        "comparison with a collection in a tensor's place",
        """
        TensorDict(c=T([2]), a=T([2, 3]), device='cpu') == TensorDict(c=T([2]), a=TensorDict(z=T([2, 3])))
        TensorDict(c=T([2]), a=T([2, 3]), device='cpu') != TensorDict(c=T([2]), a=TensorDict(z=T([2, 3])))
        """,
        on="none",
    ),
    *cases(
        "masks of features of stacks",
        """
        lazy_stack([TensorDict(a=T([3, 2]), batch_size=[3]), TensorDict(a=T([3, 2]),
            batch_size=[3])]).where(T([2, 3, 2], 'bool'), 0)
        lazy_stack([TensorDict(a=T([3, 2]), batch_size=[3]), TensorDict(a=T([3, 2]),
            batch_size=[3])], 1).where(T([3, 2, 2], 'bool'), 0)
        lazy_stack([TensorDict(a=T([3]), n=Point(T([3]))), TensorDict(a=T([3]),
            n=Point(T([3])))]).where(T([2, 3], 'bool'), 0)
        lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]).where(T([2, 3], 'bool'),
            TensorDict(a=T([2, 3], start=2), batch_size=[2]))
        lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]).masked_fill(T([2, 3], 'bool'), 9)
        lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]).masked_fill_(T([2, 3], 'bool'), 9)
        lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]).masked_fill(T([2, 4], 'bool'), 9)
        lazy_stack([TensorDict(a=T([3])), TensorDict(a=T([3]))]).where(T([2, 3, 1], 'bool'), 9)
        lazy_stack([Point(T([3])), Point(T([3]))]).where(T([2, 3], 'bool'), 0).a
        """,
        on="none",
        message=False,
    ),
    *cases(
        "locked members",
        """
        lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2])).lock_()]).set('a', T([2, 2]))
        lazy_stack([TensorDict(a=T([2])).lock_(), TensorDict(a=T([2]))]).set('a', T([2, 2]))
        lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2])).lock_()]).set('z', T([2, 2]))
        lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2])).lock_()]).set(('n', 'z'), T([2, 2]))
        lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2])).lock_()]).set('a', [T([2]), T([2])])
        lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2])).lock_()]).set_non_tensor('a', 'x')
        lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2])).lock_()]).set_('a', T([2, 2]))
        lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2])).lock_()]).zero_()
        lazy_stack([TensorDict(n=TensorDict(a=T([2])).lock_()),
            TensorDict(n=TensorDict(a=T([2])))]).set(('n', 'a'), T([2, 2]))
        lazy_stack([TensorDict(n=Point(T([2])).lock_()), TensorDict(n=Point(T([2])))]).set(('n', 'a'), T([2, 2]))
        lazy_stack([lazy_stack([TensorDict(a=T([])), TensorDict(a=T([])).lock_()]),
            TensorDict(a=T([2]), batch_size=[2])]).set('a', T([2, 2]))
        """,
        on="none",
        message=False,
    ),
    *cases(
        "stacks of classes and others",
        """
        s = lazy_stack([lazy_stack([Data(T([2])), Data(T([2]))]), TensorDict(a=T([2, 2]),
            batch_size=[2])]); s.fill_('a', 9)['a']
        s = lazy_stack([lazy_stack([Data(T([2])), Data(T([2]))]), TensorDict(a=T([2, 2]),
            batch_size=[2])]); s.set_('a', T([2, 2, 2]) + 5)['a']
        s = lazy_stack([lazy_stack([Data(T([2])), Data(T([2]))]), TensorDict(a=T([2, 2]),
            batch_size=[2])]); s.set_at_('a', 7, 0)['a']
        """,
        on="none",
        message=False,
    ),
    *cases(
        "set_at_ of ragged stacks of stacks",
        """
        s = lazy_stack([lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]), TensorDict(a=T([2,
            2, 2]), batch_size=[2])]); s.set_at_('a', 5, torch.tensor([[0],
            [1]])).tensordicts[1]['a']
        s = lazy_stack([lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]), TensorDict(a=T([2,
            2, 2]), batch_size=[2])]); s.set_at_('a', torch.tensor(5.0), torch.tensor([[0],
            [1]])).tensordicts[1]['a']
        s = lazy_stack([lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]), TensorDict(a=T([2,
            2, 2]), batch_size=[2])]); s.set_at_('a', T([2]), torch.tensor([[0],
            [1]])).tensordicts[1]['a']
        s = lazy_stack([lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]), TensorDict(a=T([2,
            2, 2]), batch_size=[2])]); s.set_at_('a', T([2]), torch.tensor([[0],
            [1]])).tensordicts[0]['a']
        """,
        on="none",
        message=False,
    ),
    *cases(
        "a member that is there twice",
        """
        lazy_stack([TensorDict(a=T([2]), s='x')] * 2).separates('a')['a']
        lazy_stack([TensorDict(a=T([2]), s='x')] * 2).separates('s')['s']
        lazy_stack([Point(T([2]))] * 2).separates('a').a
        """,
        on="none",
        message=False,
    ),
    *cases(
        "stacks without elements",
        """
        lazy_stack([Data(T([0]), n=Data(T([0]), batch_size=[0]), batch_size=[0]), Data(T([0]),
            batch_size=[0])]).unflatten(0, (-1, 1)).batch_size
        lazy_stack([Data(T([0]), n=Data(T([0]), batch_size=[0]), batch_size=[0]), Data(T([0]),
            batch_size=[0])]).unflatten(0, (-1, 1)).n is None
        lazy_stack([Data(T([0]), n=Data(T([0]), batch_size=[0]), batch_size=[0]), Data(T([0]),
            batch_size=[0])]).unflatten(1, (1, 0)).n is None
        lazy_stack([Data(T([0]), n=Data(T([0]), batch_size=[0]), batch_size=[0]), Data(T([0]),
            batch_size=[0])]).unflatten(1, (0, 1)).batch_size
        lazy_stack([Data(T([0]), n=Data(T([0]), batch_size=[0]), batch_size=[0]), Data(T([0]),
            batch_size=[0])]).reshape(2, 1, 0).n is None
        """,
        on="none",
        message=False,
    ),
    *cases(
        "collections for the fields of an instance",
        """
        Data(T([2]), n=Data(T([2]))).from_dict_instance({'a': T([2]), 'n': TensorDict(a=T([2]))}).n
        Data(T([2]), n=Data(T([2]))).from_dict_instance({'a': T([2]), 'n': TensorDict(a=T([2]), z=T([2]))})
        (TensorDict(n=Data(T([2]), n=Data(T([2])))) == {'n': {'a': T([2]), 'n': TensorDict(a=T([2]))}})['n'].n
        """,
        on="none",
        message=False,
    ),
    *cases(
        "mul",
        """
        lazy_stack([lazy_stack([Data(T([])), Data(T([]))]), TensorDict(a=T([2]), batch_size=[2])],
            1) * TensorDict(w=T([2]), batch_size=[2])
        lazy_stack([lazy_stack([Data(T([])), Data(T([]))]), TensorDict(a=T([2]), batch_size=[2])],
            1).mul(TensorDict(a=T([2]), w=TensorDict(q=T([2])), batch_size=[2]))
        """,
        on="none",
        message=False,
    ),
    *cases(
        "lists of values at an index",
        """
        td = TensorDict(c=T([2, 3]), s=NonTensorStack('p', 'q'), batch_size=[2]);
            td[torch.tensor([[0, 1], [1, 0]])] = TensorDict(c=T([2, 3]), s=NonTensorStack('a', 'b'),
            batch_size=[2]); td['s']
        td = TensorDict(c=T([2]), s='p', batch_size=[2]);
            td[torch.tensor([[0, 1], [1, 0]])] = TensorDict(c=T([2]), s=NonTensorStack('a', 'b'),
            batch_size=[2]); td['s']
        td = TensorDict(c=T([2]), s='p', batch_size=[2]);
            td[torch.tensor([[0, 1], [1, 0]])] = TensorDict(c=T([3]), s=NonTensorStack('a', 'b',
            'c'), batch_size=[3])
        """,
        on="none",
        message=False,
    ),
    *cases(
        "typed dictionaries of stacks",
        """
        Typed.from_tensordict(lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]).lock_(), check=False).is_locked
        Typed.from_tensordict(lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]), check=False).is_locked
        """,
        on="none",
        message=False,
    ),
    *cases(
        "replace",
        """
        s = lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]); s.replace(s.empty()) is s
        s = lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]); s.replace(s.clone()) is s
        """,
        on="none",
    ),
    *cases(
        "default_collate",
        """
        type(torch.utils.data.default_collate([UnbatchedTensor(T([2])), UnbatchedTensor(T([2]))])).__name__
        type(torch.stack([UnbatchedTensor(T([2])), UnbatchedTensor(T([2]))], 0, out=None)).__name__
        """,
        on="none",
    ),
    *cases(
        "out of what holds stacks",
        """
        td = TensorDict(n=lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]), batch_size=[2]);
            torch.stack([td, td], 0, out=torch.stack([td, td], 0) * 0)['n', 'a']
        td = TensorDict(n=lazy_stack([Point(T([2])), Point(T([2]))]), batch_size=[2]);
            torch.stack([td, td], 0, out=torch.stack([td, td], 0) * 0)['n'].a
        td = TensorDict(n=lazy_stack([TensorDict(a=T([2])), TensorDict(a=T([2]))]), batch_size=[2]);
            torch.cat([td, td], 0, out=torch.cat([td, td], 0) * 0)['n', 'a']
        """,
        on="none",
    ),
    *cases(
        "blocks of what is locked",
        """
        td = TensorDict(a=T([1, 3]), s='x', batch_size=[1, 3]).lock_();
            [v.zero_() for v in [td.squeeze(0).__enter__()]]; td
        td = TensorDict(a=T([1, 3]), s='x', batch_size=[1, 3]).lock_();
            v = td.squeeze(0).__enter__(); v.zero_(); v.__exit__(None, None, None); td
        td = TensorDict(n=Point(T([1, 3]), 'x', batch_size=[1, 3]), batch_size=[1, 3]).lock_();
            v = td.unsqueeze(0).__enter__(); v.zero_(); v.__exit__(None, None, None); td
        """,
        on="none",
    ),
    *cases(
        "values compared on a device",
        """
        (TensorDict(a=T([2]), s='x', batch_size=[2]).to('meta') == TensorDict(a=T([2]), s='x',
            batch_size=[2]).to('meta'))['s'].device
        (TensorDict(s=NonTensorStack('a', 'b'),
            batch_size=[2]).to('meta') != TensorDict(s=NonTensorStack('a', 'c'),
            batch_size=[2]).to('meta'))['s'].device
        """,
        on="none",
    ),
]
