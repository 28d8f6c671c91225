"""Arguments that are given rarely, by method."""

from __future__ import annotations

from frame import SOME, cases

CASES = [
    *cases(
        "gather",
        """
        td.gather(0, torch.tensor([1]), inplace=True)
        td.gather(0, torch.tensor([[0, 1, 0]]), inplace=True)
        td.gather(0, torch.tensor([[0.5]]))
        td.gather(0, torch.tensor([[0, 1, 0]], dtype=torch.int32))
        td.gather(0, torch.tensor([[0, 1, 0]], dtype=torch.int16))
        td.gather(0, torch.tensor([[False, True, True]]))
        td.gather(0, [0])
        td.gather(0, torch.tensor([1]), out=td.clone(), inplace=True)
    """,
        on="flat nested locked",
    ),
    *cases(
        "repeat_interleave",
        """
        td.repeat_interleave(2, 0, output_size=4)
        td.repeat_interleave(2, 0, output_size=5)
        td.repeat_interleave(2, output_size=12)
        td.repeat_interleave(torch.tensor([1, 2]), 0, output_size=3)
        td.repeat_interleave(torch.tensor([1, 2]), 0, output_size=2)
    """,
        on="flat nested locked",
    ),
    *cases(
        "repeat_interleave",
        """
        td.repeat_interleave(2, -1)
        td.repeat_interleave(torch.tensor([2]), -1)
        td.repeat_interleave(2, 0)
        td.repeat_interleave(2, 1)
        td.repeat_interleave(2, 0, inplace=True)
    """,
        on="scalar",
    ),
    *cases(
        "view",
        """
        td.view([3, 2], size=[6])
        td.view(3, 2, size=[6])
        td.view(6, size=(3, 2))
        td.view(3, 2, batch_size=[6])
    """,
        on="flat nested locked",
    ),
    *cases("view", "td.view(torch.int32)", on="sub"),
    *cases(
        "rot90",
        """
        td.rot90(1, (0,))
        td.rot90(1, ())
        td.rot90(1, (0, 1, 2))
        td.rot90(-1, [0, 1])
    """,
        on="flat",
    ),
    *cases(
        "movedim",
        """
        td.movedim((0,), (0, 1))
        td.movedim((0, 7), (0,))
        td.movedim((0, 7), (0, 1))
    """,
        on="flat scalar one",
    ),
    *cases(
        "contiguous",
        """
        td.lock_().contiguous(canonical=True, inplace=True) is td
        td.lock_().contiguous(inplace=True) is td
        td.transpose(0, 1).lock_().contiguous(inplace=True)
        td.transpose(0, 1).lock_().contiguous(canonical=True, inplace=True)
        td.transpose(0, 1).contiguous(canonical=True, inplace=True)
    """,
        on="flat nested",
    ),
    *cases(
        "separates",
        """
        td.separates('zz', default=2)
        td.separates('zz', default=None)
        td.separates('zz', default='text')
        td.separates('zz', default=T([2, 3]))
        td.separates('zz', default=T([3]))
        td.separates('zz', ('n', 'yy'), default=2)
        td.separates('a', 'zz', default=2, strict=False)
        td.separates('zz', strict=False)
    """,
        on="flat nested",
    ),
    *cases(
        "refine_names",
        """
        td.refine_names('p', 'q', 'r')
        td.refine_names(None, 'q', 'r')
        td.refine_names('x', 'y', 'r')
    """,
        on="named flat",
    ),
    *cases(
        "update",
        """
        td.update(td[:1].clone(), update_batch_size=True)
        td.update(td.clone(), update_batch_size=True)
        td.update({'a': T([2, 3], start=1)}, update_batch_size=True)
        td.update(td.clone(), keys_to_update='a')
    """,
        on="named half_named nested",
    ),
    *cases(
        "set",
        """
        td.set('a', T([2, 3], start=4), inplace=None)
        td.set('z', T([2, 3]), inplace=None)
    """,
        on="flat locked",
    ),
    *cases(
        "set_at_",
        """
        td.set_at_('b', float('nan'), np.s_[False])
        td.set_at_('b', float('nan'), np.s_[0:0])
        td.set_at_('a', float('nan'), np.s_[False])
        td.set_at_('b', 1.5, np.s_[False])
        td.set_at_('b', float('nan'), 0)
    """,
        on="flat",
    ),
    *cases("select", "td.select('a', as_tensordict=True)", on="sub flat nested"),
    *cases(
        "reshape",
        """
        td.reshape(-1, inplace=True) is td
        td.reshape(-1, inplace=True)
        td.reshape(3, 2, inplace=True)
        td.reshape(size=[3, 2], inplace=True)
        td.reshape(2, 3, inplace=True) is td
        td.reshape(-1, inplace=False)
        td.reshape(7, inplace=True)
        td.reshape(-1, foo=1)
        td.reshape(3, size=[6])
        td.reshape(shape=[6])
    """,
        on="flat nested locked named deep empty",
    ),
    *cases("reshape", "td.reshape(2, 1, inplace=True)", on="nested_batch sub"),
    *cases(
        "permute",
        """
        td.permute(1, 0, inplace=True)
        td.permute(dim=[1, 0])
        td.permute([1, 0], dims=[0, 1])
        td.permute(dims=[1, 0])
    """,
        on="flat nested",
    ),
    *cases(
        "expand",
        """
        td.expand(2, 2, 3, inplace=True)
        td.expand([2, 2, 3], size=[2, 2, 3])
        td.expand(size=[2, 2, 3])
        td.expand(shape=[2, 2, 3])
    """,
        on="flat nested",
    ),
    *cases(
        "TensorDict",
        """
        TensorDict(td)
        TensorDict(td, None)
        TensorDict(td, device='cpu')
        TensorDict(td, names=None)
        TensorDict(td, lock=True)
        TensorDict(td, batch_size=td.batch_size)
        Sub(td)
        TensorDict({'n': td})
    """,
        on=SOME,
    ),
    *cases(
        "to",
        """
        td.to(torch.int16, batch_size=[])
        td.to('meta', batch_size=[])
        td.to(torch.zeros(1, dtype=torch.float64), batch_size=[2])
        td.to('cpu', batch_size=[])
    """,
        on="flat nested locked named",
    ),
    *cases(
        "logsumexp",
        """
        x = td.float().logsumexp(0) * 0; a = x['a']; td.float().logsumexp(0, out=x) is x, x, x['a'] is a
        td.float().logsumexp(0, out=td.float().logsumexp(0).double())
        td.float().logsumexp(0, out=TensorDict({}, td.batch_size[1:]))
        td.float().logsumexp(0, out=td.float().logsumexp(0).lock_())
    """,
        on="flat nested named",
    ),
    *cases(
        "logsumexp",
        """
        td.logsumexp(0, out=td.detach().logsumexp(0))
        td.detach().logsumexp(0, out=td.logsumexp(0))
    """,
        on="grad",
    ),
    *cases(
        "auto_batch_size_",
        """
        td.auto_batch_size_(0)
        td.auto_batch_size_(-1)
        td.auto_batch_size_(1)
        td.auto_batch_size_(1, True)
        td.auto_batch_size_(0, True)
        td.auto_batch_size_(5, keep_compliant_size=True)
        td.auto_batch_size_()
    """,
        on="empty empty_nested nested nested_batch",
    ),
    *cases(
        "auto_batch_size_",
        """
        td = TensorDict({'e': {}}, [3, 4]); td.auto_batch_size_(0); td
        td = TensorDict({'e': {}}, [3, 4]); td.auto_batch_size_(1); td
        td = TensorDict({'e': TensorDict({}, [3, 4, 5])}, [3, 4]); td.auto_batch_size_(); td
        td = TensorDict({'e': TensorDict({}, [3, 4, 5])}, [3, 4]); td.auto_batch_size_(-2); td
        td = TensorDict({'a': T([3, 4]), 'e': {'f': {}}}, [3]); td.auto_batch_size_(); td
        td = TensorDict({'a': T([3, 4]), 'e': {'f': {}}}, [3]); td.auto_batch_size_(0); td
    """,
        on="none",
    ),
    *cases(
        "update",
        """
        td.update({'n': {'q': T([2, 3])}}, is_leaf=is_tensor_collection)
        td.update({'n': {'q': T([2, 3])}}, is_leaf=lambda cls: True, inplace=True)
        td.update({'n': {'q': T([2, 3])}}, is_leaf=lambda cls: cls is dict)
        td.update({'n': {'q': T([2, 3])}}, is_leaf=lambda cls: False)
        td.update(TensorDict({'n': {'q': T([2, 3])}}, [2, 3]), is_leaf=lambda cls: True)
        td.update(TensorDict({'n': {'q': T([2, 3])}}, [2, 3]), False, True, is_leaf=lambda cls: True)
    """,
        on="nested named cpu",
    ),
    *cases(
        "where",
        """
        y = td.clone().unlock_(); n = y['n']; r = td.where(T([2, 3], 'bool'), 0, out=y); r is y, y['n'] is n
        y = td.clone().unlock_(); td.where(T([2, 3], 'bool'), 0, out=y); y
        td.where(T([2, 3], 'bool'), TensorDict({'a': T([2, 3]), 'n': T([2, 3, 1])}, [2, 3]))
        td.where(T([2, 3], 'bool'), TensorDict({'a': T([2, 3]), 'n': T([2, 3, 5])}, [2, 3]))
        td.where(T([2, 3], 'bool'), TensorDict({'a': {'z': T([2, 3])}, 'n': td['n']}, [2, 3]))
    """,
        on="floats named",
    ),
    *cases(
        "update_at_",
        """
        td.update_at_(TensorDict({'n': {'e': {}}}, [3]), 0)
        td.update_at_(TensorDict({'n': {'e': {'f': {}}}}, [3]), 0)
        td.update_at_({'n': {'e': {}}}, 0)
        td.update_at_(TensorDict({'e': {}}, [3]), 0)
    """,
        on="nested locked deep",
    ),
    *cases("__delitem__", "td.__delitem__('a')", on=SOME),
    *cases(
        "names",
        """
        s = td._get_sub_tensordict(slice(0, 1)).flatten(0, 0); x = TensorDict({}, [1, 3]); x['n'] = s; x.names
        x = TensorDict({}, [1, 3]); x['q'] = td._get_sub_tensordict(slice(0, 1)); x.names
        x = TensorDict({}, [1, 3]); x['q'] = td._get_sub_tensordict(slice(0, 1)); x.names = ['p', 'q']
        x = TensorDict({}, [1, 3]); x['q'] = td._get_sub_tensordict(slice(0, 1)); x.clone(False).names
    """,
        on="nested named half_named",
    ),
    *cases(
        "copy_",
        """
        td._get_sub_tensordict(None).copy_(td); td
        td._get_sub_tensordict(None).update_(td); td
        td._get_sub_tensordict((None, None)).copy_(td * 2); td
    """,
        on="nested named locked",
    ),
    *cases(
        "maybe_dense_stack",
        """
        x = TensorDict({'a': T([]), 'n': {'b': T([])}}, []); maybe_dense_stack([td._get_sub_tensordict(0), x])
        x = TensorDict({'a': T([]), 'n': {'b': T([])}}, []); maybe_dense_stack([x, td._get_sub_tensordict(0)])
    """,
        on="one",
    ),
    # Flags are read as Python reads them.
    *cases(
        "flags",
        """
        td.exclude('a', inplace=0)
        td.exclude('zz', inplace=1)
        td.select('zz', strict=0)
        td.select('a', strict='yes')
        td.flatten_keys(inplace=None)
        td.flatten_keys().unflatten_keys(inplace=0)
        td.non_tensor_items(0)
        td.apply(lambda x: None, filter_empty=0)
        td.named_apply(lambda k, x: x, nested_keys=1)
        """,
        on="nested",
    ),
    # Numbers of NumPy are numbers.
    *cases(
        "numbers of NumPy",
        """
        td.expand(np.int64(4))
        td.split((np.int64(1), 1))
        td.split([np.int64(9), 1])
        td.roll(1, ())
        td.roll((1, 2), ())
        """,
        on="nested",
    ),
    *cases(
        "numbers of NumPy",
        """
        td.reshape(np.int64(6)).batch_size == (6,)
        td.view(np.int64(6)).batch_size == (6,)
        td.view((np.int64(3), 2)).batch_size == (3, 2)
        """,
        on="nested",
    ),
    *cases(
        "repeat_interleave",
        """
        td = TensorDict({'a': T([3, 2])}, [3]); td.repeat_interleave(np.int64(2))
        td = TensorDict({'a': T([3, 2])}, [3]); td.repeat_interleave(np.int64(2), 0)
        """,
        on="empty",
        reason="the batch size is not that of the leaves",
        ours="result.batch_size == (6,) and result['a'].shape == (6, 2)",
    ),
    *cases(
        "repeat_interleave",
        "td = TensorDict({'a': T([3, 2])}, [3]); td.repeat_interleave(np.array([1, 2, 0]), 0)",
        on="empty",
        message=False,
    ),
    # An entry without batch dims is kept whole by new_tensor, as by new_zeros.
    *cases(
        "new_tensor",
        """
        td = TensorDict({'a': T([2]), 'u': UnbatchedTensor(T([5]))}, [2]); td.new_tensor([1.0, 2.0, 3.0])
        td = TensorDict({'a': T([2]), 'u': UnbatchedTensor(T([5]))}, [2]);
            td.new_tensor(TensorDict({'a': T([3]), 'u': T([3])}, [3]))
        """,
        on="empty",
    ),
    *cases(
        "from_dict_instance",
        """
        td = TensorDict({'a': T([2])}, [2], names=['x'], device='cpu'); td.from_dict_instance(td)
        td = TensorDict({'a': T([2])}, [2], names=['x']); td.from_dict_instance(td, batch_size=[])
        td = TensorDict({'a': T([2])}, [2]); td.from_dict_instance(td.lock_(), device='meta')
        """,
        on="empty",
    ),
    *cases(
        "cuda",
        """
        td.cuda('cpu')
        td.cuda(torch.device('meta'))
        """,
        on="nested",
    ),
    *cases(
        "set_non_tensor",
        """
        td.set_non_tensor(3, 'x')
        td.set_non_tensor(None, 'x')
        td.set_non_tensor(['a'], 'x')
        """,
        on="nested",
    ),
    *cases(
        "set_non_tensor",
        """
        td = td._get_sub_tensordict(0); td.set_non_tensor('a', 'x')
        td = td._get_sub_tensordict(0); td.set_non_tensor(('n', 'b'), 'x')
        td = td._get_sub_tensordict(0); td.set_non_tensor('z', 'x'); td['z']
        """,
        on="nested",
    ),
]
