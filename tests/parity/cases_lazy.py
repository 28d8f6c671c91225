"""Lazy stacks: members, ragged entries, exclusive keys, and the vocabulary on all of them."""

from frame import cases

STACKS = "lazy lazy_last lazy_inner"
ALL = STACKS + " lazy_ragged lazy_hetero"

RAGGED = (
    "s = LazyStackedTensorDict(TensorDict(b=T([1]), a=T([3])), TensorDict(b=T([1]), a=T([2]))); "
    "d = TensorDict(q=T([1]), n=s); "
)

CASES = [
    *cases(
        "items",
        f"""
        {RAGGED}next(iter(s.values()))
        {RAGGED}next(iter(s.items()))
        {RAGGED}next(iter(s.values(True, True)))
        {RAGGED}any(isinstance(v, LazyStackedTensorDict) for v in d.values(True))
        {RAGGED}i = iter(d.items(True)); [next(i), next(i)[0], next(i)]
        {RAGGED}i = iter(d.values(True, True)); [next(i), next(i)]
        {RAGGED}i = iter(d.values(True, True)); [next(i), next(i), next(i)]
        {RAGGED}list(d.items(True))
        {RAGGED}list(s.values())
        """,  # noqa: E501
        on="none",
    ),
    *cases(
        "lazy_stack",
        """
        td
        td.batch_size, td.stack_dim, td.names, td.device, td.is_locked
        list(td.keys())
        list(td.keys(True))
        list(td.keys(True, True))
        [type(x).__name__ for x in td.tensordicts]
        td.get_item_shape('a')
        td.get_item_shape(('n', 'b'))
        td.get('a')
        td['a']
        td.get('a', as_list=True)
        td.get('a', 'default')
        td.get('missing')
        td.get('missing', 1)
        td['missing']
        td.get(('n', 'b'))
        td['n']
        td.get('n', as_list=True)
        'a' in td.keys(), ('n', 'b') in td.keys(True), 'missing' in td.keys()
        td.is_empty(), td.numel(), td.ndim, len(td)
        td.entry_class('a')
        """,
        on=ALL,
        message=False,
    ),
    *cases(
        "getitem",
        """
        td[0]
        td[-1]
        td[:1]
        td[...]
        td[..., 0]
        td[None]
        td[:, 0]
        td[0, 1]
        td[torch.tensor([1, 0])]
        td[[0, 1], 0]
        td[:, torch.tensor([[0, 1], [1, 0]])]
        td[torch.tensor([True, False])]
        td[range(1)]
        td[5]
        td[0, 0, 0, 0]
        td[0] is td.tensordicts[0]
        """,
        on=STACKS,
        message=False,
    ),
    *cases(
        "setitem",
        """
        td['a'] = td['a'] * 2
        td['z'] = T([*td.batch_size, 2])
        td['n', 'z'] = T([*td.batch_size])
        td['z'] = T([7])
        td[0] = td[1].clone()
        td[0] = 1
        td[:, 0] = 2
        td[torch.tensor([1, 0])] = td.clone()
        td.set_('a', td['a'] + 1)
        td.set_('missing', 1)
        td.set_at_('a', 1, 0)
        td.fill_('a', 3)
        td.zero_()
        td.update(td + 1)
        td.update({'a': td['a'] + 1, 'n': {'y': T([*td.batch_size])}})
        td.update_(td * 2)
        td.update_at_(td[0], 1)
        del td['a']
        del td['missing']
        td.pop('a')
        td.rename_key_('a', 'z')
        td.rename_key_('missing', 'z')
        td.append(td[0].clone())
        td.insert(0, td.tensordicts[0].clone())
        td.extend([td.tensordicts[0].clone()])
        td.append(TensorDict({}, [9]))
        td.append(3)
        """,
        on="lazy lazy_last",
        message=False,
    ),
    *cases(
        "shapes",
        """
        td.permute(*range(td.ndim - 1, -1, -1))
        td.transpose(0, 1)
        td.unsqueeze(0)
        td.unsqueeze(-1)
        td.squeeze()
        td.view(-1)
        td.reshape(-1)
        td.flatten(0, 1)
        td.unflatten(0, (1, -1))
        td.expand(2, *td.shape)
        td.repeat(*[2] * td.ndim)
        td.split(1, 0)
        td.chunk(2, 1)
        td.unbind(0)
        td.unbind(1)
        td.gather(0, torch.zeros(1, *td.shape[1:], dtype=torch.int64))
        td.roll(1, 0)
        td.flip(0)
        td.to_lazystack(0)
        td.atleast_3d()
        """,
        on=STACKS,
        message=False,
    ),
    *cases(
        "vocabulary",
        """
        td + 1
        td + td
        td * torch.ones(td.shape)
        -td
        td == td
        (td == td).all()
        td.apply(lambda x: x + 1)
        td.named_apply(lambda name, x: x + len(name))
        td.apply(lambda x: None)
        td.clone()
        td.clone(False)
        td.to(torch.float64)
        td.select('n')
        td.exclude('a')
        td.empty()
        torch.stack([td, td])
        torch.cat([td, td])
        torch.zeros_like(td)
        td.lock_().is_locked, td.tensordicts[0].is_locked
        td.lock_().unlock_()
        td.lock_().append(td[0])
        pickle.loads(pickle.dumps(td))
        """,
        on=ALL,
        message=False,
    ),
    *cases(
        "dense",
        """
        td.contiguous()
        td.to_tensordict()
        td.sum(0)
        td.sum()
        td.max(0)
        td.any(0)
        td.where(td['a'] > 0, td + 1)
        td.masked_fill(torch.ones(td.shape, dtype=torch.bool), 0)
        td.masked_select(torch.ones(td.shape, dtype=torch.bool)).batch_size
        td.flatten_keys('.')
        td.to_dict()
        td.state_dict()
        """,
        on="lazy lazy_last",
        message=False,
    ),
    *cases(
        "ragged",
        """
        td.get('a', as_padded_tensor=True)
        td.get('a', as_padded_tensor=True, padding_value=-1, padding_side='left')
        td.get('a', as_nested_tensor=True)
        td.get('a', as_nested_tensor=True, layout=torch.strided)
        td.densify()
        td.densify(layout=torch.jagged)
        td[:1]
        td[torch.tensor([1, 0])]
        td.contiguous()
        td.to_dict()
        td.lock_()
        """,
        on="lazy_ragged",
        message=False,
        ordered=False,
    ),
    *cases(
        "lazy_stack",
        """
        tensordict.lazy_stack([])
        tensordict.lazy_stack([TensorDict({}, [2])], 3)
        tensordict.lazy_stack([TensorDict({}, [2])], -1).stack_dim
        tensordict.lazy_stack([TensorDict({}, [2]), 1])
        tensordict.lazy_stack([TensorDict({}, [2]), TensorDict({}, [3])]).batch_size
        tensordict.lazy_stack([TensorDict({}, [2]), TensorDict({}, [2, 3])])
        tensordict.lazy_stack([TensorDict({}, [2])], stack_dim_name='t').names
        tensordict.lazy_stack([T([2]), T([2])])
        tensordict.maybe_dense_stack([TensorDict({'a': T([2])}), TensorDict({'a': T([3])})])
        LazyStackedTensorDict(stack_dim=0).batch_size
        LazyStackedTensorDict(TensorDict({}, [2]), stack_dim=1).batch_size
        LazyStackedTensorDict(TensorDict({}, [2]), batch_size=[7])
        TensorDict.from_list([{'a': 1}, {'b': 2}], lazy=True)
        """,
        on="none",
        message=False,
    ),
    *cases(
        "split_keys",
        """
        [[list(m.keys(True)) for m in x.tensordicts] for x in td.split_keys(['a'], ['n'])]
        [[list(m.keys(True)) for m in x.tensordicts] for x in td.split_keys([('n', 'b')])]
        td.split_keys(['missing'])
        td.split_keys([('n', 'b')], [('n', 'b')])
        [list(x.keys(True)) for x in td.split_keys(['a'], inplace=True)]
        list(td.separates('a').keys(True)), list(td.keys(True))
        td.separates('missing')
        """,
        on=STACKS,
        message=False,
    ),
    *cases(
        "update",
        """
        td.update(td.clone() * 0, keys_to_update=['a'])
        td.update(td.clone() * 0, keys_to_update='a')
        td.update(td.clone() * 0, keys_to_update=('a', 'n'))
        td.update_at_(td[:1] * 0, slice(0, 1), keys_to_update=['a'])
        td.replace(td.clone() * 0)
        """,
        on="lazy lazy_ragged",
        message=False,
    ),
    *cases(
        "lazy_stack",
        """
        tensordict.lazy_stack([td, td.clone()]).get_item_shape('a')
        list(tensordict.lazy_stack([td, td.clone()]).keys())
        'a' in tensordict.lazy_stack([td, td.clone()]).keys()
        tensordict.lazy_stack([td, td.clone()]).get('a', as_list=True)
        tensordict.lazy_stack([td, td.clone()]).get('a', as_padded_tensor=True)
        tensordict.lazy_stack([td, td.clone()]).get('a', as_nested_tensor=True)
        """,
        on="lazy lazy_ragged",
        message=False,
    ),
    *cases(
        "reshape",
        """
        RAGGED.reshape(-1)['a']
        RAGGED.flatten(0, 1)['a']
        RAGGED.flatten()['a']
        RAGGED.reshape(2, 1, -1).batch_size
        RAGGED.unflatten(0, (1, 2)).batch_size
        RAGGED.unflatten(1, (1, -1)).batch_size
        RAGGED.view(-1)
        RAGGED.reshape(3)
        """.replace(
            "RAGGED",
            "tensordict.lazy_stack("
            "[TensorDict({'a': T([n, 2])}, [n]) for n in (1, 2)])",
        ),
        on="none",
        message=False,
    ),
    *cases(
        "unflatten",
        """
        td = td.unflatten(0, (-1, 1)); td['z'] = T(list(td.shape))
        td = td.unflatten(1, (-1, 1)); td['z'] = T(list(td.shape))
        td = td.unflatten(0, (1, -1, 1)); td['z'] = T(list(td.shape))
        td = td.unflatten(-1, (1, -1)); td['z'] = T(list(td.shape))
        """,
        on=STACKS,
    ),
    *cases(
        "view",
        "td.names = ['s', 't']; td.view(-1).names; td[0].view(-1).names",
        on="lazy lazy_last",
        message=False,
    ),
    *cases(
        "apply",
        """
        td.apply(lambda x: None, device='cpu')
        td.apply(lambda x: None if x.shape[-1] == 2 else x, device='cpu')
        """,
        on=STACKS + " lazy_hetero",
    ),
    *cases(
        "__getitem__",
        """
        td[1:1].clone()
        td[torch.zeros(2, dtype=torch.bool)]
        td[[]]
        """,
        on="lazy_hetero lazy",
        message=False,
    ),
    *cases(
        "contiguous",
        """
        TensorDict({'x': td}, [2]).contiguous()
        TensorDict({'x': td}, [2]).exclude('y').contiguous()
        TensorDict({'x': TensorDict({'y': td}, [2])}, [2]).contiguous()
        """,
        on=STACKS + " lazy_ragged lazy_hetero lazy_text",
        message=False,
    ),
    *cases(
        "update",
        """
        o = TensorDict({'x': td.contiguous()}, [2]); o.update(TensorDict({'x': td}, [2]))
        o = TensorDict({'x': td.contiguous() * 0}, [2]); o.update({'x': td})
        o = TensorDict({'x': td.contiguous() * 0}, [2]); o.update({'x': td}, inplace=True)
        o = TensorDict({'x': td.contiguous()}, [2]); o.update({'x': td}, clone=True); o.zero_()
        """,  # noqa: E501
        on=STACKS + " lazy_hetero lazy_text",
        message=False,
    ),
    *cases(
        "update",
        """
        o = TensorDict({'x': {'q': T([2])}}, [2]); o.update({'x': td})
        o = TensorDict({'x': {}}, [2]); o.update({'x': td})
        """,
        on="lazy lazy_hetero lazy_text",
        message=False,
    ),
    *cases(
        "update_",
        "o = TensorDict({'x': td.contiguous() * 0}, [2]); o.update_({'x': td})",
        on=STACKS,
        message=False,
    ),
    *cases(
        "__getitem__",
        "td.names = ['s', None]; [td[1:1].names, td[[]].names, td[:, :0].names]",
        on="lazy",
        message=False,
    ),
    *cases(
        "update",
        """
        td.update(TensorDict({'z': {'q': T([2, 3, 1]), 'p': T([2, 3])}}, [2, 3]),
            keys_to_update=[('z', 'p'), ('z', 'q')])
        td.update({'z': {'q': T([2, 3, 1]), 'p': T([2, 3])}}, keys_to_update=[('z', 'p'), ('z', 'q')])
        """,  # noqa: E501
        on="lazy flat empty",
        message=False,
    ),
]

CASES += cases(
    "ragged",
    "td.to_dict()",
    on="lazy_ragged",
    reason="the release cannot stack entries that differ in shape",
    ours="[row.shape for row in result['a']] == [each['a'].shape for each in td.unbind(0)]",
)

HELPERS = (RAGGED,)
"""The beginnings of programs: answers go by what follows them."""
