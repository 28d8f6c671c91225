"""Names, keys, sizes: cases that random comparisons found."""

from frame import cases

CASES = [
    *cases(
        "rename_",
        """
        TensorDict({'a': T([])}, []).rename_()
        TensorDict({'a': T([])}, []).rename()
    """,
        on="none",
    ),
    *cases(
        "create_nested",
        """
        td.create_nested(None)
        td.create_nested(())
    """,
        on="flat locked",
        message=False,
    ),
    *cases(
        "stack_tensors",
        """
        td.stack_tensors('a', 'a', out_key='q')
        td.stack_tensors('a', 'a', out_key='q', dim=9)
        td.cat_tensors('a', 'a', out_key='q')
        td.stack_tensors('a', 'nope', out_key='q')
        td.stack_tensors('a', 'a', out_key='q', keep_entries=True)
    """,
        on="locked",
    ),
    *cases(
        "stack_tensors",
        "td.stack_tensors('a', 'a', out_key='q', dim=9)",
        on="flat",
    ),
    *cases(
        "gather",
        """
        td.gather(0, torch.zeros(0, dtype=torch.int64))
        td.gather(1, torch.zeros(2, 0, dtype=torch.int64))
    """,
        on="flat",
    ),
    *cases(
        "TensorDict",
        """
        TensorDict({'a': T([2])}, batch_size=['a'])
        TensorDict({'a': T([2])}, batch_size=[None])
        TensorDict({'a': T([2])}, batch_size=[[2]])
        TensorDict({'a': T([2])}, batch_size=range(2, 3))
        TensorDict.from_dict({'a': T([2])}, batch_size=['a'])
        TensorDict.from_dict({'a': T([2])}, batch_size=2)
        TensorDict({'a': torch.Size([])})
        TensorDict({'a': torch.Size([2])})
    """,
        on="none",
    ),
    *cases(
        "__getitem__",
        """
        TensorDict({'a': T([2])}, [])[1.5]
        TensorDict({'a': T([2])}, [])[T([2])]
        TensorDict({'a': T([2])}, [])[[0, 'a']]
        TensorDict({'a': T([2])}, [])[..., 0]
    """,
        on="none",
        message=False,
    ),
    *cases(
        "lock_",
        """
        td['n'].lock_(); td.view(-1)
        td['n'].lock_(); td.unsqueeze(0)
        td['n'].lock_(); td.permute(1, 0)
        td['n'].lock_(); td.roll(1, 0)
        td['n'].lock_(); td.flip(0)
        td['n'].lock_(); td.split(1)
        td['n'].lock_(); td.unbind(0)
        td['n'].lock_(); td.flatten(0, 1)
        td['n'].lock_(); td.repeat(2, 1)
        td['n'].lock_(); td.abs()
        td['n'].lock_(); td.to(torch.float64)
        td['n'].lock_(); td[0]
        td['n', 'm'].lock_(); td.reshape(6)
        td['n'].lock_(); td.split_keys([('n', 'b')], inplace=True)
        td['n'].lock_(); td.split_keys([('n', 'b')])
    """,
        on="nested",
        message=False,
    ),
    *cases(
        "masked_select",
        "td.masked_select(torch.tensor([True, False]))",
        on="scalar",
    ),
    *cases(
        "refine_names",
        """
        td.refine_names('x', 'y', 'z')
        td.refine_names('x')
    """,
        on="flat named sub",
        message=False,
    ),
    *cases(
        "repeat_interleave",
        """
        td.repeat_interleave(torch.tensor([]), dim=0)
        td.repeat_interleave(torch.tensor([1.0, 2.0]), dim=0)
    """,
        on="flat zero",
        message=False,
    ),
    *cases(
        "rename_keys",
        """
        td.rename_keys({('n', 'b'): ('n', 'z')})
        td.rename_keys({('n', 'b'): ('n', 'n', 'z')})
        td.rename_keys({('n', 'b'): 'n'})
        td.rename_keys({('n', 'b'): ('m', 'z')})
    """,
        on="floats locked named",
    ),
    *cases(
        "update_at_",
        """
        td.update_at_({'a': T([3]), 'e': {}}, 0)
        td.update_at_({'e': {'f': {}}}, 0)
        td.update_at_(TensorDict({'e': {}}, [3]), 0)
        td.copy_at_(TensorDict({'a': T([3]), 'e': {}}, [3]), 0)
    """,
        on="floats",
        message=False,
    ),
    *cases(
        "stack",
        """
        torch.stack([td, T([2, 3])])
        torch.stack([T([2, 3]), td])
        torch.cat([td, T([2, 3])])
        torch.stack([td, TensorDict({}, [4])], 9)
        torch.stack([td, TensorDict({}, [2, 3])], 9)
        torch.stack([td, td], 9)
        td.stack_tensors('a', 'n', out_key='q')
    """,
        on="floats sub",
        message=False,
    ),
    *cases(
        "__setitem__",
        "td[[True, False]] = torch.tensor(2.5)",
        on="flat",
    ),
    *cases(
        "auto_batch_size_",
        """
        td.auto_batch_size_()
        td.auto_batch_size_(1)
        td.auto_batch_size_(2)
        td.pop('a'); td.auto_batch_size_()
    """,
        on="sub",
    ),
]
