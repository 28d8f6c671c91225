"""Pytrees, pickles, vmap and the collate function of data loaders."""

from frame import SOME, cases

CASES = [
    *cases(
        "pytree",
        """
        torch.utils._pytree.tree_leaves(td)
        torch.utils._pytree.tree_map(lambda x: x + 1, td)
        torch.utils._pytree.tree_map(lambda x: x[0], td)
        torch.utils._pytree.tree_map(lambda x: x[:1], td)
        torch.utils._pytree.tree_map(lambda x: x[None], td)
        torch.utils._pytree.tree_map(lambda x: x.sum(), td)
        torch.utils._pytree.tree_map(lambda x: x.unsqueeze(-1), td)
        torch.utils._pytree.tree_map(lambda x: x.flatten(0, 1), td)
        torch.utils._pytree.tree_map(lambda x: x.to('meta'), td)
        torch.utils._pytree.tree_map(lambda x: None, td)
        torch.utils._pytree.tree_map(lambda x: 1, td)['a']
        [p for p, _ in torch.utils._pytree.tree_flatten_with_path(td)[0]]
        torch.utils._pytree.tree_structure(td) == torch.utils._pytree.tree_structure(td.clone())
        """,
        on="flat nested deep empty empty_nested zero locked named half_named cpu sub",
    ),
    *cases("pytree", "torch.utils._pytree.tree_leaves(td)[0] is td", on="subclass"),
    *cases(
        "pickle",
        """
        pickle.loads(pickle.dumps(td))
        pickle.loads(pickle.dumps(td, 2))
        """,
        on="flat nested deep empty scalar zero locked named cpu subclass empty_nested half_named mixed grad",
    ),
    *cases("pickle", "pickle.loads(pickle.dumps(td))", on="flat nested named"),
    *cases(
        "__getstate__",
        "sorted(k for k in td.__getstate__() if k != '_locked_schema')",
        on="flat nested locked named cpu",
    ),
    *cases("weakref", "weakref.ref(td)() is td", on=SOME),
    *cases(
        "vmap",
        """
        torch.vmap(lambda x: x)(td)
        torch.vmap(lambda x: x + 1)(td)
        torch.vmap(lambda x: x, in_dims=1)(td)
        torch.vmap(lambda x: x, in_dims=-1)(td)
        torch.vmap(lambda x: x, out_dims=1)(td)
        torch.vmap(lambda x: x, in_dims=1, out_dims=1)(td)
        torch.vmap(lambda x: x['a'].sum())(td)
        torch.vmap(lambda x: x.batch_size and x['a'].sum())(td)
        torch.vmap(lambda x, y: x + y)(td, td)
        torch.vmap(lambda x, y: (x, y))(td, T([2, 3]))
        torch.vmap(lambda x: {'x': x})(td)['x']
        torch.vmap(lambda x: x.unsqueeze(0))(td)
        torch.vmap(lambda x: x.set('z', x['a']))(td)
        """,
        on="floats named deep",
    ),
    *cases(
        "vmap",
        "torch.vmap(lambda x: x + 1)(td)",
        on="cpu",
        reason="the release forgets the device",
        ours="result.device == torch.device('cpu') and result.batch_size == (2, 3)",
    ),
    *cases("vmap", "torch.vmap(lambda x: x)(td)", on="locked nested half_named"),
    *cases(
        "default_collate",
        """
        torch.utils.data.default_collate([td, td])
        torch.utils.data.default_collate([{'x': td}, {'x': td}])['x']
        """,
        on="flat nested deep named",
    ),
]
