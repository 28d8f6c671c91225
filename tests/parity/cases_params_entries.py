"""Parameters: cases that random comparisons found."""

from frame import cases

CASES = [
    *cases(
        "from_any",
        """
        TensorDict.from_tuple((T([2]), T([2, 3])), batch_size=2)
        TensorDict.from_namedtuple(Pair(T([2, 3]), T([2])), batch_size=2)
        TensorDict.from_pytree({'a': [T([2]), T([2])]}, batch_size=2)
        TensorDict.from_pytree({'a': [T([2]), T([2])]}, batch_size=[], auto_batch_size=True)
        TensorDict.from_pytree({'a': [T([2, 3])]}, batch_size=[2], auto_batch_size=True)
        TensorDict.from_any((T([2]), T([2, 3])), batch_size=2)
        TensorDict.from_any({'a': T([2])}, batch_size=[2], auto_batch_size=True)
        TensorDict.from_any((T([2]),), batch_size=[2], auto_batch_size=True)
        TensorDict.from_any(Pair(T([2]), T([2])), batch_size=[], auto_batch_size=True)
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], batch_size=2)
        TensorDict.from_list([td, td], device='nope')
        TensorDict.from_struct_array(np.zeros((2, 3), dtype=[('a', 'f4', (2,)), ('b', 'i8')]), batch_size=2)
        TensorDict.from_struct_array(np.zeros((2, 3), dtype=[('a', 'f4', (2,)), ('b', 'i8')]),
            batch_size=[2], auto_batch_size=True)
        TensorDict.from_tuple((T([2]),), auto_batch_size=True, batch_size=[2])
        TensorDict.from_tuple((T([2]),), auto_batch_size=True, batch_size=())
        TensorDict.from_namedtuple(Pair(1, 2), auto_batch_size=True, batch_size=[])
        TensorDict.from_dict({'a': T([4, 2])}, auto_batch_size=False, batch_dims=1)
        TensorDict.from_dict({'a': T([4, 2])}, batch_dims=1)
        td.from_dict_instance({'a': T([4, 2])}, auto_batch_size=False, batch_dims=1)
        """,
        on="flat",
    ),
    *cases(
        "stack",
        """
        stack([])
        stack([], out=TensorDict())
        torch.stack([], out=TensorDict())
        cat([])
        cat([], out=TensorDict())
        torch.cat([], out=TensorDict())
        maybe_dense_stack(td)
        maybe_dense_stack(td, 1)
        TensorDict.maybe_dense_stack(td, 1)
        """,
        on="flat",
    ),
    *cases(
        "fill_",
        """
        td.fill_('a', T([2, 3]))
        td.fill_('a', T([1]))
        td.fill_('a', torch.tensor(2.0))
        td.clamp(out=td.clone())
        td.repeat_interleave(2, inplace=True)
        td.get_at('a', 0, 1, 2)
        unpad_sequence(TensorDict(), torch.tensor(True))
        """,
        on="flat nested",
    ),
    *cases(
        "setdefault",
        """
        td.setdefault(['b'], 1)
        td.setdefault((), 1)
        td.setdefault(('b', 1), 1)
        """,
        on="flat",
        message=False,
    ),
    *cases("stack", "TensorDict.stack([])", on="none", message=False),
    *cases("cat", "TensorDict.cat([])", on="none", message=False),
    *cases(
        "max",
        """
        TensorDict(a=T([2, 3])).max(keepdim=True, reduce=True)
        TensorDict(a=T([2, 3])).min(keepdim=True, reduce=True)
        """,
        on="none",
    ),
    *cases(
        "sum",
        """
        td.sum(0, key_transform=lambda k: k + '1')
        td.mean('feature', key_transform=str)
        td.norm(key_transform=str)
        td.norm(key_transform=lambda k: k + '1')
        TensorDict(d=Data(T([2]), s='x', batch_size=[2]), batch_size=[2]).sum(0, key_transform=str)
        Data(T([2]), s='x', batch_size=[2]).sum(0, key_transform=str)
        Data(T([2]), b=T([2]), batch_size=[2]).sum(0, key_transform=lambda k: 'ba'['ab'.find(k)])
        Data(T([2]), s='x', batch_size=[2]).sum(0, key_transform=lambda k: k + '1')
        lazy_stack([Data(T([2]), batch_size=[2])] * 2).sum(1, key_transform=str)
        TensorDict(a=T([2]), s='x', m=MetaData('m'), batch_size=[2]).sum(0, key_transform=str)
        TensorDict(a=T([2]), s='x', m=MetaData('m'), batch_size=[2]).norm(key_transform=str)
        """,
        on="nested locked",
        message=False,
    ),
    *cases(
        "stack_tensors",
        """
        td.stack_tensors('a', out_key='b', dim=-1)
        td.stack_tensors('a', out_key='a', dim=-1)
        td.cat_tensors('a', out_key='b', dim=-1)
        """,
        on="flat sub",
    ),
    *cases(
        "stack_tensors",
        "td.cat_tensors('a', out_key=('b', 'z'), dim=-1)",
        on="flat sub",
        message=False,
    ),
    *cases(
        "stack_tensors",
        """
        td.stack_tensors('a', ('n', 'b'), out_key='n')
        td.stack_tensors(('n', 'b'), out_key='n', dim=-1)
        td.stack_tensors(('n', 'b'), out_key=('n', 'z'), dim=-1)
        td.stack_tensors(('n', 'b'), out_key=('n', 'b', 'z'), dim=-1)
        """,
        on="nested",
    ),
    *cases(
        "addcdiv",
        """
        td.addcdiv(T([2, 3]), td + 1).is_locked
        td.addcmul(T([2, 3]), td).is_locked
        td.addcmul(T([2, 3]), T([2, 3])).is_locked
        td.lerp(T([2, 3]), td).is_locked
        td.lerp(T([2, 3]), T([2, 3])).is_locked
        """,
        on="locked",
        message=False,
    ),
    *cases(
        "prod",
        "TensorDict(a=T([2]), c=T([])).prod(keepdim=True)",
        on="none",
        reason="the release keeps as many dims as there are batch dims; see differences.md",
        ours="result['a'].shape == (1,)",
    ),
]
