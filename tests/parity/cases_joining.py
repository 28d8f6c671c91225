"""Several collections as one, and several entries as one."""

from frame import EVERY, cases

MORE = EVERY + " half_named nested_subclass one"
LEAVES = "flat one floats"

CASES = [
    *cases(
        "stack",
        """
        torch.stack([td, td])
        torch.stack([td, td.clone()], 1)
        torch.stack((td, td), dim=-1)
        TensorDict.stack([td, td], td.ndim)
        tensordict.stack([td, td])
        TensorDict.maybe_dense_stack([td, td])
        torch.stack([td])
        torch.stack([td, td[:1]])
        torch.stack([td, td.empty()])
        torch.stack([td.empty(), td])
        torch.stack([td, 1])
        torch.stack([td, td.clone().lock_()])
        """,
        on=MORE,
        message=False,
    ),
    *cases(
        "stack",
        """
        torch.stack([td, td], 5)
        torch.stack([td, td.apply(lambda x: x.double())])
        torch.stack([td, td.select('n', 'a')])
        torch.stack([td, td], 0, out=torch.stack([td, td]) * 0)
        torch.stack([td, td], 0, out=td.empty(batch_size=[7]))
        torch.stack([td, td.rename('u', 'v')])
        torch.stack([td.rename('u', 'v'), td])
        """,
        on="nested deep named locked",
        message=False,
    ),
    *cases(
        "stack",
        "torch.stack([td, td], 0, out=TensorDict({}, [2, 2, 3]))",
        on="nested",
        reason="the release returns `out` without the entries that it lacked",
        ours="(result == torch.stack([td, td])).all()",
    ),
    *cases(
        "stack",
        """
        tensordict.dense_stack_tds([td, td], 0)
        tensordict.dense_stack_tds([td, td], dim=1)
        tensordict.dense_stack_tds([td, td])
        tensordict.maybe_dense_stack([td, td], 1)
        TensorDict.maybe_dense_stack([])
        TensorDict.stack([T([2]), T([2])])
        TensorDict.cat([T([2]), T([2])])
        """,
        on="nested",
        message=False,
    ),
    *cases(
        "cat",
        """
        torch.cat([td, td])
        torch.cat([td, td.clone()], 1)
        TensorDict.cat([td, td])
        tensordict.cat([td, td])
        torch.cat([td])
        torch.cat([td, td], 5)
        torch.cat([td, td[:1]])
        torch.cat([td, td[:, :1]], 1)
        torch.cat([td, td.empty()])
        torch.cat([td.empty(), td])
        torch.cat([td, 1])
        """,
        on=MORE,
        message=False,
    ),
    *cases(
        "cat",
        """
        torch.cat((td, td), dim=-1)
        torch.cat([td, td[:, :1]])
        torch.cat([td, td.apply(lambda x: x.double())])
        torch.cat([td, td.select('n', 'a')])
        torch.cat([td, td], 0, out=torch.cat([td, td]) * 0)
        torch.cat([td, td], 0, out=td.empty(batch_size=[7]))
        torch.cat([td, td.rename('u', 'v')])
        torch.cat([td.rename('u', 'v'), td])
        """,
        on="nested deep named locked",
        message=False,
    ),
    *cases(
        "stack_tensors",
        """
        td.stack_tensors('a', 'a', out_key='q', keep_entries=True, dim=2)
        td.stack_tensors('a', out_key='q', dim=2)
        td.stack_tensors('a', out_key='a', dim=-1)
        td.stack_tensors('a', out_key=('z', 'q'), dim=2, keep_entries=True)
        td.stack_tensors('a', 'zz', out_key='q')
        td.stack_tensors('a', out_key='q', dim=9)
        td.stack_tensors(out_key='q')
        td.stack_tensors('a')
        td.cat_tensors('a', 'a', out_key='q', keep_entries=True, dim=-1)
        td.cat_tensors('a', out_key='q', dim=1)
        td.cat_tensors('a', 'zz', out_key='q')
        td.cat_tensors('a', out_key='q', dim=9)
        """,
        on="flat nested named cpu locked sub",
        message=False,
    ),
    *cases(
        "stack_tensors",
        "td.cat_tensors('a', 'd', out_key='q')",
        on="nested",
        reason="the release has removed the inputs when it finds that they do not fit",
        ours="isinstance(error, RuntimeError) and 'a' in td and 'd' in td",
    ),
    *cases(
        "stack_from_tensordict",
        """
        td.select('a').stack_from_tensordict()
        td.select('a').stack_from_tensordict(1, sorted=True)
        td.select('a').stack_from_tensordict(0, sorted=['a'])
        td.select('a').stack_from_tensordict(0, sorted=['zz'])
        td.select('a').cat_from_tensordict()
        td.select('a').cat_from_tensordict(-1, sorted=False)
        td.stack_from_tensordict()
        td.cat_from_tensordict()
        TensorDict(b=T([2]), a=T([2]) + 1, batch_size=[2]).stack_from_tensordict(sorted=True)
        TensorDict(b=T([2]), a=T([2]) + 1, batch_size=[2]).cat_from_tensordict()
        """,
        on="flat nested sub",
        message=False,
    ),
    *cases(
        "_stack_onto_",
        """
        torch.stack([td, td])._stack_onto_([td * 0, td * 0], 0)
        torch.stack([td, td], 1)._stack_onto_([td, td], 1)
        """,
        on="floats",
    ),
    # Nested collections with different batch sizes.
    *cases(
        "maybe_dense_stack",
        """
        o = maybe_dense_stack([td, TensorDict({'n': {'b': T([3])}}, [])]); type(o).__name__, o.batch_size
        o = maybe_dense_stack([TensorDict({'m': td}), TensorDict({'m': {'n': {'b': T([3])}}})]);
            type(o).__name__, type(o['m']).__name__
        o = maybe_dense_stack([td, TensorDict({'n': {'b': T([3])}}, [])]); o[0]['n'].batch_size, o[1]['n'].batch_size
        o = TensorDict.from_list([td.to_dict(), {'n': td['n']}]); type(o).__name__, o.batch_size
    """,
        on="nested_batch",
    ),
]
