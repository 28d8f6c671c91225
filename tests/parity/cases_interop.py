"""Pytrees, pickles, vmap and the collate function of data loaders."""

from frame import SOME, cases

SPEC = (
    "from tensordict import NonTensorData as N, NonTensorStack, MetaData; "
    "import torch.utils._pytree as p; S = p.tree_structure; "
)

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
        "treespec",
        SPEC
        + "p.tree_map(lambda x, y: x, TensorDict(a=1, n='x'), TensorDict(a=1, n='y'))",
        on="none",
        message=False,
    ),
    *cases(
        "treespec",
        f"""
        {SPEC}S(TensorDict(a=1, n='x')) == S(TensorDict(a=1, n='y'))
        {SPEC}S(TensorDict(a=1, n='x')) == S(TensorDict(a=1, n='x'))
        {SPEC}S(TensorDict(a=1, n={{'m': 'x'}})) == S(TensorDict(a=1, n={{'m': 'y'}}))
        {SPEC}S(TensorDict(a=1, n='x')) == S(TensorDict(a=1, n=torch.zeros(1)))
        {SPEC}[S(N(v)) == S(N(w)) for v, w in [('x', 'y'), ('x', 'x'), (1, 1.0), (1, True), ([1],
            [1]), ({{'a': 1}}, {{'a': 2}})]]
        {SPEC}[S(N('x', batch_size=[3])) == S(N('x', batch_size=b)) for b in ([], [4], [3, 1])]
        {SPEC}S(N('x', device='cpu')) == S(N('x'))
        {SPEC}S(MetaData('x')) == S(MetaData('y')), S(MetaData('x')) == S(N('x'))
        {SPEC}S(NonTensorStack('x', 'y')) == S(NonTensorStack('x', 'z'))
        {SPEC}S(TensorDict(a=1, b=2)) == S(TensorDict(b=2, a=1))
        {SPEC}S(TensorDict(a=T([3]), batch_size=[3])) == S(TensorDict(a=T([4]), batch_size=[4]))
        {SPEC}S(TensorDict(a=T([3]), batch_size=[3])) == S(TensorDict(a=T([3])))
        {SPEC}S(TensorDict(a=T([3]), batch_size=[3], names=['x'])) == S(TensorDict(a=T([3]), batch_size=[3]))
        {SPEC}S(TensorDict(a=T([3]), device='cpu')) == S(TensorDict(a=T([3])))
        {SPEC}p.tree_map(lambda x, y: x + y, TensorDict(a=1, n='x'), TensorDict(a=1, n='x'))
        {SPEC}p.tree_map(lambda x, y: x + y, TensorDict(a=1, b=2), TensorDict(b=1, a=2))
        {SPEC}import copy; s = S(TensorDict(a=1, n='x')); copy.deepcopy(s) == s, pickle.loads(pickle.dumps(s)) == s
        """,  # noqa: E501
        on="none",
    ),
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

HELPERS = (SPEC,)
"""The beginnings of programs: answers go by what follows them."""
