"""Arguments that are given rarely, by method."""

from __future__ import annotations

from frame import cases

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
]
