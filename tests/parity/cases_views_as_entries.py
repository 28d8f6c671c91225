"""A view among the entries: cases that random comparisons found."""

from frame import cases

CASES = [
    *(
        case
        for index in (
            "[0, 1]",
            "torch.tensor([1])",
            "T([2], 'bool')",
            "0",
            "(..., [0, 2])",
        )
        for case in cases(
            "view among the entries",
            "\n".join(
                f"x = td._get_sub_tensordict({index})"
                ".flatten_keys('/', is_leaf=is_tensor_collection); "
                f"{step}; x['n', 'b'], td['n', 'b']"
                for step in (
                    "x.update(x + 1, inplace=True)",
                    "x.update({'n': {'b': x['n', 'b'] + 1}}, inplace=True)",
                    "x.update({('n', 'b'): 1.0}, inplace=True)",
                    "x.update_(x + 1)",
                    "x.update_({'n': {'b': x['n', 'b'] + 1}})",
                    "x.copy_(x + 1)",
                    "x.add_(1)",
                    "x.add_(x)",
                    "x.add_(torch.ones(x.batch_size))",
                    "x.neg_()",
                    "x.zero_()",
                    "x += 1",
                    "x.clamp_max_(1)",
                    "x.masked_fill_(torch.ones(x.batch_size, dtype=torch.bool), 7)",
                    "x.fill_('n', 2)",
                    "x.set_(('n', 'b'), x['n', 'b'] + 1)",
                    "x[:] = x + 1",
                )
            ),
            on="nested",
            message=False,
        )
    ),
    *cases(
        "comparison",
        """
        td['z'] = {}; td.select('a', 'z') == TensorDict({'a': T([2, 3]), 'z': T([2, 3])}, [2, 3])
        td['z'] = {}; td.select('a', 'z') != TensorDict({'a': T([2, 3]), 'z': T([2, 3])}, [2, 3])
        td['z'] = {}; TensorDict({'a': T([2, 3]), 'z': T([2, 3])}, [2, 3]) == td.select('a', 'z')
        td['z'] = {}; td.select('a', 'z') == td.select('z', 'a')
    """,
        on="named",
    ),
    *cases(
        "update_",
        """
        td.update_({'z': {}})
        td.update_({'z': {'y': {}}})
        td.update_({'z': {'y': T([2, 3])}})
        td.update_({'z': {}, 'y': T([2, 3])})
        td.update_({('z', 'y'): {}})
        td.copy_(TensorDict({'z': TensorDict({}, [2, 3])}, [2, 3]))
        td.update_(TensorDict({'z': {'y': T([2, 3])}}, [2, 3]))
    """,
        on="empty nested",
    ),
    *cases(
        "update_",
        """
        td.update_({'n': {'b': T([2, 3, 5])}})
        td.update_({'n': {'m': {'c': T([5])}}})
    """,
        on="nested",
    ),
    *cases(
        "pad_sequence",
        """
        pad_sequence([td, td], pad_dim=1)
        pad_sequence([td, td], pad_dim=2)
        pad_sequence([td, td], pad_dim=-2)
        pad_sequence([td, td], pad_dim=-3)
    """,
        on="empty empty_nested",
        message=False,
    ),
    *cases(
        "pad_sequence",
        "pad_sequence([td.select('a'), td.select('a')], pad_dim=-4)",
        on="flat",
    ),
]
