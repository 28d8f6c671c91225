"""Copies, new collections, and collections made of Python objects."""

from frame import EVERY, SOME, cases

NESTED = "{'a': T([2, 3]), 'n': {'b': T([2, 3, 4])}}"

CASES = [
    *cases(
        "clone",
        """
        td.clone()
        td.clone(False)
        td.clone(recurse=True)
        """,
        on=EVERY + " empty_nested nested_subclass half_named mixed",
    ),
    *cases("clone", "td.clone(foo=1)", on="flat"),
    *cases(
        "clone",
        "[(v.requires_grad, v.is_leaf) for v in td.clone().values(True, True)]",
        on="grad",
    ),
    *cases("copy", "td.copy()"),
    *cases("__copy__", "copy.copy(td)"),
    *cases("__deepcopy__", "copy.deepcopy(td)"),
    *cases(
        "empty",
        """
        td.empty()
        td.empty(recurse=True)
        td.empty(True)
        td.empty(batch_size=[2])
        td.empty(batch_size=[7, 7])
        td.empty(batch_size=[2, 3, 4])
        td.empty(names=None)
        td.empty(device=None)
        td.empty(device='meta')
        td.empty(batch_size=7)
        """,
        on=EVERY + " half_named nested_subclass",
    ),
    *cases(
        "empty",
        "td.empty(True)",
        on="empty_nested",
        reason="the release gives the very same nested collections where they are empty",
        ours="list(result.keys()) == ['n', 'm'] and result['n'] is not td['n']",
    ),
    *cases(
        "empty",
        """
        td.empty(names=['q', 'r'])
        td.empty(True, names=['q', 'r'])
        td.empty(True, device=None)
        td.empty(True, device='meta')
        """,
        on="flat nested deep named half_named cpu",
    ),
    *cases(
        "empty",
        """
        td.empty(True, batch_size=[2])
        td.empty(True, batch_size=[3])
        td.empty(True, batch_size=[])
        td.empty(True, batch_size=[2, 3, 4])
        td.empty(True, batch_size=[2, 3, 5])
        td.empty(True, batch_size=[2, 3, 4, 5])
        """,
        on="nested deep named half_named",
    ),
    *cases(
        "new_zeros",
        """
        td.new_zeros(5)
        td.new_zeros([5])
        td.new_zeros(torch.Size([5]))
        td.new_zeros(5, 2)
        td.new_zeros(2, 0, 3)
        td.new_zeros(5, dtype=torch.float64)
        td.new_zeros(5, device='meta')
        td.new_zeros(5, device=None)
        """,
        on=SOME + " deep cpu subclass empty nested_subclass scalar zero mixed",
    ),
    *cases(
        "new_zeros", "td.new_zeros()\ntd.new_zeros(())", on="nested deep locked sub"
    ),
    *cases(
        "new_zeros",
        "td.new_zeros()",
        on="named",
        reason="the release keeps two names for no dim",
        ours="result.names == [] and result.batch_size == ()",
    ),
    *cases("new_zeros", "td.new_zeros(5, requires_grad=True)", on="floats mixed"),
    *cases(
        "new_zeros",
        """
        td.new_zeros(-1)
        td.new_zeros('x')
        td.new_zeros(5.)
        td.new_zeros([5], 2)
        td.new_zeros(size=(5,))
        """,
        on="flat",
    ),
    *cases(
        "new_ones",
        "td.new_ones(5); td.new_ones(2, 3, dtype=torch.bool)",
        on=SOME + " half_named",
    ),
    *cases(
        "new_full",
        """
        td.new_full((5,), 2)
        td.new_full([5], 2.5)
        td.new_full(5, 2.5)
        td.new_full([5], fill_value=2)
        td.new_full([5], 2, dtype=torch.int32)
        td.new_full([5], T([]))
        """,
        on="nested deep",
    ),
    *cases("new_empty", "td.new_empty(5, 2)", on=SOME, values=False),
    *cases(
        "new_tensor",
        """
        td.new_tensor(3)
        td.new_tensor(3.5)
        td.new_tensor([1, 2])
        td.new_tensor((1, 2))
        td.new_tensor([[1, 2]])
        td.new_tensor(T([2]))
        td.new_tensor(T([2, 3]))
        td.new_tensor(np.zeros((2, 3)))
        td.new_tensor(td)
        td.new_tensor(td.clone())
        td.new_tensor(td[0])
        td.new_tensor(3, dtype=torch.float64)
        td.new_tensor(3, device='meta')
        td.new_tensor('x')
        td.new_tensor(TensorDict(z=T([2, 3]), batch_size=[2, 3]))
        """,
        on="flat nested deep named cpu locked subclass nested_subclass sub",
    ),
    *cases("new_tensor", "td.new_tensor(3., requires_grad=True)", on="floats"),
    *cases("new_tensor", "td.new_tensor(3)", on="empty"),
    *cases(
        "new_tensor",
        "td.new_tensor(3)",
        on="meta",
        reason="the release says that the leaves, which are on meta, are on the CPU",
        ours="result.device == torch.device('meta')",
    ),
    *cases(
        "replace",
        """
        td.replace({'a': T([2, 3]) * 2})
        td.replace(a=T([2, 3]) * 2)
        td.replace(z=T([2, 3]))
        td.replace({'a': T([3])})
        td.replace({'n': {'b': T([2, 3])}})
        td.replace({'n': {'zz': T([2, 3])}})
        td.replace({('n', 'b'): T([2, 3])})
        td.replace(TensorDict(z=T([2, 3]), batch_size=[2, 3]))
        td.replace()
        td.replace({})
        td.replace(TensorDict({}, [2, 3]))
        td.replace({'a': T([2, 3])}, {'a': T([2, 3])})
        td.replace({'a': T([2, 3])}, a=T([2, 3]) * 2)
        td.replace(3)
        """,
        on="nested locked named subclass cpu",
    ),
    *cases(
        "replace",
        "td.replace(a=T([2, 3]) * 2)",
        on="sub",
        reason="the release writes the new value into the parent of the view",
        ours="(o['a'] == T([4, 3])).all() and (result['a'] == T([2, 3]) * 2).all()",
    ),
    *cases(
        "create_nested",
        """
        td.create_nested('z')
        td.create_nested(('z', 'w'))
        td.create_nested(('n', 'w'))
        td.create_nested('n')
        td.create_nested('a')
        td.create_nested(('n', 'b', 'w'))
        """,
        on="nested deep named cpu locked",
    ),
    *cases("create_nested", "td.create_nested('z')", on="subclass sub empty"),
    *cases(
        "create_nested",
        "td.create_nested(())\ntd.create_nested(3)",
        on="flat",
        message=False,
    ),
    *cases(
        "create_nested",
        "td.create_nested(('n', 'q', 'r'))",
        on="nested",
        reason="the release loses the other entries of 'n'",
        ours="list(td['n'].keys()) == ['b', 'm', 'q'] and 'r' in td['n', 'q']",
    ),
    *cases(
        "from_dict",
        f"""
        TensorDict.from_dict({NESTED})
        TensorDict.from_dict({NESTED}, auto_batch_size=True)
        TensorDict.from_dict({NESTED}, auto_batch_size=False)
        TensorDict.from_dict({NESTED}, batch_size=[2])
        TensorDict.from_dict({NESTED}, batch_size=[2], auto_batch_size=True)
        TensorDict.from_dict({NESTED}, batch_size=[5])
        TensorDict.from_dict({NESTED}, batch_size=2)
        TensorDict.from_dict({NESTED}, batch_dims=0)
        TensorDict.from_dict({NESTED}, batch_dims=1)
        TensorDict.from_dict({NESTED}, batch_dims=5)
        TensorDict.from_dict({NESTED}, batch_dims=1, auto_batch_size=True)
        TensorDict.from_dict({NESTED}, batch_dims=1, batch_size=[2])
        TensorDict.from_dict({NESTED}, names=['x', 'y'], batch_size=[2, 3])
        TensorDict.from_dict({NESTED}, device='cpu')
        TensorDict.from_dict({NESTED}, device='meta', batch_size=[2])
        TensorDict.from_dict({{'a': T([2, 3]), 'n': {{'b': T([3, 3])}}}}, batch_dims=1)
        TensorDict.from_dict({{'a': T([2, 3]), 'n': {{'b': T([2, 4])}}}}, batch_dims=2)
        TensorDict.from_dict({{'a': T([2, 3]), 'n': {{}}}}, auto_batch_size=True)
        TensorDict.from_dict({{'n': {{'b': T([2, 3])}}, 'c': T([])}}, batch_dims=1)
        TensorDict.from_dict({{}}, auto_batch_size=True)
        TensorDict.from_dict({{}}, batch_size=[3])
        TensorDict.from_dict({{'n': {{}}}}, batch_size=[3])
        TensorDict.from_dict({{'a': 1, 'b': 2.0, 'c': [1, 2], 'd': np.zeros(3), 'e': True}})
        TensorDict.from_dict({{'a': np.float64(2.0), 'b': (1, 2), 'c': [[1, 2], [3, 4]]}})
        TensorDict.from_dict({{'a': [], 'b': (), 'c': {{}}}})
        TensorDict.from_dict({{'b': Pair(T([2]), T([3]))}})
        TensorDict.from_dict({{'b': Plain(T([2]), T([3]))}})
        TensorDict.from_dict({{'b': np.zeros((2, 3), dtype=[('a', 'f4'), ('b', 'i8')])}})
        TensorDict.from_dict({{'b': collections.OrderedDict(a=1)}})
        TensorDict.from_dict({{('a', 'b'): T([2]), 'a': {{'c': T([2])}}}})
        TensorDict.from_dict({{'a': {{'c': T([2])}}, ('a', 'b'): T([2])}})
        TensorDict.from_dict([('a', 1)])
        TensorDict.from_dict(3)
        TensorDict.from_dict({{'a': TensorDict(a=T([2]), batch_size=[])}}, batch_size=[2])
        Sub.from_dict({NESTED}, auto_batch_size=True)
        from_dict({NESTED})
        from_dict({NESTED}, auto_batch_size=True)
        from_dict({NESTED}, batch_size=[2], names=['x'], device='cpu')
        """,
        on="none",
    ),
    *cases(
        "from_dict",
        """
        TensorDict.from_dict({'x': td})
        TensorDict.from_dict({'x': td}, batch_size=[2])
        TensorDict.from_dict({'x': td}, batch_dims=1)
        TensorDict.from_dict({'x': td, 'y': T([3])}, auto_batch_size=True)
        TensorDict.from_dict(td.to_dict(), auto_batch_size=True)
        TensorDict.from_dict(td)
        """,
        on="flat nested deep empty_nested one",
    ),
    *cases(
        "from_dict",
        "TensorDict.from_dict({'a': np.ma.masked_array([1., 2.], mask=[0, 1])})",
        on="none",
        reason="the release makes a tensor of what lies under the mask of an array",
        ours="isinstance(error, ValueError) and 'masked' in str(error)",
    ),
    *cases(
        "from_dict",
        f"TensorDict.from_dict({NESTED}, names=['x'], batch_dims=1)",
        on="none",
        reason="the release drops the names without a word",
        ours="result.names == ['x']",
    ),
    *cases(
        "from_dict_instance",
        f"""
        td.from_dict_instance({NESTED})
        td.from_dict_instance({NESTED}, auto_batch_size=True)
        td.from_dict_instance({NESTED}, batch_size=[2, 3])
        td.from_dict_instance({NESTED}, batch_dims=1)
        td.from_dict_instance({NESTED}, batch_dims=1, batch_size=[2])
        td.from_dict_instance({{'z': T([2, 3])}})
        td.from_dict_instance({{'n': 3}})
        td.from_dict_instance({{'a': {{'x': 3}}}})
        """,
        on="nested locked named cpu",
    ),
    *cases(
        "from_any",
        """
        from_any(T([2]))
        from_any(3)
        from_any('s')
        from_any(None)
        from_any([1, 2, 3])
        from_any([True, False])
        from_any([[1, 2], [3, 4]])
        from_any([])
        from_any([[]])
        from_any([1 + 2j])
        from_any((1, 2, 3))
        from_any((T([2]), T([3])), auto_batch_size=True)
        from_any({'a': (1, 2, 3)})
        from_any({'a': T([2])}, auto_batch_size=True)
        from_any({'a': T([2])}, batch_size=[2])
        from_any({'a': T([2])}, batch_dims=1, auto_batch_size=True)
        from_any({'a': T([2])}, device='cpu')
        from_any(Plain(T([2]), T([2])), auto_batch_size=True)
        from_any(Pair(T([2]), {'x': T([3])}))
        from_any(Pair(T([2]), {'x': T([3])}), auto_batch_size=True)
        from_any(np.zeros((2, 3), dtype=[('a', 'f4'), ('b', 'i8')]))
        from_any(np.zeros((2, 3)))
        from_any(np.float64(3))
        from_any(())
        from_any({})
        from_any(collections.UserDict(a=T([2])))
        from_any(collections.OrderedDict(a=T([2])))
        from_any(torch.Size([2]))
        from_any(range(3))
        from_any({1, 2})
        Sub.from_any({'a': T([2])})
        Sub.from_any(Pair(T([2]), T([2])))
        """,
        on="none",
    ),
    *cases(
        "from_any",
        "from_any(td); Sub.from_any(td)\nfrom_any(td, batch_size=[2])",
        on="flat",
    ),
    *cases(
        "from_any",
        "from_any({'a': T([2, 3])}, batch_dims=1)",
        on="none",
        warned=True,
    ),
    *cases(
        "from_tuple",
        """
        from_tuple((T([2]), T([3])))
        from_tuple((T([2]), T([3])), auto_batch_size=True)
        from_tuple((T([2, 3]), T([2, 3])), batch_dims=1)
        from_tuple((T([2, 3]), T([2, 3])), batch_dims=1, auto_batch_size=True)
        from_tuple((T([2, 3]), T([2, 3])), batch_size=[2])
        from_tuple((T([2, 3]), T([2, 3])), batch_size=[2], batch_dims=1)
        from_tuple((T([2, 3]), (T([2, 3]),)), batch_size=[2])
        from_tuple((T([2, 3]), {'x': T([2, 3])}), auto_batch_size=True)
        from_tuple([T([2])])
        from_tuple(T([2]))
        from_tuple(3)
        from_tuple(())
        from_tuple(Pair(T([2]), T([2])))
        from_tuple((1, 2.0, [1, 2]), device='cpu')
        Sub.from_tuple((1, 2.0))
        """,
        on="none",
        warned=True,
    ),
    *cases(
        "from_namedtuple",
        """
        from_namedtuple(Pair(T([2]), T([3])))
        from_namedtuple(Pair(T([2]), T([2, 3])), auto_batch_size=True)
        from_namedtuple(Pair(T([2]), T([2, 3])), batch_dims=1)
        from_namedtuple(Pair(T([2]), Pair(T([2]), T([2]))), batch_size=[2])
        from_namedtuple(Pair(T([2]), {'x': T([2])}), batch_size=[2], device='cpu')
        from_namedtuple((T([2]), T([2])))
        from_namedtuple(3)
        from_namedtuple({'a': 1})
        Sub.from_namedtuple(Pair(T([2]), Pair(T([2]), T([2]))), batch_size=[2])
        """,
        on="none",
        warned=True,
    ),
    *cases(
        "from_dataclass",
        """
        TensorDict.from_dataclass(Plain(T([2]), T([2])))
        TensorDict.from_dataclass(Plain(T([2]), T([2])), auto_batch_size=True)
        TensorDict.from_dataclass(Plain(T([2]), T([2])), batch_size=[2])
        TensorDict.from_dataclass(Plain(T([2]), Plain(T([2]), T([2]))), batch_size=[2])
        TensorDict.from_dataclass(Plain(T([2]), {'z': T([2])}), batch_size=[2])
        TensorDict.from_dataclass(Plain(T([2]), T([2])), batch_dims=1)
        TensorDict.from_dataclass(Plain(T([2]), T([2])), device='meta')
        TensorDict.from_dataclass(3)
        TensorDict.from_dataclass(Plain)
        Sub.from_dataclass(Plain(T([2]), T([2])))
        """,
        on="none",
        warned=True,
        message=True,
    ),
    *cases(
        "from_struct_array",
        """
        from_struct_array(np.zeros((2, 3), dtype=[('a', 'f4'), ('b', 'i8')]))
        from_struct_array(np.zeros((2, 3), dtype=[('a', 'f4', (2,))]), auto_batch_size=True)
        from_struct_array(np.zeros((2, 3), dtype=[('a', 'f4', (2,))]), batch_size=[2])
        from_struct_array(np.zeros((2, 3), dtype=[('a', 'f4', (2,))]), batch_dims=1)
        from_struct_array(np.zeros((2, 3), dtype=[('a', 'f4'), ('b', [('c', 'i4')])]))
        from_struct_array(np.zeros((2, 3), dtype=[('a', 'f4'), ('b', [('c', 'i4')])]), batch_size=[2])
        from_struct_array(np.zeros((), dtype=[('a', 'f4')]))
        from_struct_array(np.zeros((2,), dtype=[('a', '>f4')]))
        from_struct_array(np.zeros((2,), dtype=[('a', 'u2'), ('b', 'c8'), ('c', 'f2'), ('d', '?')]))
        from_struct_array(np.zeros((2,), dtype=[('a', 'f4')]), device='cpu')
        from_struct_array(np.zeros((2, 3)))
        from_struct_array(3)
        s = np.zeros((2,), dtype=[('a', 'f4'), ('b', 'i8')]); x = from_struct_array(s); s['a'] = 5; x
        """,
        on="none",
        warned=True,
    ),
    *cases(
        "from_struct_array",
        "from_struct_array(td.to_struct_array())",
        on="flat nested deep scalar zero mixed",
    ),
    *cases(
        "from_pytree",
        "from_pytree(T([2]))\nfrom_pytree(3)\nfrom_pytree({'a': None})",
        on="none",
    ),
    *cases(
        "fromkeys",
        """
        fromkeys(['a', ('n', 'b')])
        fromkeys(['a', ('n', 'b')], 3)
        fromkeys(['a', ('n', 'b')], T([2]))
        fromkeys({'a': 1, 'b': 2}, 2.0)
        fromkeys('ab')
        fromkeys([])
        fromkeys([3])
        Sub.fromkeys(['a', ('n', 'b')])
        """,
        on="none",
    ),
    *cases(
        "from_list",
        """
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}])
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], auto_batch_size=True)
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], batch_size=[2])
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], batch_size=[2, 2])
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], batch_size=[3])
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], batch_dims=0)
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], batch_dims=1)
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], batch_dims=2)
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], batch_dims=1, batch_size=[2])
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], lazy=False)
        TensorDict.from_list([{'a': T([2])}, {'a': T([3])}], lazy=False)
        TensorDict.from_list([{'a': {'b': T([2])}}, {'a': {'b': T([2])}}], batch_size=[2])
        TensorDict.from_list([{'a': 1}, {'a': 2}], names=['x'])
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], names=['x', 'y'], batch_size=[2, 2])
        TensorDict.from_list([{'a': T([2])}, {'a': T([2])}], names=['x', 'y'])
        TensorDict.from_list([{'a': 1}, {'a': 2}], device='cpu')
        TensorDict.from_list([])
        TensorDict.from_list([1, 2])
        TensorDict.from_list(({'a': 1}, {'a': 2}))
        TensorDict.from_list(iter([{'a': 1}]))
        TensorDict.from_list({'a': 1})
        Sub.from_list([{'a': 1}, {'a': 2}])
        TensorDict.from_list([TensorDict(a=T([2])), TensorDict(a=T([2]))])
        """,
        on="none",
        warned=True,
    ),
    *cases(
        "from_schema",
        """
        TensorDict.from_schema({'a': ([2], torch.float32)})
        TensorDict.from_schema({'a': ([2], torch.float32), ('n', 'b'): ([], torch.int64)}, batch_size=[3])
        TensorDict.from_schema({'a': ([2], torch.float32)}, device='meta')
        TensorDict.from_schema({'a': ([2], torch.float32)}, device='cpu')
        TensorDict.from_schema({'a': ([2], torch.float32)}, batch_size=2)
        TensorDict.from_schema({'a': [2]})
        TensorDict.from_schema({'a': (2, torch.float32)})
        TensorDict.from_schema({'a': ([2], torch.float32)}, storage='foo')
        TensorDict.from_schema({'a': ([2], torch.float32)}, storage='memmap')
        TensorDict.from_schema({'a': ([2], torch.float32)}, foo=1)
        TensorDict.from_schema({})
        Sub.from_schema({'a': ([2], torch.float32), ('n', 'b'): ([], torch.int64)}, batch_size=[3])
        """,
        on="none",
    ),
    *cases(
        "make_tensordict",
        """
        make_tensordict({'a': T([2, 3])})
        make_tensordict(a=T([2, 3]), n={'b': T([2, 3, 4])})
        make_tensordict({'a': T([2, 3])}, [2])
        make_tensordict({'a': T([2, 3])}, 2)
        make_tensordict({'a': T([2, 3])}, batch_size=[2], device='cpu')
        make_tensordict({'a': T([2, 3])}, auto_batch_size=True)
        make_tensordict({'a': T([2, 3])}, [2], auto_batch_size=True)
        make_tensordict({'a': T([2, 3])}, b=T([2]))
        make_tensordict()
        make_tensordict({'a': (1, 2), 'b': [1, 2]})
        make_tensordict({('a', 'b'): T([2, 3])}, auto_batch_size=True)
        make_tensordict(TensorDict(a=T([2]), batch_size=[2]))
        """,
        on="none",
    ),
    *cases(
        "replace",
        """
        td.replace(TensorDict({'e': {}}, [2, 3])) is td
        td.replace(TensorDict({'a': {}}, [2, 3]))
        td.replace({'e': {}}) is td
        td.replace(TensorDict({'n': {'e': {}}}, [2, 3]), z=T([2, 3]))
    """,
        on="empty flat empty_nested",
    ),
    *[
        each
        for method, call in (
            ("from_dict", "TensorDict.from_dict"),
            ("from_any", "from_any"),
        )
        for each in cases(
            method,
            f"{call}({{3: T([2])}})",
            on="none",
            reason="the release refuses keys that are numbers",
            ours="list(result.keys()) == ['3'] and list(result.to_dict()) == [3]",
        )
    ],
]

CASES += cases(
    "new_zeros",
    """
    td.new_zeros(5)
    td.new_zeros([5])
    td.new_zeros(torch.Size([5]))
    td.new_zeros(2, 0, 3)
    td.new_zeros(5, dtype=torch.float64)
    td.new_zeros(5, device='meta')
    td.new_zeros(5, device=None)
    """,
    on="named",
    reason="the release gives the names to other dims than those that had them",
    ours="result.names == [None] * result.batch_dims",
)
