"""Lazy stacks of all kinds: one member, stacks of stacks, typed, text, sizes that differ."""

from frame import cases

ALIKE = "lazy_single lazy_locked lazy_deep"
KINDS = ALIKE + " lazy_sizes lazy_text lazy_tc"
EVERY_KIND = "lazy lazy_last lazy_ragged lazy_hetero " + KINDS

CASES = [
    *cases(
        "stack_members",
        """
        td.append(td[0].clone() if td.stack_dim == 0 else td.tensordicts[0].clone()); td
        td.append(td.tensordicts[0]); td.batch_size, len(td.tensordicts)
        td.insert(0, td.tensordicts[-1]); td
        td.insert(-1, td.tensordicts[0]); td.batch_size
        td.insert(9, td.tensordicts[0]); td.batch_size
        td.extend(td.tensordicts); td.batch_size
        td.extend([]); td.batch_size
        td.append(3)
        td.append(TensorDict({}, [7]))
        td.extend([3])
        td.stack_dim, len(td.tensordicts), td.batch_size, len(td)
        td.tensordicts[0] is td.unbind(td.stack_dim)[0]
        list(td.valid_keys())
        td.hook_in, td.hook_out
        """,
        on="lazy lazy_last lazy_ragged lazy_hetero lazy_single lazy_locked lazy_deep "
        "lazy_sizes lazy_text",
        message=False,
    ),
    *cases(
        "stack_of_classes",
        """
        td.append(td[0].clone()); td
        td.append(td[0].clone()); td.batch_size
        td.append(3)
        td.append(td)
        td.insert(0, td[1]); td
        td.insert(5, td[1]); td.batch_size
        td.lock_(); td.append(td[0])
        td.stack_dim, len(td.tensordicts)
        [type(x).__name__ for x in td.tensordicts]
        td.get_nestedtensor('a').shape
        list(td.valid_keys())
        td.hook_out, td.hook_in
        hasattr(td, 'append'), hasattr(td[0], 'append')
        td[0].append(td[0])
        td[0].stack_dim
        td[0].tensordicts
        td.get('a', as_list=True)
        td.get('a', as_padded_tensor=True)
        type(td[0]).__name__, type(td[:1]).__name__, type(td.tensordicts[0]).__name__
        td.a
        td.a = T([2, 3], start=5); td
        td[0].a.zero_(); td
        td[0] = td[1]; td
        td[:, 0] = 0; td
        td[:, 0] = td[:, 1]; td
        """,
        on="lazy_tc",
        message=False,
    ),
    *cases(
        "read_stack",
        """
        td.get('a', as_list=True)
        td.get('a', as_padded_tensor=True)
        td.get('a', as_padded_tensor=True, padding_value=-1)
        td.get('a', as_padded_tensor=True, padding_side='left')
        td.get('a', None, as_padded_tensor=True)
        td.get('missing', 5, as_list=True)
        td.get('missing', as_padded_tensor=True)
        td.get('a', as_padded_tensor=True, padding_side='up')
        td.get_item_shape('a')
        td.get_item_shape('missing')
        td.entry_class('a').__name__, td.entry_class('missing').__name__
        td.get(('a', 'b'))
        td.get('a', as_list=True, as_padded_tensor=True)
        td.get('a', unknown=True)
        """,
        on="lazy lazy_last lazy_ragged lazy_single lazy_locked lazy_sizes lazy_text",
        message=False,
    ),
    *cases(
        "index_stack",
        """
        td[0]
        td[-1]
        td[:1]
        td[1:].batch_size
        td[:0].batch_size
        td[::2]
        td[None]
        td[:, None]
        td[...]
        td[..., 0]
        td[[0]]
        td[[0, -1]]
        td[[]]
        td[torch.tensor([0])]
        td[torch.tensor([[0, 0]])]
        td[torch.tensor(0)]
        td[torch.zeros(td.shape[0], dtype=torch.bool)]
        td[torch.ones(td.shape[0], dtype=torch.bool)]
        td[True]
        td[range(1)]
        td[np.int64(0)]
        td[99]
        td[1.5]
        td[0, 0]
        td[0, :1]
        td[:, 0]
        td[:, :1]
        td[:, [0]]
        td[0:1, [0]]
        td[[0], [0]]
        td[0, None, 0]
        td[0, 0, 0, 0, 0]
        """,
        on="lazy_single lazy_locked lazy_deep lazy_text lazy_tc",
        message=False,
    ),
    *cases(
        "write_stack",
        """
        td[0] = td[-1]; td
        td[0] = 0; td
        td[:1] = 0; td
        td[...] = 1; td
        td[:, 0] = 2; td
        td[:] = td.clone(); td
        td[[0]] = td[[0]].clone(); td
        td['z'] = T(td.shape); td
        td['z', 'w'] = T(td.shape); td
        td['a', 'w'] = T(td.shape)
        td['a', 'w'] = T([7])
        td.set('a', T(td.shape, start=4)); td
        td.set('a', T(td.shape, start=4), inplace=True); td
        td.set_('a', T(td.shape, start=4)); td
        td.set_('missing', T(td.shape))
        td.set_(('z', 'w'), T([7]))
        td.setdefault('a', T(td.shape)); td
        td.setdefault('z', T(td.shape)); td
        td.update({'a': T(td.shape, start=4)}); td
        td.update({'a': T(td.shape, start=4), 'z': T(td.shape)}); td
        td.update(td.clone()); td
        td.update({'a': T(td.shape, start=4)}, inplace=True); td
        td.update(TensorDict({'a': T([9])}, [9]), keys_to_update=['a'])
        td.update_({'a': T(td.shape, start=4)}); td
        td.update_(td.clone()); td
        td.update_at_({'a': T(td.shape[1:])}, 0); td
        td.set_at_('a', 0, 0); td
        td.fill_('a', 3); td
        td.zero_(); td
        td += 1; td
        td.copy_(td.clone()); td
        del td['a']; td
        td.del_('a'); td
        td.pop('a')
        td.pop('missing', 3)
        td.rename_key_('a', 'q'); td
        td.replace({'a': T(td.shape, start=4)})
        td.batch_size = td.batch_size; td.batch_size
        td.batch_size = [1]
        td.clear(); td
        """,
        on="lazy_single lazy_locked lazy_deep",
        message=False,
    ),
    *cases(
        "write_tensor",
        """
        STACK; s[...] = T([2, 3], start=7); s
        STACK; s[:] = T([2, 3], start=7); s
        STACK; s[()] = T([3], start=7); s
        STACK; s[:] = T([3], start=7); s
        STACK; s[::1] = T([3], start=7); s
        STACK; s[0] = T([3], start=7); s
        STACK; s[:, 0] = T([2], start=7); s
        STACK; s[:, :1] = T([2, 1], start=7); s
        STACK; s[...] = T([1, 3], start=7); s
        STACK; s[...] = T([2, 1], start=7); s
        STACK; s[...] = torch.tensor(4.0); s
        STACK; s[...] = T([5])
        """.replace(
            "STACK",
            "s = lazy_stack([TensorDict({'b': T([3], start=i)}, [3]) for i in range(2)])",
        ),
        on="none",
        message=False,
    ),
    *cases(
        "join_stacks",
        """
        A; B; torch.cat([a, b])
        A; B; torch.cat([b, a])
        A; B; torch.stack([a, b])
        A; B; torch.stack([b, a], -1)
        A; b = lazy_stack([TensorDict(a=T([])), TensorDict(a=T([]), x=T([]))]); torch.cat([a, b])
        A; B; torch.cat([a, b, a]).batch_size
        a = TensorDict(n=TensorDict(a=T([2]), batch_size=[2]), batch_size=[2]); B;
            torch.cat([a, TensorDict(n=b, batch_size=[2])])
        B; b.expand(3, 2)['a'].stride(), b.squeeze(0) is b, b[:1].squeeze(0) is b[0]
        B; v = b.expand(3, 2); v[0] = 7; v
        B; b.new_zeros(3, empty_lazy=True)
        B; b.new_ones(3, 4, empty_lazy=True).batch_size, b.new_ones(3, 4).batch_size
        B; TensorDict(x=b, batch_size=[2]).auto_batch_size_()
        B; c = lazy_stack([TensorDict(a=T([])), TensorDict(a=T([]), x=T([]))]); b.contiguous().update_(c)
        B; c = lazy_stack([TensorDict(a=T([])), TensorDict(a=T([]), x=T([]))]);
            torch.where(torch.tensor([True, False]), c, c + 1, out=c.clone())
        lazy_stack([TensorDict(b=T([4, 5])), TensorDict()]).densify()['b'].unbind()[1].shape
        lazy_stack([TensorDict(b=T([2, 4, 5]), batch_size=[2]),
            TensorDict(batch_size=[2])]).densify()['b'].unbind()[1].shape
        lazy_stack([TensorDict(b=T([2, 3]), batch_size=[2, 3]), TensorDict(batch_size=[2,
            3])]).densify()['b'].unbind()[1].shape
        s = LazyStackedTensorDict(stack_dim=0, batch_size=[3], names=['x']); s.batch_size, s.names
        s = LazyStackedTensorDict(stack_dim=0, batch_size=[3]);
            s[None].batch_size, s[:, 0].batch_size, s[:, :2].batch_size
        LazyStackedTensorDict(stack_dim=-3, batch_size=[3])
        LazyStackedTensorDict(stack_dim=3, batch_size=[3])
        LazyStackedTensorDict(stack_dim=0, batch_size=[3], names=['x', 'y'])
        LazyStackedTensorDict.from_list([]).batch_size
        """.replace(  # noqa: E501
            "A;", "a = TensorDict(a=T([2]), batch_size=[2]);"
        ).replace(
            "B;", "b = lazy_stack([TensorDict(a=T([])), TensorDict(a=T([], start=1))]);"
        ),  # noqa: E501
        on="none",
        message=False,
    ),
    # Members that differ in shape, and values that broadcast over them.
    *cases(
        "set_at_",
        """
        td.set_at_('c', T([3]), None)
        td.set_at_('c', T([3]), slice(None))
        td.set_at_('c', T([1]), None)
        td.set_at_('c', T([2, 1, 1]), slice(None))
        td.set_at_('c', T([1, 2, 1]), slice(None))
        td.set_at_('c', T([2, 3, 1]), slice(None))
        td.set_at_('c', T([3, 2, 1]), slice(None))
        td.set_at_('c', 3, None)
        td.set_at_('c', T([3]), 0)
        td.set_at_('c', T([4]), 0)
        td.set_at_('c', T([4]), (slice(None), 1))
        td.set_at_('c', T([2, 1]), (slice(None), 1))
        td.set_at_('c', T([2, 4]), (1, slice(None)))
        td.set_at_('c', T([1]), [1, 0])
    """,
        on="uneven",
    ),
    *cases(
        "set",
        """
        td['q', 'r'] = T([2, 2, 3])
        td['q', 'r'] = T([2, 3])
        td['q'] = T([2, 2, 3])
        td.set('q', {'r': T([2, 2])})
    """,
        on="differently_named",
    ),
    *cases(
        "copy_into_stacks",
        """
        td = STACK; td.update_(TensorDict(c=T([]), a=T([2], start=4)))
        td = STACK; td.update_(TensorDict(c=T([]), a=T([2, 2], start=4)))
        td = STACK; td.update_({'c': T([]), 'a': T([2], start=4)})
        td = STACK; td.update_({('n', 'd'): T([3], start=4)})
        td = STACK; td.update_({'n': {'d': T([3], start=4)}})
        td = STACK; td.update_({'n': TensorDict(d=T([3], start=4))})
        td = STACK; td.update_({'n': {'d': T([2, 3], start=4), 'z': T([1])}})
        td = STACK; td.update_({'c': 3})
        td = lazy_stack([TensorDict(c=T([1])), TensorDict(c=T([1]))]); td.update_({'c': T([2], start=4)})
        td = STACK; td.update_({'a': [4, 5]})
        td = STACK; td.update_({'c': T([2], start=4), 'z': T([3])})
        td = STACK; td.update_({'z': T([3])})
        td = STACK; td.update_({'a': T([3])})
        td = STACK; td.update_(TensorDict(batch_size=[3]))
        td = STACK; td.update(TensorDict(batch_size=[3]))
        td = STACK; td.update_(lazy_stack([TensorDict()] * 3))
        td = STACK; td.update_(TensorDict(a=T([3, 2]), batch_size=[3]))
        td = STACK; td.update_({'a': T([2], start=4)})
        td = STACK; td.update_({'a': T([2], start=4), 'n': {'d': T([2])}})
        td = STACK; td.update_({'a': T([2], start=4), 'c': 1.0})
        td = STACK; td.update_(TensorDict(n={'d': T([2])}))
        td = lazy_stack([TensorDict(s=1j, n={'s': 2j})] * 2); td.update_({'s': 3j, 'n': {'s': 4j}})
        td = lazy_stack([TensorDict(r=T([2, n]), batch_size=[2]) for n in (1, 2)]).lock_();
            exec('with td.transpose(0, 1) as v: v += 1'); [m['r'] for m in td.tensordicts]
        td = lazy_stack([TensorDict(r=T([2, n]), batch_size=[2]) for n in (1, 2)]).lock_();
            exec('with td.unsqueeze(0) as v: v *= 2'); [m['r'] for m in td.tensordicts]
        td = SQUARE; td.update_({'a': T([3, 3])})
        td = SQUARE; td.update_({'a': T([3])})
        td = RAGGED; td.update_({'a': T([3])})
        td = RAGGED; td.update_({'a': T([], start=4)})
        td = SQUARE; td.apply_(lambda x: x.sum())
        td = SQUARE; td.apply_(lambda x: x.sum(0))
        td = MIXED; td.set_at_('a', T([2]).long(), ([True, True], 1))
        td = MIXED; td.set_at_('a', T([2]).long(), (None, 0))
        td = MIXED; td[:, 1] = T([2]).long()
        td = MIXED; td.contiguous()[0] = TensorDict(a=T([2]), batch_size=[2])
        """.replace(
            "STACK",
            "lazy_stack([TensorDict(c=T([]), a=T([2]), n={'d': T([3])}) for _ in 'ab'])",
        )
        .replace(
            "SQUARE",
            "lazy_stack([TensorDict(a=T([3, 3]), batch_size=[3]) for _ in 'abc'], 1)",
        )
        .replace(
            "MIXED",
            "lazy_stack([TensorDict(a=T([2]).long() + 2**24, batch_size=[2]), "
            "TensorDict(a=T([2]), batch_size=[2])])",
        )
        .replace("RAGGED", "lazy_stack([TensorDict(a=T([n])) for n in (1, 2, 3)])"),
        on="none",
        message=False,
    ),
    *cases(
        "copy_broadcast",
        "\n".join(
            f"td = lazy_stack([DATA, DATA], {dim}); td.{name}(TensorDict("
            f"c=T({size}), n={{'d': T({size})}}, k=Data(T({size}), T({size}), batch_size={size}), "
            f"batch_size={size}))"
            for dim in range(3)
            for size in ([3], [1], [2, 3], [2, 1], [1, 3], [3, 2], [1, 2], [1, 2, 3])
            for name in ("update_", "copy_")
        ).replace(
            "DATA",
            "TensorDict(c=T([2, 3]), n={'d': T([2, 3])}, "
            "k=Data(T([2, 3]), T([2, 3]), batch_size=[2, 3]), batch_size=[2, 3])",
        ),
        on="none",
        message=False,
    ),
    *cases(
        "copy_from_stacks",
        """
        td = DENSE; td.update_(lazy_stack([TensorDict(a=T([]), z=T([]))] * 3))
        td = DENSE; td.update_(lazy_stack([TensorDict(a=T([]), s='text')] * 3))
        td = DENSE; td.update_(lazy_stack([TensorDict(a=T([]), z={})] * 3))
        td = DENSE; td.update_(lazy_stack([TensorDict(a=T([]), z=T([]))] * 3), keys_to_update=['a'])
        td = DENSE; td.update_(lazy_stack([TensorDict(a=T([]), z=T([])), *[TensorDict(a=T([]))] * 2]))
        td = DENSE; td.update_(TensorDict(a=T([3], start=2), z=T([3]), batch_size=[3]))
        td = DENSE; td.update_(lazy_stack([TensorDict(n={'b': T([]), 'z': T([])})] * 3))
        td = DENSE; td.update_({'n': lazy_stack([TensorDict(b=T([]), z=T([]))] * 3)})
        td = DENSE; td.update_(lazy_stack([TensorDict(n={'b': T([], start=7), 'z': T([])})] * 3),
            keys_to_update=[('n', 'b')])
        """.replace(
            "DENSE",
            "TensorDict(a=T([3]), n={'b': T([3]), 'c': T([3])}, batch_size=[3])",
        ),
        on="none",
        message=False,
    ),
    *cases(
        "some_have_it",
        """
        td = lazy_stack([TensorDict(n={'s': T([])}), TensorDict()]); x = td[0]['n', 's'];
            td.set(('n', 's'), T([2], start=4), inplace=True); (td, td[0]['n', 's'] is x)
        td = lazy_stack([TensorDict(n={'s': T([])}), TensorDict()]);
            td.set(('n', 's'), T([2, 2], start=4), inplace=True)
        td = lazy_stack([TensorDict(n={'s': 'x'}), TensorDict()]); td.set(('n', 's'), T([2], start=4), inplace=True)
        td = lazy_stack([TensorDict(n={'d': T([])}),
            TensorDict(n={'d': T([])})]).masked_select(torch.tensor([True, False])); td.grad
        td = lazy_stack([TensorDict(a=T([2]), b=T([2], start=3)), TensorDict(a=T([2]))]); list(td[1:1].keys())
        td = lazy_stack([TensorDict(s='x', b=T([2])), TensorDict(b=T([2]), s='x', c=T([2]))]); list(td[1:1].keys())
        td = lazy_stack([TensorDict(a=T([2]), e={}, r=T([1])), TensorDict(a=T([2]), e={}, r=T([2]),
            d=T([1]))]); td.lerp_(td + 1, 0.5)
        td = lazy_stack([TensorDict(a=T([2]), e={}, r=T([1])), TensorDict(a=T([2]), e={}, r=T([2]),
            d=T([1]))]); td.add_(td + 1)
        td = lazy_stack([TensorDict(a=T([2]), e={}, r=T([1])), TensorDict(a=T([2]), e={}, r=T([2]),
            d=T([1]))]); td.addcmul_(td + 1, td + 1)
        td = lazy_stack([TensorDict(), TensorDict()]); td.split_keys([()])
        """,  # noqa: E501
        on="none",
        message=False,
    ),
    *cases(
        "where_of_unlike",
        """
        td = TensorDict(a=T([2]), n={'c': T([2], start=4)}, batch_size=[2]);
            td.where(torch.tensor([True, False]), TensorDict(a=T([2]), n=T([2]), batch_size=[2]))
        td = TensorDict(a=T([2]), n={'c': T([2], start=4)}, batch_size=[2]);
            td.where(torch.tensor([True, False]), TensorDict(a={'c': T([2], start=5)}, n=T([2]),
            batch_size=[2]))
        td = TensorDict(a=T([2]), n={'c': T([2], start=4)}, batch_size=[2]);
            td.where(torch.tensor([True, False]), TensorDict(a=T([2]), n=T([2, 3]), batch_size=[2]))
        td = lazy_stack([TensorDict(s='x', b=T([2, 3]), batch_size=[2])], 1).contiguous(); td[0] = td[1]; td
        td = TensorDict(a=T([2]), batch_size=[2]); lazy_stack([td,
            TensorDict(batch_size=[2])]).densify().contiguous(canonical=True).batch_size
        """,  # noqa: E501
        on="none",
        message=False,
    ),
    *cases(
        "rows_from_a_list",
        """
        td = lazy_stack([TensorDict(), TensorDict(), TensorDict()]); td['z'] = [T([3]), T([2]), T([3], start=4)]; td
        td = lazy_stack([TensorDict(z=T([3])), TensorDict(z=T([2]))]); td.set('y', td.get('z', as_list=True))
        td = lazy_stack([TensorDict(), TensorDict()]); td['z'] = [[1], [1, 2]]; td
        td = lazy_stack([TensorDict(), TensorDict()]); td['z'] = [T([3]), 'a']; td
        td = lazy_stack([TensorDict(), TensorDict()]); td['n', 'z'] = [T([3]), T([2])]; td
        td = lazy_stack([TensorDict(z=T([3])), TensorDict(z=T([2]))]); x = td[0]['z'];
            td.set_('z', [T([3], start=4), T([2], start=5)]); (td, td[0]['z'] is x)
        td = lazy_stack([TensorDict(z=T([3])), TensorDict(z=T([2]))]);
            td.set('z', [T([3], start=4), T([2], start=5)], inplace=True)
        td = lazy_stack([TensorDict(z=T([3, 2], start=1), batch_size=[3]), TensorDict(z=T([3, 1]),
            batch_size=[3])]); td.set('y', td.get('z', as_list=True))
        td = lazy_stack([TensorDict(batch_size=[2]), TensorDict(batch_size=[2])], 1); td['z'] = [[1, 2], [3, 4]]; td
        td = lazy_stack([TensorDict(batch_size=[2]), TensorDict(batch_size=[2])], 1); td['z'] = ['p', 'q']
        td = lazy_stack([TensorDict(batch_size=[2]), TensorDict(batch_size=[2])], 1); td['z'] = [1, 2, 3]
        x = lazy_stack([TensorDict(batch_size=[2])] * 3, 1); x['z'] = [[1, 2], [3, 4], [3, 5]]
        x = lazy_stack([TensorDict(batch_size=[2])] * 3, 1); x['z'] = [T([2]), T([2, 2]), T([2])]
        td = lazy_stack([TensorDict(batch_size=[2])] * 3, 1); td['z'] = [T([3]), T([3])]; td
        """,  # noqa: E501
        on="none",
        message=False,
    ),
    *cases(
        "stack_of_unlike_stacks",
        """
        a = lazy_stack([TensorDict(a=T([2]), batch_size=[2])] * 2, 1);
            torch.stack([a, lazy_stack([x.clone() for x in a.unbind(0)])], 0)
        a = lazy_stack([TensorDict(a=T([2]), batch_size=[2])] * 2, 1);
            torch.stack([a, lazy_stack([x.clone() for x in a.unbind(0)])], 1).batch_size
        a = lazy_stack([TensorDict(a=T([2]), batch_size=[2])] * 2, 1); torch.stack([a, a.to_tensordict()], 0)
        dense_stack_tds(lazy_stack([TensorDict(a=T([1])), TensorDict(a=T([2]))]))
        dense_stack_tds(lazy_stack([TensorDict(a=T([1])), TensorDict(a=T([1]), x=T([2]))]))
        dense_stack_tds(lazy_stack([TensorDict(a=T([1]), n={'b': T([2])}), TensorDict(a=T([1]), n={'b': T([3])})]))
        dense_stack_tds(lazy_stack([TensorDict(a=T([2]), batch_size=[2]), TensorDict(a=T([2]), batch_size=[2])], 1))
        td = lazy_stack([TensorDict(a=T([2], 'bool'), batch_size=[2])] * 1 + [TensorDict(a=T([2],
            'bool'), batch_size=[2])]); td.update_at_(td[[-2]] * 0, [-2])
        td = lazy_stack([TensorDict(a=T([2, 3]), batch_size=[2]), TensorDict(a=T([2, 3]),
            batch_size=[2])]); td.update_at_(td[:, [1]] * 0, np.s_[:, [1]])
        """,  # noqa: E501
        on="none",
        message=False,
    ),
    *cases(
        "vmap_over_stacks",
        """
        torch.vmap(lambda x: x + 1)(lazy_stack([TensorDict(a=T([2, 3]), batch_size=[2])] * 2, 1))
        torch.vmap(lambda x: x + 1, 1)(lazy_stack([TensorDict(a=T([2, 3]), batch_size=[2]),
            TensorDict(a=T([2, 4]), batch_size=[2])]))
        torch.vmap(lambda x: x.set('b', x['a'] * 2), 1)(lazy_stack([TensorDict(a=T([2, 3]), batch_size=[2])] * 2))
        torch.vmap(lambda x: x + 1, 1)(lazy_stack([TensorDict(a=T([2, 3]), c=T([2]),
            batch_size=[2]), TensorDict(a=T([2, 3]), batch_size=[2])]))
        torch.vmap(lambda x: x['a'].sum())(lazy_stack([TensorDict(a=T([2, 3]), batch_size=[2])] * 2))
        torch.vmap(lambda x: x + 1, 1, 1)(lazy_stack([TensorDict(a=T([2, 3]), batch_size=[2])] * 3))
        torch.vmap(lambda x: x + 1, 1)(lazy_stack([TensorDict(a=T([2, 3]), s=str(i),
            batch_size=[2]) for i in range(3)]))
        """,  # noqa: E501
        on="none",
        message=False,
    ),
    *cases(
        "one_member_with_its_own_keys",
        """
        td = lazy_stack([TensorDict(batch_size=[2]), TensorDict(x=T([2]), batch_size=[2])], 1);
            x = td[:, -1]['x']; td[:, -1:] = td[:, -1:].to_tensordict() * 0;
            (td, td[:, -1]['x'] is x)
        td = lazy_stack([TensorDict(batch_size=[2]), TensorDict(x=T([2]), batch_size=[2])], 1);
            td[:, [-1]] = td[:, [-1]].clone().zero_(); td
        td = lazy_stack([TensorDict(batch_size=[2, 3]), TensorDict(x=T([2, 3]), batch_size=[2, 3])],
            1); td[[-1, -2], -1:, 0] = td[[-1, -2], -1:, 0].to_tensordict() * 0; td
        td = lazy_stack([TensorDict(a=T([1])), TensorDict(a=T([1]), x=T([1]))]); td[1:] = {'x': T([1, 1], start=3)}; td
        td = lazy_stack([TensorDict(a=T([1])), TensorDict(a=T([1]), x=T([1]))]);
            td[1:] = {'a': T([1, 1], start=5), 'x': T([1, 1], start=3)}; td
        td = lazy_stack([TensorDict(a=T([1])), TensorDict(a=T([1]), x=T([1]))]);
            td[torch.tensor([False, True])] = TensorDict(a=T([1, 1], start=5), x=T([1, 1], start=3),
            batch_size=[1]); td
        td = lazy_stack([TensorDict(a=T([1])), TensorDict(a=T([1]), x=T([1]))]); td[1:] = 0; td
        """,  # noqa: E501
        on="none",
        message=False,
    ),
    *cases(
        "update_from_fewer_dims",
        """
        td = lazy_stack([TensorDict(a=T([2, 1]), batch_size=[2])] * 1 + [TensorDict(a=T([2, 1]),
            batch_size=[2])], 1); td.update(TensorDict(a=T([2, 2, 1]), batch_size=[2]))
        td = TensorDict(n=lazy_stack([TensorDict(a=T([2, 1]), batch_size=[2]), TensorDict(a=T([2,
            1]), batch_size=[2])], 1), batch_size=[2]);
            exec("with td.flatten_keys('.') as v: v['n.a'] = T([2, 2, 1], start=4)"); td
        td = TensorDict(n=lazy_stack([TensorDict(a=T([2, 1]), batch_size=[2]), TensorDict(a=T([2,
            1]), batch_size=[2])], 1), batch_size=[2]);
            exec("with td.flatten_keys('.') as v: v['n.z'] = T([2, 2], start=4)"); td
        td = TensorDict(n=lazy_stack([TensorDict(a=T([2, 1]), batch_size=[2]), TensorDict(a=T([2,
            1]), batch_size=[2])], 1), batch_size=[2]);
            exec("with td.flatten_keys('.') as v: v['z'] = T([2, 3])"); td
        td = lazy_stack([TensorDict(c=T([])), TensorDict(c=T([]))]); td.update(TensorDict(c=T([])))
        td = lazy_stack([TensorDict(c=T([])), TensorDict(c=T([]))]); td.update(TensorDict(c=T([2], start=4)))
        td = lazy_stack([TensorDict(c=T([])), TensorDict(c=T([]))]); td.update(TensorDict(c=T([3]), batch_size=[3]))
        """,  # noqa: E501
        on="none",
        message=False,
    ),
    *cases(
        "names_at_index_tensors",
        """
        named()[[-1], range(2)].names
        named()[[0, 1], [0, 1]].names
        named()[[-1], [0, 1]].names
        named()[[-1], range(2), [0, 1]].names
        named()[[0, 1], :, [0, 1]].names
        named()[torch.tensor([[0, 1]])].names
        named()[torch.ones(2, 3, dtype=torch.bool)].names
        named()[None, [0], [0, 1]].names
        """.replace(
            "named()",
            "lazy_stack([TensorDict(a=T([3, 4]), batch_size=[3, 4], names=['p', 'q'])] * 2, 0, stack_dim_name='t')",
        ),  # noqa: E501
        on="none",
    ),
    *cases(
        "nested_classes",
        """
        [type(v).__name__ for v in pad_sequence([lazy_stack([TensorDict(d=Data(a=T([n]),
            batch_size=[n]), batch_size=[n])] * 2) for n in (2, 3)], 1).values()]
        x = pad_sequence([lazy_stack([Data(a=T([n]), n=Inner(z=T([n]), batch_size=[n]),
            batch_size=[n])] * 2) for n in (2, 3)], 1); (type(x), type(x.n), x.a, x.n.z)
        x = pad_sequence([Data(a=T([n]), b=T([n]), batch_size=[n]) for n in (2, 3)],
            out=TensorDict()); (type(x), sorted(x.keys()))
        [type(pad_sequence([TensorDict(s=MetaData('m'), a=T([n]),
            batch_size=[n]) for n in sizes]).get('s')) for sizes in ((2, 2), (2, 3))]
        [type(pad_sequence([TensorDict(s=MetaData(v), a=T([2]),
            batch_size=[2]) for v in texts]).get('s')) for texts in ('mm', 'mk')]
        """,  # noqa: E501
        on="none",
    ),
    *cases(
        "values_in_results",
        """
        td.all(dim=0).get('s').names
        td.any(dim=1).get('s').names
        td.contiguous().all(dim=0).get('s').names
        """.replace(
            "td.",
            "lazy_stack([TensorDict(a=T([3], 'bool'), s='x', batch_size=[3], names=['q'])] * 2).",
        ),
        on="none",
    ),
    *cases(
        "gradients_of_locked_stacks",
        """
        td = lazy_stack([TensorDict(s='x'), TensorDict(a=T([2]))]).lock_().grad;
            (td.is_locked, [each.is_locked for each in td.tensordicts])
        td = lazy_stack([TensorDict(s='x'), TensorDict(a=T([2]))]).grad;
            (td.is_locked, [each.is_locked for each in td.tensordicts])
        """,  # noqa: E501
        on="none",
    ),
    *cases(
        "struct_arrays_of_columns",
        "\n".join(
            f"td = TensorDict(c=T([2]), batch_size=[2]); td.set('s', NonTensorStack({values})); td = td.to_struct_array(); (td.dtype, td['s'].tolist(), [str(value) for value in from_struct_array(td)['s']])"  # noqa: E501
            for values in (
                "{1}, {2}|'a', 'b'|1, 2|1, 2.5|1, 'b'|None, 'b'|'x' * 20, 'b'|True, False"
                "|{'a': 1}, {'a': 1}|[1, 2], [3, 4]"
            ).split("|")
        ),
        on="none",
    ),
    *cases(
        "short_text_of_nested_stacks",
        "\n".join(
            f"exec('with set_printoptions(compact=True): r = repr({stack})'); r".replace(
                "inner()", "lazy_stack([TensorDict(c=T([2]), batch_size=[2])] * 2)"
            )
            for stack in (
                "lazy_stack([TensorDict(n=inner(), batch_size=[2])] * 2)",
                "lazy_stack([TensorDict(n=inner(), batch_size=[2]), TensorDict(n=inner().contiguous(), batch_size=[2])])",
                "lazy_stack([TensorDict(n=inner().contiguous(), batch_size=[2]), TensorDict(n=inner(), batch_size=[2])])",
                "lazy_stack([TensorDict(n=TensorDict(m=inner(), batch_size=[2]), batch_size=[2])] * 2, 1)",
                "lazy_stack([lazy_stack([TensorDict(n=inner(), batch_size=[2])])] * 2, 1)",
                "lazy_stack([TensorDict(n=Sub(a=T([2]), batch_size=[2]), batch_size=[2])] * 2)",
                "lazy_stack([Data(a=T([2]), b=Sub(c=T([2]), batch_size=[2]), batch_size=[2])] * 2)",
            )
        ),
        on="none",
    ),
]
