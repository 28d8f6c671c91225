"""Classes and collections made of dictionaries, and what is written into classes."""

from frame import cases, differing

NUMBERS = "int float bool np.int64 np.float32 np.bool_"

CASES = [
    *cases(
        "from_dict",
        "\n".join(
            f"TensorDict.from_dict({{'n': {kind}(3), 'a': T([3])}}, batch_size={size})"
            for kind in NUMBERS.split()
            for size in ("[3]", "[]", "None")
        ),
        on="none",
    ),
    *cases(
        "from_dict",
        """
        TensorDict.from_dict({'n': 1j}, batch_size=[3])
        TensorDict.from_dict({'n': {'m': 3}}, batch_size=[3])
        TensorDict.from_dict({('n', 'm'): 3}, batch_size=[3])
        TensorDict.from_dict({'n': 3}, batch_size=[3], device='cpu')
        TensorDict.from_dict({'n': 3, 'a': T([3])}, auto_batch_size=True)
        TensorDict.from_dict({'n': 3, 'a': T([3])}, auto_batch_size=True, batch_size=[3])
        TensorDict.from_dict({'n': 3, 'a': T([3])}, batch_dims=1)
        TensorDict.from_dict({'n': torch.tensor(3)}, batch_size=[3])
        TensorDict.from_dict({'n': np.ones(())}, batch_size=[3])
        TensorDict.from_dict({'n': (3, 4)}, batch_size=[3])
        TensorDict.from_dict({'n': [3]}, batch_size=[3])
        TensorDict.from_tuple((3, 4), batch_size=[3])
        TensorDict({'n': T([3])}, [3]).from_dict_instance({'n': 3}, batch_size=[3])
        TensorDict.from_list([{'n': 3}, {'n': 4}])
        Sub.from_dict({'n': 3}, batch_size=[3])
        Typed.from_dict({'a': 3}, batch_size=[3])
        from_dict({'n': 3}, batch_size=[3])
        Data.from_dict({'a': T([3]), 'b': 3}, batch_size=[3])
        Data.from_dict({'a': T([3]), 'b': 3})
        Data.from_dict({'a': 3}, batch_size=[3])
        Data.from_dict({'a': T([3]), 'n': {'a': 3}}, batch_size=[3])
        from class_setup import *; NoCast.from_dict({'x': T([3]), 'i': 4}, batch_size=[3])
        from class_setup import *; NoCast.from_dict({'x': T([3]), 'i': 4.5}, batch_size=[3])
        from class_setup import *; AutoCast.from_dict({'x': T([3]), 'i': 4.5}, batch_size=[3])
        from class_setup import *; OnlyTensors.from_dict({'x': 4}, batch_size=[3])
        """,
        on="none",
        message=False,
    ),
    *cases(
        "from_dict_instance",
        """
        td.from_dict_instance({'x': T([3])})
        td.from_dict_instance({'x': T([3]), 's': None})
        td.from_dict_instance({'x': T([3])}, device='cpu')
        td.from_dict_instance({'x': T([3])}, auto_batch_size=True)
        td.from_dict_instance({})
        td.from_dict_instance({'y': T([3])})
        td.from_dict_instance({'x': T([3]), 'zz': T([3])})
        td.from_dict_instance({'zz': T([3])})
        td.from_dict_instance({'x': T([3])}, batch_size=[3], batch_dims=1)
        td.from_dict_instance({'x': T([3])}, batch_size=[4])
        td.from_dict_instance(td.to_dict())
        """,
        on="c_simple c_autocast c_frozen c_made c_derived c_child",
        message=False,
    ),
    *cases(
        "from_dict_instance",
        """
        td.from_dict_instance({'x': T([3]), 's': 'new', 'y': T([3])}, batch_size=[3])
        td.from_dict_instance({'x': T([3]), ('y', 'z'): T([3])}, batch_size=[3])
        """,
        on="c_simple c_child",
        message=False,
    ),
    *cases(
        "from_dict_instance",
        """
        td.from_dict_instance({'x': T([3]), 'n': {'x': T([3])}}, batch_size=[3])
        td.from_dict_instance({'x': T([3]), 'n': {}})
        td.from_dict_instance({'x': T([3]), 'n': {'zz': T([3])}})
        td.from_dict_instance({'x': T([3]), 'n': td.n}, batch_size=[3])
        """,
        on="c_outer",
        message=False,
    ),
    *cases(
        "update numbers",
        """
        td.update({'i': 7})
        td.update({'i': True})
        td.update({'i': 2.5})
        td.update(i=7)
        td.update({'i': 7}, inplace=True)
        td.update({'s': 3})
        td.update({'x': 3})
        """,
        on="c_nocast c_autocast c_values",
        message=False,
    ),
    *cases(
        "update numbers",
        """
        from class_setup import *; Numbers(T([3]), batch_size=[3]).update({'i': 7})
        from class_setup import *; Numbers(T([3]), batch_size=[3]).update({'i': True, 'x': T([3])})
        from class_setup import *; Numbers(T([3]), batch_size=[3]).update(i=7)
        from class_setup import *; Numbers(T([3]), batch_size=[3]).update({'i': 2.5})
        from class_setup import *; Numbers(T([3]), batch_size=[3]).update({'f': 2})
        from class_setup import *; Numbers(T([3]), batch_size=[3]).update({'f': np.float64(2)})
        from class_setup import *; Numbers(T([3]), batch_size=[3]).update({'w': 2})
        from class_setup import *; Numbers(T([3])).update({'i': 7, 'f': 1.5})
        """,
        on="none",
        message=False,
    ),
    *cases(
        "own class",
        """
        type(Data.from_tensordict(TensorDict(a=T([2]), n=TensorDict(a=T([2])))).n).__name__
        type(Data.from_tensordict(TensorDict(a=T([2]), n=TensorDict(z=T([2])))).n).__name__
        type(Data.from_dict({'a': T([2]), 'n': {'a': T([2]), 'n': {'a': T([2])}}}).n.n).__name__
        type(Data(T([2])).update({'n': {'a': T([2])}}).n).__name__
        type(Data(T([2])).update(TensorDict(n=TensorDict(a=T([2])))).n).__name__
        type(Data(T([2]), n=TensorDict(a=T([2]))).n).__name__
        type(Data(T([2])).set('n', TensorDict(a=T([2]))).n).__name__
        """,
        on="none",
    ),
    *cases(
        "copy_at_",
        """
        td.copy_at_(td.clone()[0], 0)
        td.copy_at_(td.clone(), ...)
        td.copy_at_(td[1].to_tensordict(), 0)
        td.copy_at_(td[1].clone(), 0, fast=False)
        """,
        on="c_tensors c_shadow tc_in",
        message=False,
    ),
    *cases(
        "copy_at_",
        """
        td = TensorDict(n=Sub(a=T([3, 2]), batch_size=[3]), batch_size=[3]); td.copy_at_(td[1].clone(), 0)
        td = TensorDict(n=TensorDict(a=T([3, 2]), batch_size=[3]), batch_size=[3]);
            td.copy_at_(TensorDict(n=Sub(a=T([2]))), 0)
        td = TensorDict(n=TensorDict(a=T([3, 2]), batch_size=[3]), batch_size=[3]);
            td.copy_at_(TensorDict(n=Data(a=T([2]))), 0)
        """,
        on="none",
        message=False,
    ),
    *cases(
        "set",
        """
        td.set('x', NonTensorData('v'), inplace=True)
        td.set('x', MetaData('v'), inplace=True)
        td.set('s', NonTensorData('v'), inplace=True)
        td.set('s', MetaData('v'), inplace=True)
        """,
        on="c_simple c_nocast",
        message=False,
    ),
    *cases(
        "keys that are none",
        """
        td.del_(('x', 1))
        td.del_(())
        td.del_(1)
        td.rename_keys({None: 'zz'})
        td.rename_keys({1: 'zz'}, strict=False)
        td.rename_keys({(): 'zz'})
        """,
        on="c_simple",
        message=False,
    ),
    *cases(
        "members of a class",
        """
        type(lazy_stack([Sub(a=T([3]), batch_size=[3])]).expand(2, 3)).__name__
        type(lazy_stack([Sub(a=T([3]), batch_size=[3]), Sub(a=T([3]), batch_size=[3])]).expand(4, 2, 3)).__name__
        type(lazy_stack([Typed(a=T([3]), batch_size=[3]), Typed(a=T([3]), batch_size=[3])]).expand(4, 2, 3)[0]).__name__
        type(lazy_stack([Typed(a=T([3]), batch_size=[3]), Typed(a=T([3]), batch_size=[3])]).softmax(0)[0]).__name__
        type(lazy_stack([Sub(a=T([3]), batch_size=[3])] * 2).broadcast_to([4, 2, 3])).__name__
        s = lazy_stack([Data(T([2]), batch_size=[2])] * 2); s = lazy_stack([s, s]); s.a = None; s.a
        s = lazy_stack([TensorDict(a=T([2]), batch_size=[2])] * 2); lazy_stack([s, s]).del_('a')
        """,
        on="none",
    ),
    *cases(
        "locked stacks",
        """
        s = lazy_stack([TensorDict(a=T([2, 3]), batch_size=[2]), TensorDict(a=T([2, 3]),
            batch_size=[2])]).lock_(); [each.is_locked for each in (s.roll(1, 0), s.flip(0),
            s.norm(), s.rot90(), s.expand(3, 2, 2), s.sum(0), s.amax(0))]
        s = lazy_stack([TensorDict(a=T([2, 3]), batch_size=[2]), TensorDict(a=T([2, 3]),
            batch_size=[2])]).lock_(); [each.is_locked for each in (s.repeat_interleave(2),
            s.repeat_interleave(2, 0), s.repeat_interleave(2, 1), s.repeat(2, 1))]
        """,
        on="none",
    ),
    *cases(
        "loss",
        """
        x = TensorDict(n=TensorDict(s=NonTensorStack('a', 'b'), batch_size=[2]),
            e=TensorDict(batch_size=[2]), a=T([2]), batch_size=[2]); mse(x, x)
        x = TensorDict(e=TensorDict(batch_size=[2]), a=T([2]), batch_size=[2]); mse(x, x)
        x = TensorDict(n=TensorDict(s=NonTensorStack('a', 'b'), batch_size=[2]),
            e=TensorDict(batch_size=[2]), batch_size=[2]); mse(x, x)
        x = TensorDict(n=TensorDict(s=NonTensorStack('a', 'b'), e=TensorDict(batch_size=[2]),
            batch_size=[2]), batch_size=[2]); mse(x, x)
        """.replace("mse(", "torch.nn.functional.mse_loss("),
        on="none",
    ),
    *cases(
        "set_non_tensor",
        """
        TensorDict(n=Point(T([2]), 'x')).set_non_tensor(('n', 'z'), 'v')
        Data(T([2]), n=Data(T([2]))).set_non_tensor(('n', 'z'), None)
        Data(T([2]), n=Data(T([2]))).set_non_tensor(('n', 'b'), 'v')
        """,
        on="none",
        message=False,
    ),
    *cases(
        "cat_tensors",
        """
        Data(T([2]), b=T([2])).cat_tensors('a', 'b', out_key='q')
        Data(T([2]), b=T([2])).cat_tensors('a', 'b', out_key='a')
        Data(T([2]), b=T([2])).stack_tensors('a', 'b', out_key='a')
        """,
        on="none",
    ),
    *cases(
        "load_state_dict",
        "s = lazy_stack([TensorDict(a=T([0]), s='a', batch_size=[0])] * 2); s.load_state_dict(s.state_dict())['a']",
        on="none",
    ),
    *cases(
        "shadowed items",
        """
        from class_setup import *; t = TensorDict(n=Items(T([3]), batch_size=[3]), batch_size=[3]);
            t.update_at_(t[0].clone(), 1); t['n'].x
        from class_setup import *; t = TensorDict(n=Items(T([3]), batch_size=[3]), batch_size=[3]);
            t.update_at_({'n': {'x': T([], start=7)}}, 1); t['n'].x
        from class_setup import *; t = TensorDict(n=Items(T([3]), batch_size=[3]), batch_size=[3]);
            t.update(t.clone()); t['n'].x
        """,
        on="none",
    ),
    *cases(
        "repeat_interleave",
        """
        TensorDict(s='v', a=T([2])).repeat_interleave(2, dim=0)
        TensorDict(s='v', a=T([2])).repeat_interleave(torch.tensor([2]), dim=0)
        TensorDict(a=T([2])).repeat_interleave(3)
        Point(T([2]), 'x').repeat_interleave(2, dim=0)
        """,
        on="none",
    ),
    *cases(
        "grad",
        "x = TensorDict(u=U(torch.ones(2)), batch_size=[3]).requires_grad_(); (x['u'] * 2).sum().backward(); x.grad",
        on="none",
    ),
    *cases(
        "from_dataclass",
        """
        from_dataclass(Data) is Data, from_dataclass(Data, frozen=True) is Data
        from_dataclass(Data, inplace=True) is Data
        """,
        on="none",
    ),
    *cases(
        "masked_select",
        """
        TensorDict(a=T([2, 3, 1])).masked_select(torch.ones(2, 3).bool())
        TensorDict(a=T([2])).masked_select(torch.tensor([True, False]))
        """,
        on="none",
    ),
]

CASES = differing(
    CASES,
    "Numbers(T([3])).update({'i': 7, 'f': 1.5})",
    reason="a field of numbers keeps them without batch dims, too",
    ours="(result.i, result.f) == (7, 1.5)",
)
