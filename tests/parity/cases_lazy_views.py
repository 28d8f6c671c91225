"""The views of the lazy mode: read, written through, chosen from and closed as blocks."""

from frame import cases

VIEWS = "lazy_view lazy_permuted lazy_unsqueezed lazy_squeezed lazy_transposed"

CASES = [
    *cases(
        "select",
        """
        td = td.select('a'); td.zero_()
        td = td.select('n'); td.zero_()
        td = td.select(('n', 'b')); td.zero_()
        td.select('missing')
        td.select('missing', strict=False)
        td.select('a', inplace=True)
        """,
        on=VIEWS,
        message=False,
    ),
    *cases(
        "exclude",
        """
        td = td.exclude('a'); td.zero_()
        td = td.exclude('missing'); td.zero_()
        td = td.exclude(('n', 'b')); td.zero_()
        td = td.exclude('missing').contiguous(); td.zero_()
        td.exclude('a', inplace=True)
        """,
        on=VIEWS,
        message=False,
    ),
    *cases(
        "to_padded_tensor",
        """
        td = td.to_padded_tensor(); td['a']
        td.contiguous()['a']
        """,
        on=VIEWS,
    ),
    *cases(
        "squeeze",
        """
        td.squeeze(5)
        td.squeeze(-6)
        td.squeeze(0).batch_size
        """,
        on=VIEWS,
        message=False,
    ),
    *cases(
        "unflatten",
        """
        td.unflatten(0, (1, -1))['a']
        v = td.unflatten(0, (1, -1)).__enter__(); v['z'] = T(list(v.shape));
            v.__exit__(None, None, None); o = o.clone(); td = v = None
        v = td.unflatten(-1, (-1, 1)).__enter__(); v['a'] = v['a'] + 1;
            v.__exit__(None, None, None); o = o.clone(); td = v = None
        td.unflatten(0, (1, -1)).zero_()
        """,  # noqa: E501
        on=VIEWS,
    ),
    *cases(
        "empty",
        """
        td.empty(recurse=True)
        td.empty(recurse=True, device='cpu')
        td.empty(recurse=True, batch_size=[7])
        td.empty()
        td.separates('a').zero_()
        """,
        on=VIEWS,
        message=False,
    ),
    *cases(
        "squeeze_block",
        """
        v = td.squeeze(0).__enter__(); v['a'] = v['a'] + 1; v.__exit__(None, None, None); o = o.clone(); td = v = None
        """,  # noqa: E501
        on="lazy_permuted lazy_transposed",
    ),
    *cases(
        "contiguous_leaves",
        """
        td.is_contiguous()
        td.contiguous().is_contiguous()
        td.clone().is_contiguous()
        td.exclude('a').is_contiguous()
        """,
        on=VIEWS,
    ),
]
