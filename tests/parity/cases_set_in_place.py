"""Writing in place: cases that random comparisons found."""

from frame import cases

CASES = [
    *cases(
        "set_",
        """
        td.set_('n', {'z': T([2, 3])})
        td.set_('n', TensorDict({'z': T([2, 3])}, [2, 3]))
        td.set_('n', {'b': T([2, 3, 4])})
        td.set_('n', T([7, 2]))
        td.set('n', T([7, 2]), inplace=True)
    """,
        on="nested",
    ),
    *cases(
        "set_",
        """
        td.expand(5, 2, 3).set_('a', T([5, 2, 3]))
        td.expand(5, 2, 3).set('a', T([5, 2, 3]), inplace=True)
        td.expand(5, 2, 3).update({'a': T([5, 2, 3])}, inplace=True)
        td.expand(5, 2, 3).apply_(lambda x: x + 1)
        td.expand(5, 2, 3).update_({'a': T([5, 2, 3])})
        TensorDict({'a': T([2]).requires_grad_()}, [2]).set_('a', T([2]))
    """,
        on="flat",
        message=False,
    ),
    *cases(
        "copy_at_",
        """
        td.copy_at_(td[None] * 2, None)
        td.copy_at_(td[..., 0] * 2, (..., 0))
        td.copy_at_(td[1:, None] * 2, (slice(1, None), None))
        td.copy_at_(td * 2, ...)
        td.copy_at_(td[[0]] * 2, [0])
        td.copy_at_(td[0] * 2, 9)
    """,
        on="flat nested",
    ),
    *cases(
        "__setitem__",
        """
        td[torch.tensor([True, False])] = torch.tensor(2.5)
        td[torch.tensor([True, False])] = torch.tensor([2])
        td[T([2, 3]) > 0] = torch.tensor(2)
        td[torch.tensor([True, False])] = T([2])
    """,
        on="flat",
        message=False,
    ),
]
