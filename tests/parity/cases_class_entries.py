"""Entries of classes and of collections that hold values: removing, indexing, writing."""

from frame import cases

CASES = [
    *cases(
        "tensorclass entries",
        """
        Data(T([2]), batch_size=[2])[()]
        d = Data(T([2]), batch_size=[2]); d[()] = d.clone() * 2; d.a
        Data(T([2]))._get_sub_tensordict(()).a
        Data(T([2])).del_('n').n
        Data(T([2])).del_('nope')
        Data(T([2])).del_(('n', 'a'))
        Data(T([2])).del_(('a', 'b'))
        Data(T([2])).del_(('b', 'c'))
        Data(T([2]), n=Data(T([2]))).del_(('n', 'nope'))
        Data(T([2]), n=Data(T([2]))).del_(('n', 'b')).n.b
        Data(T([2])).lock_().del_('nope')
        Data(T([2])).lock_().del_('a')
        Data(T([2])).lock_().del_(('n', 'a'))
        Point(T([2]), 'x').del_(('s', 'y'))
        Point(T([2]), 'x').del_('s').s
        s = lazy_stack([Data(T([2]), n=Data(T([2]))), Data(T([2]))]); lazy_stack([s, s.clone()]).n
        s = lazy_stack([Data(T([2]), n=Data(T([2]))), Data(T([2]))]); s.view(1, 2).n
        s = lazy_stack([Data(T([2]), n=Data(T([2]))), Data(T([2]))]); s.unsqueeze(0).n
        Data(T([0, 2]), batch_size=[0]).to_lazystack(0)
        """,
        on="none",
        message=False,
    ),
    *cases("to_lazystack", "td.to_lazystack(0)", on="zero"),
    *cases(
        "sum",
        """
        TensorDict(s=NonTensorStack('a', 'b'), a=T([2, 3]), batch_size=[2]).sum(dim='feature')
        TensorDict(n=TensorDict(s=NonTensorStack('a', 'b'), batch_size=[2]), a=T([2, 3]), batch_size=[2]).std(dim='feature')
        TensorDict(s='a', a=T([2, 3]), batch_size=[2]).sum(dim='feature')
        """,
        on="none",
        message=False,
    ),
    *cases(
        "setitem values",
        """
        td = TensorDict(s='a', b=T([3, 3], 'int64'), c=T([3], 'bool'), batch_size=[3]); td[[1]] = 0
        td = TensorDict(s='a', b=T([3, 3], 'int64'), c=T([3], 'bool'), batch_size=[3]); td[[1]] = 0.5
        td = TensorDict(s='a', b=T([3], 'int64'), batch_size=[3]); td[torch.tensor([True, False, True])] = 0.5
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[0] = TensorDict(s='x', batch_size=[3])
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[0] = TensorDict(s='x')
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[0] = TensorDict(s='x', batch_size=[2, 3])
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[0] = TensorDict(s='x', batch_size=[1, 3])
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[0] = TensorDict(s='x', batch_size=[5])
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[:1] = TensorDict(s='x', batch_size=[3, 1])
        td = TensorDict(s='a', b=T([2, 3]), batch_size=[2, 3]); td[:1] = TensorDict(s='x', batch_size=[1])
        """,
        on="none",
        message=False,
    ),
]
