"""Parts by index or mask: reading and writing."""

from frame import EVERY, cases

READ = EVERY + " half_named nested_subclass one"

CASES = [
    *cases(
        "__getitem__",
        """
        td[0]
        td[-1]
        td[5]
        td[0, 0]
        td[0, 0, 0]
        td[0:1]
        td[:]
        td[:] is td
        td[...]
        td[()]
        td[None]
        td[:, None]
        td[..., 0]
        td[0, ...]
        td[..., ...]
        td[:, 1:]
        td[::2]
        td[5:]
        td[[0, 1]]
        td[[0, 1], 0]
        td[[0, 1], [0, 1]]
        td[[0, 1], None, [0, 1]]
        td[0, [0, 1]]
        td[:, [0, 1]]
        td[[]]
        td[[[0, 1], [1, 0]]]
        td[torch.tensor([0, 1])]
        td[torch.tensor([[0], [1]]), torch.tensor([[0, 1]])]
        td[torch.tensor(0)]
        td[np.array([0, 1])]
        td[np.array([True, False])]
        td[np.int64(0)]
        td[torch.tensor([True, False])]
        td[torch.tensor([False, False])]
        td[torch.tensor([True, False, True, True, False])]
        td[T([2, 3], 'bool')]
        td[:, torch.tensor([True, False, True])]
        td[torch.tensor([True, False]), 0]
        td[[True, False]]
        td[True]
        td[False]
        td[True, 0]
        td[torch.tensor(True)]
        td[range(2)]
        td[range(2), 0]
        td[torch.tensor([0, 1], dtype=torch.int32)]
        td[torch.tensor([0, 1], dtype=torch.uint8)]
        td.__getitems__([0, 1])
        """,
        on=READ,
        message=False,
    ),
    *cases(
        "__getitem__",
        """
        td[torch.tensor([9])]
        td[::-1]
        td[torch.tensor([0.0])]
        td[1.0]
        td[{1}]
        td[np.bool_(True)]
        td['a', 0]
        """,
        on="flat nested locked",
        message=False,
    ),
    *cases(
        "__getitem__",
        "td[1.0]",
        on="empty",
        reason="the release takes any object as an index where there are no leaves",
        ours="isinstance(error, IndexError)",
    ),
    *cases(
        "__getitem__",
        """
        td[0].zero_()
        td[[0]].zero_()
        td[0:1].zero_()
        td[torch.tensor([True, False])].zero_()
        td[...].zero_()
        """,
        on="flat nested locked sub",
    ),
    *cases(
        "__getitem__",
        "td[((0, 1),)]",
        on="flat",
        reason="the release indexes the leaves with a list but counts it as two numbers",
        ours="result.batch_size == torch.Size([2, 3])",
    ),
    *cases(
        "get_item_shape",
        """
        td.get_item_shape('a')
        td.get_item_shape('n')
        td.get_item_shape(('n', 'b'))
        td.get_item_shape('zz')
        """,
        on="nested deep sub",
    ),
    *cases(
        "get_item_shape",
        """
        TensorDict({'n': {'s': 'hi'}, 's': NonTensorStack('a', 'b')},
            [2])._get_sub_tensordict(slice(1)).get_item_shape('s')
        TensorDict({'n': {'s': 'hi'}, 's': NonTensorStack('a', 'b')},
            [2])._get_sub_tensordict(slice(1)).get_item_shape(('n', 's'))
        """,
    ),
    *cases(
        "_getitem_batch_size",
        """
        tensordict.utils._getitem_batch_size(torch.Size([2, 3]), 0)
        tensordict.utils._getitem_batch_size(torch.Size([2, 3]), (slice(None), [0, 1]))
        tensordict.utils._getitem_batch_size(torch.Size([2, 3]), torch.ones(2) > 0)
        tensordict.utils._getitem_batch_size(torch.Size([2, 3]), (0, 0, 0))
        tensordict.utils._getitem_batch_size(torch.Size([2, 3]), (..., None))
        """,
        on="none",
    ),
    *cases(
        "__setitem__",
        """
        td[0] = 0
        td[0] = 1.5
        td[0] = True
        td[0] = torch.tensor(1)
        td[0] = td[1]
        td[0] = td[-1].clone() * 2
        td[:] = td[0]
        td[...] = 0
        td[()] = 0
        td[None] = 0
        td[None] = TensorDict({}, [5])
        td[True] = TensorDict({}, [1, 7])
        td[torch.tensor(True)] = TensorDict({}, [1, 7])
        td[torch.tensor(False)] = TensorDict({}, [0, *td.shape])
        td[None] = TensorDict({}, [1, *td.shape, 1])
        td[:, 0] = td[:, -1]
        td[..., 0] = 0
        td[0, 0] = 0
        td[[0, 1]] = td[[1, 0]]
        td[range(2)] = 0
        td[np.array([0])] = 0
        td[torch.tensor([True, False])] = 0
        td[torch.tensor([True, False])] = td[:1] * 2
        td[T([2, 3], 'bool')] = 0
        td[True] = 0
        td[5] = 0
        td[0, 0, 0] = 0
        td[1.0] = 0
        td[0] = td
        td[:] = td[:, :1]
        td[0] = torch.zeros(7)
        td[0] = {'a': T([3])}
        td[0] = {'zz': T([3, 4])}
        td[0] = {'zz': T([9])}
        td[0] = {'n': {'zz': T([3])}}
        td[0] = {'a': 0}
        td[0] = TensorDict({'a': T([3]), 'q': T([3, 2])}, [3])
        td[0] = TensorDict({'a': T([3])}, [])
        td[0] = TensorDict({'a': T([1])}, [1])
        td[0] = TensorDict({}, [3])
        """,
        on="flat nested deep locked cpu subclass nested_subclass sub",
        message=False,
    ),
    *cases(
        "__setitem__",
        """
        td[0] = TensorDict({'a': T([3]), 'n': {'b': T([3, 2], 'int64')}}, [3])
        td[:, 1] = TensorDict({'a': T([2, 5])}, [2])
        td[0, 1] = TensorDict({'a': 1.0, 'b': [1, 2]}, [])
        td[[0, 1]] = TensorDict({'a': T([2, 3])}, [2, 3])
        td[:] = TensorDict({'a': T([2, 3])}, [2, 3])
        td[torch.tensor([True, False])] = TensorDict({'a': T([1, 3])}, [1, 3])
        td[0] = {'a': T([3]), 'n': {'b': T([3, 2])}}
        td[0] = {}
        td[0] = 0
        td[0] = TensorDict({'a': T([4])}, [4])
        td[7] = TensorDict({'a': T([3])}, [3])
        td[0] = Sub({'a': T([3]), 'n': Sub({'b': T([3])}, [3])}, [3])
        """,
        on="empty",
        message=False,
    ),
    *cases(
        "__setitem__",
        "td[0] = TensorDict({'a': T([3])}, [3]); td[1] = {'a': T([3]) + 1}",
        on="empty",
    ),
    *cases(
        "masked_select",
        """
        td.masked_select(torch.tensor([True, False]))
        td.masked_select(T([2, 3], 'bool'))
        td.masked_select(torch.tensor(True))
        td.masked_select(None)
        torch.masked_select(td, T([2, 3], 'bool'))
        """,
        on="flat nested deep empty locked named cpu subclass nested_subclass half_named",
        message=False,
    ),
    *cases(
        "masked_fill",
        """
        td.masked_fill(torch.tensor([True, False]), 5)
        td.masked_fill(T([2, 3], 'bool'), 1.5)
        td.masked_fill(torch.tensor([[True], [False]]), 0)
        td.masked_fill(torch.tensor(True), 0)
        td.masked_fill_(torch.tensor([True, False]), 5)
        td.masked_fill_(T([2, 3], 'bool'), 1.5)
        """,
        on="flat nested deep empty locked named cpu subclass sub",
        message=False,
    ),
    *cases(
        "masked_fill",
        """
        td.masked_select(torch.tensor([True, False, True, True]))
        td.masked_select(torch.ones(2, 3))
        td.masked_fill(torch.tensor([True, False, True, True]), 5)
        td.masked_fill(torch.ones(2, 3), 5)
        td.masked_fill_(torch.tensor([True, False, True, True]), 5)
        td.masked_fill_(torch.ones(2, 3), 5)
        """,
        on="flat nested deep locked sub",
        message=False,
    ),
    *cases(
        "where",
        """
        td.where(T([2, 3], 'bool'), 0)
        td.where(T([2], 'bool'), td + 1)
        td.where(torch.tensor([[True], [False]]), td.clone())
        td.where(T([2, 3], 'bool'), td.select('a'))
        td.where(T([2, 3], 'bool'), td.select('a'), pad=7)
        td.where(T([2, 3], 'bool'), torch.tensor(2.0))
        td.where(T([2, 3], 'bool'), td + 1, out=td.clone())
        td.where(T([2, 3], 'bool'), td + 1, out=td.empty())
        td.where(T([2, 3], 'bool'), td[0])
        td.where(T([4], 'bool'), 0)
        td.where(torch.ones(2, 3), 0)
        td.where(T([2, 3], 'bool'), None)
        torch.where(T([2, 3], 'bool'), td, td + 1)
        torch.where(T([2, 3], 'bool'), td, 0)
        """,
        on="flat nested deep locked named cpu subclass sub",
        message=False,
    ),
    *cases(
        "gather",
        """
        td.gather(0, torch.tensor([[0, 1, 0]]))
        td.gather(1, torch.tensor([[0], [2]]))
        td.gather(-1, torch.zeros(2, 5, dtype=torch.int64))
        td.gather(0, torch.tensor([0, 0]))
        td.gather(1, torch.tensor([0, 0]))
        td.gather(2, torch.tensor([[0]]))
        td.gather(0, torch.tensor([[9, 9, 9]]))
        td.gather(0, torch.tensor(0))
        td.gather(1, torch.tensor([[0], [2]]), out=td[:, :1].clone())
        td.gather(1, torch.tensor([[0], [2]]), out=td.empty())
        torch.gather(td, 1, torch.tensor([[0], [2]]))
        """,
        on="flat nested deep empty locked named cpu subclass sub",
        message=False,
    ),
    *cases(
        "_get_sub_tensordict",
        """
        td._get_sub_tensordict(0)
        td._get_sub_tensordict((slice(None), 0))
        td._get_sub_tensordict(torch.tensor([0, 1]))
        td._get_sub_tensordict(T([2], 'bool')).batch_size
        td._get_sub_tensordict(...)
        td._get_sub_tensordict(9)
        td._get_sub_tensordict(0).zero_()
        td._get_sub_tensordict(torch.tensor([0])).zero_()
        td._get_sub_tensordict(0).set_('a', T([3]) * 0)
        td._get_sub_tensordict(0)['zz'] = T([3, 2])
        td._get_sub_tensordict(0)['n', 'zz'] = T([3, 2])
        td._get_sub_tensordict(0).update(td[1])
        td._get_sub_tensordict(0).update_(td[1])
        td._get_sub_tensordict(torch.tensor([0])).update_(td[1:].clone())
        td._get_sub_tensordict(0)[1] = 0
        td._get_sub_tensordict(0)[1]
        td._get_sub_tensordict(0)['a']
        td._get_sub_tensordict(0).del_('a')
        td._get_sub_tensordict(0).clone()
        td._get_sub_tensordict(0) + 1
        td._get_sub_tensordict(0).view(-1)
        td._get_sub_tensordict(0).lock_()
        td._get_sub_tensordict(0).unlock_()
        td._get_sub_tensordict(0).batch_size == td[0].batch_size
        """,
        on="flat nested deep locked cpu named",
        message=False,
    ),
    *cases(
        "_SubTensorDict",
        """
        td['a'] = td['a'] * 0
        td['n', 'b'] = td['n', 'b'] * 0
        td['z'] = T([2, 3, 2])
        td['z'] = {'y': T([2, 3, 2])}
        td.rename_key_('a', 'z')
        del td['a']
        td.pop('a')
        td += 1
        td.zero_()
        td.fill_('a', 5)
        td.names = ['u', 'v']
        td.batch_size = [2]
        td.batch_size = [2, 3]
        td.select('a', inplace=True)
        td.exclude('a', inplace=True)
        td.detach_()
        td.memmap_()
        td.share_memory_()
        td.permute(1, 0)
        td.transpose(0, 1)
        td.squeeze()
        td.unsqueeze(0)
        td.reshape(-1)
        td.flatten()
        td.get_parent_tensordict() is o
        td.to_tensordict()
        td.clone(False)
        copy.deepcopy(td)
        list(td.keys(True, True))
        [type(x).__name__ for x in td.values()]
        torch.stack([td, td])
        torch.cat([td, td])
        td[0]
        td[[0]]
        td[:] is td
        td[[0]].zero_()
        """,
        on="sub",
        message=False,
    ),
]

ROW = "the release writes one row to many only where its batch size is the index's"
CASES += cases(
    "__setitem__",
    "td[:] = td[:, :1]",
    on="flat nested deep locked cpu subclass nested_subclass sub",
    reason=ROW,
    ours="error is None or 'memory' in str(error)",
)
CASES += cases(
    "__setitem__",
    "td[0] = TensorDict({'a': T([1])}, [1])",
    on="flat nested deep locked cpu subclass nested_subclass sub",
    reason=ROW,
    ours="(td['a'][0] == T([1])).all()",
)
