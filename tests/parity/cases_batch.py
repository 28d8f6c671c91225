"""Batch sizes and dimension names."""

from frame import EVERY, cases

CASES = [
    *cases(
        "batch_size",
        """
        td.batch_size
        td.shape
        td.batch_size = td.batch_size[:1]
        td.batch_size = []
        td.batch_size = list(td.batch_size)
        td.shape = torch.Size(td.shape[:1])
        """,
        on=EVERY + " half_named nested_subclass empty_nested",
    ),
    *cases(
        "batch_size",
        """
        td.batch_size = [7]
        td.batch_size = 2
        td.batch_size = 'a'
        td.batch_size = None
        """,
        on="flat nested named sub locked",
    ),
    *cases(
        "batch_size",
        """
        td['n'].batch_size = [2, 3, 4]
        td['n'].batch_size = [2]
        td.batch_size = [2]; td.batch_size = [2, 3]
        """,
        on="nested named locked deep",
        message=False,
    ),
    *cases(
        "size",
        """
        td.size()
        td.size(0)
        td.size(-1)
        td.size(5)
        td.size(dim=0)
        (td.ndim, td.dim(), td.ndimension(), td.batch_dims, td.numel(), td.depth)
        """,
        on="flat nested deep empty scalar zero sub",
    ),
    *cases(
        "auto_batch_size_",
        """
        td.auto_batch_size_()
        td.auto_batch_size_(1)
        td.auto_batch_size_(batch_dims=0)
        td.auto_batch_size_(2)
        td.auto_batch_size_(5)
        td.auto_batch_size_(1, keep_compliant_size=True)
        """,
        on="flat nested deep scalar zero locked named",
    ),
    *cases(
        "auto_batch_size_",
        "td.auto_batch_size_()",
        on="empty empty_nested",
    ),
    *cases(
        "names",
        """
        td.names
        td.names = None
        td.names = ['u', 'v'][:td.ndim]
        td.names = [None, 'v'][:td.ndim]
        """,
        on=EVERY + " half_named",
    ),
    *cases(
        "names",
        """
        td.names = ['u', 'u']
        td.names = ['u']
        td.names = ['u', 'v', 'w']
        """,
        on="flat nested deep empty locked named half_named",
    ),
    *cases(
        "rename",
        """
        td.rename('u', 'v')
        td.rename(None)
        td.rename(x='u')
        td.rename(x='y', y='x')
        td.rename(x='y')
        td.rename(nope='u')
        td.rename()
        td.rename('u', x='v')
        td.rename_('u', 'v')
        td.rename_(x='u')
        td.rename_(None)
        td.rename_(nope='u')
        """,
        on="flat nested named half_named locked sub",
    ),
    *cases(
        "rename",
        """
        td.rename('u')
        td.refine_names('u')
        """,
        on="flat nested named half_named locked",
    ),
    *cases(
        "refine_names",
        """
        td.refine_names('u', 'v')
        td.refine_names(..., 'v')
        td.refine_names('x', ...)
        td.refine_names('x', 'y')
        td.refine_names(...)
        td.refine_names('u', ..., 'v', 'w')
        """,
        on="flat nested named half_named locked sub",
    ),
    *cases(
        "names",
        """
        (td.permute(1, 0).names, td.unsqueeze(1).names, td.unsqueeze(-1)['n'].names)
        (td[0].names, td[:, 0].names, td[None].names, td[..., 0]['n'].names)
        (td.reshape(-1).names, td.flatten(0, 1).names, td.unflatten(0, (2, 1)).names)
        (td.expand(2, 2, 3).names, td.repeat(1, 2).names, td.tile((1, 2)).names)
        (td[[0, 1]].names, td[[0], [1]].names, td[[0, 1], [1, 1]].names, td[[[0, 1]]].names)
        (td[T([2], 'bool')].names, td[T([2, 3], 'bool')].names, td[True].names)
        [x.names for x in td.unbind(0)] + [x.names for x in td.split(1, 1)]
        """,
        on="named half_named",
    ),
]

CASES += cases(
    "names",
    "(td.reshape(-1).names, td.flatten(0, 1).names, td.unflatten(0, (2, 1)).names)",
    on="named half_named",
    reason="the release gives the name of a dim that is split to the last of the new ones",
    ours="result[2][0] == td.names[0] and result[2][1] is None",
)
