"""Functions of several collections."""

from frame import cases

LONG = "A = TensorDict(a=T([4, 2]), n={'b': T([4, 2, 3])}, batch_size=[4]); "
SHORT = "B = TensorDict(a=T([4, 1]), n={'b': T([4, 5, 3])}, batch_size=[4]); "
ONE = "A = TensorDict(a=T([2]), n={'x': T([2, 3])}, batch_size=[2]); "
TWO = "B = TensorDict(b=T([2]), n={'y': T([2, 3])}, batch_size=[2]); "
THREE = "C = TensorDict(a=T([2]) * 5, n={'x': T([2, 3]) * 2}, batch_size=[2]); "
S2 = "A = TensorDict(a=T([2])); "
S3 = "B = TensorDict(a=T([3])); "

CASES = [
    *cases(
        "pad",
        """
        pad(td, [1, 2])
        pad(td, (1, 2), value=2.0)
        pad(td, [1, 2, 0, 1], 2)
        pad(td, [0, 0, 0, 1])
        pad(td, [-1, 0])
        pad(td, [0, 0])
        pad(td, [])
        pad(td, [1])
        pad(td, [1, 2, 3, 4, 5, 6])
        pad(td, [-5, 0])
        pad(td, 3)
        td.pad([1, 2])
        td.pad(pad_size=[1, 2], value=3)
        """,
        on="flat nested deep scalar zero locked named cpu subclass sub one empty_nested "
        "nested_subclass mixed",
    ),
    *cases("pad", "pad(td, [1, 2])", on="empty"),
    *cases(
        "pad",
        "pad(td, [-5, 0])",
        on="empty",
        reason="the release makes a batch size of -3",
        ours="isinstance(error, RuntimeError)",
    ),
    *cases(
        "pad",
        "td.pad([1, 2], inplace=True)\npad(td, [1], inplace=True)",
        on="flat nested deep named locked one",
    ),
    *cases("pad", "pad(td, [1, 2])['a'].requires_grad", on="grad"),
    *cases(
        "pad_sequence",
        """
        pad_sequence([td, td])
        pad_sequence((td, td[:1]))
        pad_sequence([td, td[:1]], return_mask=True)
        pad_sequence([td, td[:1]], return_mask='m')
        pad_sequence([td, td[:1]], return_mask=('m', 'q'))
        pad_sequence([td, td[:1]], padding_value=7.0)
        pad_sequence([td, td[:1]], padding_value={'a': 7.0})
        pad_sequence([td, td[:1]], padding_side='left', return_mask=True)
        pad_sequence([td])
        """,
        on="one nested deep named locked cpu sub empty scalar zero",
        ordered=False,
    ),
    *cases(
        "pad_sequence",
        """
        pad_sequence([td, td[:, :2]])
        pad_sequence([td, td[:, :2]], pad_dim=1)
        pad_sequence([td, td[:, :2]], pad_dim=1, return_mask=True)
        pad_sequence([td, td[:1, :2]])
        pad_sequence([td, td[:1]], pad_dim=2)
        pad_sequence([td, td[:1]], padding_side='foo')
        pad_sequence([td, td[:1]], return_mask='a')
        pad_sequence([td, td.exclude('a')])
        pad_sequence([td.exclude('a'), td])
        """,
        on="nested",
        ordered=False,
        message=False,
    ),
    *cases(
        "pad_sequence",
        f"""
        pad_sequence([])
        {LONG}{SHORT}pad_sequence([A, B], pad_dim=1, return_mask=True)
        {LONG}{SHORT}pad_sequence([A, B], pad_dim=-1)
        {S2}{S3}pad_sequence([A, B])
        {S2}{S3}pad_sequence([A, B], return_mask=True)
        {S2}pad_sequence([A, TensorDict(a=T([2]).double())])
        {S2}pad_sequence([A, TensorDict(a={{'b': T([2])}})])
        {S2}{S3}pad_sequence([A, B], out=TensorDict({{}}, [2]))
        {S2}{S3}oo = TensorDict(a=T([2, 3])); pad_sequence([A, B], out=oo) is oo
        {S2}{S3}oo = TensorDict(a=T([2, 3])); x = oo['a']; pad_sequence([A, B], out=oo); x
        {S2}{S3}pad_sequence([A, B], out=TensorDict({{}}, [2]).lock_())
        pad_sequence([TensorDict(a=T([2], 'bool')), TensorDict(a=T([3], 'bool'))], padding_value=1.0)
        pad_sequence([TensorDict(a=T([2], 'int64')), TensorDict(a=T([3], 'int64'))], padding_value=1.5)
        pad_sequence([TensorDict(a=T([2]), z=T([3])), TensorDict(z=T([1]), a=T([2]))])
        pad_sequence([3, 4])
        """,
        on="none",
        ordered=False,
        message=False,
    ),
    *cases(
        "pad_sequence",
        "pad_sequence([td, td[:1]], padding_value={'zz': 7.0})",
        on="nested",
        message=False,
    ),
    *cases(
        "pad_sequence",
        LONG + SHORT + "pad_sequence([A, B], pad_dim=-2)",
        on="none",
        reason="the release repeats the values of a leaf that differs along another dim",
        ours="isinstance(error, RuntimeError)",
    ),
    *cases(
        "merge_tensordicts",
        f"""
        {ONE}{TWO}merge_tensordicts(A, B)
        {ONE}{TWO}merge_tensordicts(A, B)['a'] is A['a'], merge_tensordicts(A, B)['n'] is A['n']
        {ONE}{THREE}merge_tensordicts(A, C)
        {ONE}{THREE}merge_tensordicts(A, C, callback_exist=lambda *v: sum(v))
        {ONE}{THREE}merge_tensordicts(A, C, C, callback_exist=lambda *v: v[-1])
        {ONE}{THREE}merge_tensordicts(A, C, callback_exist={{'a': lambda *v: sum(v)}})
        {ONE}{THREE}merge_tensordicts(A, C, callback_exist={{('n', 'x'): lambda x, y: y}})
        {ONE}{THREE}merge_tensordicts(A, C, callback_exist={{'zz': lambda *v: sum(v)}})
        {ONE}{THREE}merge_tensordicts(A, C, callback_exist=3)
        {ONE}{THREE}merge_tensordicts(A, C, callback_exist=lambda x: x)
        {ONE}merge_tensordicts(A)
        merge_tensordicts()
        {ONE}merge_tensordicts(A, TensorDict(z=T([3]), batch_size=[3]))
        {ONE}merge_tensordicts(A, TensorDict(z=T([2, 3]), batch_size=[2, 3]))
        {ONE}merge_tensordicts(TensorDict(z=T([2, 3]), batch_size=[2, 3]), A)
        {ONE}{TWO}merge_tensordicts(A.lock_(), B)
        {TWO}merge_tensordicts(TensorDict(a=T([2]), batch_size=[2], names=['x']), B)
        {TWO}merge_tensordicts(Sub(a=T([2]), batch_size=[2]), B)
        {TWO}merge_tensordicts(B, Sub(a=T([2]), batch_size=[2]))
        {ONE}merge_tensordicts(TensorDict(n=T([2])), A)
        {ONE}merge_tensordicts(A, TensorDict(n=T([2])))
        {ONE}merge_tensordicts(TensorDict(a=T([2]), device='cpu'), A)
        merge_tensordicts(TensorDict(n={{}}, a=1), TensorDict(m={{'p': {{}}}}))
        """,
        on="none",
    ),
    *cases(
        "merge_tensordicts",
        "merge_tensordicts(td, td.clone())\nmerge_tensordicts(td, td)",
        on="nested deep named locked cpu sub nested_subclass",
    ),
    *cases(
        "collate",
        f"""
        {ONE}collate([A, A.clone()])
        {S2}{S3}collate([A, B], pad_keys={{'a': 0.0}})
        collate([TensorDict(a=T([2]), b=1), TensorDict(a=T([3]), b=2)], pad_keys={{'a': -1.0}}, mask_key='m')
        collate([TensorDict(a=T([2]), b=1), TensorDict(a=T([3]), b=2)], pad_keys={{'a': -1.0}}, mask_key=('m', 'q'))
        {S2}{S3}collate([A, B], pad_keys={{'zz': 0.0}})
        {S2}{S3}collate([A, B], pad_keys={{'a': 0.0}}, nested_keys=['a'])
        {S2}{S3}collate([A, B], mask_key='m')
        {S2}{S3}collate([A, B], pad_keys={{'a': 0.0}}, mask_key='a')
        {ONE}collate([A, A], pad_keys={{'a': 0.0}})
        collate([{{'a': T([2])}}, {{'a': T([2])}}])
        collate([T([2]), T([2])])
        collate([1, 2])
        collate(['x', 'y'])
        collate([(T([2]), 1), (T([2]), 2)])
        collate([])
        collate(3)
        {ONE}collate(A) is A
        collate([Pair(1, 2), Pair(3, 4)])
        collate([[1, 2], [3, 4]])
        collate([[1, 2], [3]])
        collate([{{'x': TensorDict(a=T([2])), 'y': (1, 2)}}, {{'x': TensorDict(a=T([2])), 'y': (1, 2)}}])
        collate([{{'x': TensorDict(a=T([2]))}}, {{'x': TensorDict(a=T([3]))}}], pad_keys={{'a': 0}})
        collate([collections.OrderedDict(a=1), collections.OrderedDict(a=1)])
        collate([np.zeros(2), np.zeros(2)])
        collate([None, None])
        collate([Sub(a=T([2])), Sub(a=T([2]))])
        {S2}{S3}collate([A, B], nested_keys=['a'])['a'].unbind()
        """,
        on="none",
    ),
    *cases(
        "group_by",
        """
        group_by(TensorDict(k=torch.tensor([1, 0, 1, 2]), v=T([4, 2]), batch_size=[4]), 'k')
        group_by(TensorDict(k=T([4]), v=T([4, 2]), batch_size=[4]), 'v')
        group_by(TensorDict(k=T([4]), batch_size=[4]), 'zz')
        group_by(TensorDict(k=T([2, 3])), 'k')
        group_by(TensorDict(k=T([2, 3]), batch_size=[2, 3]), 'k')
        group_by(TensorDict(k=T([0]), batch_size=[0]), 'k')
        group_by(TensorDict(n={'k': torch.tensor([1., 1.])}, batch_size=[2]), ('n', 'k'))
        group_by(TensorDict(n={'k': torch.tensor([1., 1.])}, batch_size=[2]), 'n')
        group_by(TensorDict(k=torch.tensor([float('nan'), float('nan'), 1.]), batch_size=[3]), 'k')
        group_by(TensorDict(k=torch.tensor([True, False]), batch_size=[2]), 'k')
        group_by(TensorDict(k=torch.tensor([1, 0, 1]), batch_size=[3], names=['x']), 'k')
        group_by(TensorDict(k=torch.tensor([1, 0, 1]), batch_size=[3]).lock_(), 'k')
        """,
        on="none",
    ),
    *cases(
        "dense_stack_tds",
        """
        dense_stack_tds([td, td], 1)
        dense_stack_tds([td, td], dim=0)
        dense_stack_tds((td, td), -1)
        dense_stack_tds([td, td])
        dense_stack_tds([td, td], 5)
        dense_stack_tds(td)
        """,
        on="nested named locked subclass",
    ),
    *cases(
        "from_modules lazy",
        """
        from torch import nn; p = TensorDict.from_modules(*[nn.LazyLinear(2) for _ in range(3)]);
            (p.batch_size, p.is_locked, [type(v).__name__ for v in p.values()],
            [v.batch_size for v in p.values()])
        from torch import nn; p = TensorDict.from_modules(*[nn.LazyLinear(2) for _ in range(3)],
            as_module=True); (type(p), [(k, type(v).__name__) for k, v in p.named_parameters()])
        from torch import nn; p = TensorDict.from_modules(*[nn.LazyBatchNorm1d() for _ in
            range(3)]); [(k, type(v).__name__) for k, v in p.items()]
        from torch import nn; p = TensorDict.from_modules(*[nn.LazyLinear(2) for _ in range(3)]);
            p['weight'].materialize((2, 5)); (p['weight'].shape, type(p['weight']))
        """,
        on="none",
    ),
]

HELPERS = (LONG, ONE, TWO, S2)
"""The beginnings of programs: answers go by what follows them."""
