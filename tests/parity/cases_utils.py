"""Helpers around collections, keys and settings."""

from frame import cases

U = "u = tensordict.utils; "


def _utils(method: str, programs: str, on: str = "none", **options: object) -> list:
    lines = [line.strip() for line in programs.strip().splitlines() if line.strip()]
    return cases(method, "\n".join(U + line for line in lines), on=on, **options)


K = "a = TensorDict(k=torch.tensor([1, 2, 3, 2]), v=T([4, 2]), batch_size=[4]); "
L = "b = TensorDict(k=torch.tensor([3, 2, 9]), v=T([3, 2]), batch_size=[3]); "
M = "c = TensorDict(k=T([2, 3], 'int64'), batch_size=[2, 3]); "

CASES = [
    *_utils(
        "expand_as_right",
        """
        u.expand_as_right(T([2]), T([2, 3]))
        u.expand_as_right(T([2, 3]), T([2]))
        u.expand_as_right(T([2]), T([3, 3]))
        u.expand_as_right(T([2, 1]), T([2, 3, 4]))
        u.expand_as_right(T([1]), T([3, 2]))
        u.expand_as_right(T([2, 3]), T([2, 1, 4]))
        u.expand_as_right(T([2, 1]), T([2, 0]))
        u.expand_as_right(T([]), T([3, 3]))
        """,
    ),
    *_utils(
        "expand_as_right",
        """
        u.expand_as_right(T([2]), td)
        u.expand_as_right(T([2, 3]), td)
        u.expand_as_right(td, T([2, 3, 4]))
        u.expand_as_right(td[0], T([2, 3, 4]))
        """,
        on="flat nested",
    ),
    *_utils(
        "expand_right",
        """
        u.expand_right(T([2]), [2, 3])
        u.expand_right(T([2]), (2, 3))
        u.expand_right(T([2]), torch.Size([2, 3]))
        u.expand_right(T([2, 1]), [2, 3])
        u.expand_right(T([2]), [3, 3])
        u.expand_right(T([2, 3]), [2])
        u.expand_right(T([2]), 2)
        """,
    ),
    *_utils("expand_right", "u.expand_right(td, [4, 2])", on="one"),
    *_utils(
        "unravel_key",
        """
        u.unravel_key('a')
        u.unravel_key(('a', ('b',)))
        u.unravel_key((('a',),))
        u.unravel_key(3)
        u.unravel_key(['a'])
        u.unravel_key(())
        u.unravel_key(('a', 3))
        u.unravel_key_list(['a', ('b', ('c',))])
        u.unravel_key_list(('a',))
        u.unravel_key_list('a')
        u.unravel_key_list([3])
        u.unravel_key_list([('a', 3)])
        u.unravel_key_list([()])
        u.unravel_key_list([('a', ())])
        u.unravel_key_to_tuple('a')
        u.unravel_key_to_tuple(('a', ('b',)))
        u.unravel_key_to_tuple(3)
        u.unravel_key_to_tuple([])
        u._unravel_key_to_tuple(('a', ('b',)))
        """,
    ),
    *cases(
        "NestedKey",
        """
        isinstance('a', NestedKey)
        isinstance(('a', 'b'), NestedKey)
        isinstance(('a', ('b',)), NestedKey)
        isinstance((), NestedKey)
        isinstance(('a', ()), NestedKey)
        isinstance(['a'], NestedKey)
        isinstance(('a', 3), NestedKey)
        isinstance(None, NestedKey)
        issubclass(str, NestedKey)
        issubclass(tuple, NestedKey)
        NestedKey('a')
        NestedKey.__module__, NestedKey.__name__
        KEY_SEPARATOR
        """,
        on="none",
    ),
    *_utils(
        "is_seq_of_nested_key",
        """
        u.is_seq_of_nested_key(['a'])
        u.is_seq_of_nested_key(['a', 3])
        u.is_seq_of_nested_key('a')
        u.is_seq_of_nested_key([])
        u.is_nested_key('a')
        u.is_nested_key(['a'])
        u.is_nested_key(('a', ('b',)))
        u.is_nested_key(())
        """,
        warned=True,
    ),
    *_utils(
        "private",
        """
        list(u._zip_strict([1, 2], [3, 4]))
        list(u._zip_strict([1, 2], [3]))
        list(u._zip_strict())
        u._maybe_correct_neg_dim(-1, torch.Size([2, 3]))
        u._maybe_correct_neg_dim(-1, None, 3)
        u._maybe_correct_neg_dim(-1, None, ndim=3)
        u._maybe_correct_neg_dim(5, torch.Size([2, 3]))
        u._maybe_correct_neg_dim(-5, torch.Size([2, 3]))
        u._maybe_correct_neg_dim(1, None, 1)
        u._shape(T([2, 3]))
        u._getitem_batch_size(torch.Size([2, 3]), 0)
        u._getitem_batch_size(torch.Size([2, 3]), (slice(None), torch.tensor([True, False, True])))
        u._getitem_batch_size([2, 3], 0)
        u._is_non_tensor(TensorDict)
        u._is_tensorclass(TensorDict)
        """,
    ),
    *cases(
        "is_tensor_collection",
        """
        is_tensor_collection(TensorDict)
        is_tensor_collection(TensorDict())
        is_tensor_collection(3)
        is_tensor_collection(T([2]))
        is_tensor_collection(Tensor)
        is_tensorclass(TensorDict())
        is_non_tensor(TensorDict())
        is_non_tensor(3)
        default_is_leaf(TensorDict)
        default_is_leaf(Tensor)
        default_is_leaf(int)
        default_is_leaf(3)
        is_leaf_nontensor(TensorDict)
        is_leaf_nontensor(Tensor)
        is_leaf_nontensor(int)
        is_leaf_nontensor(3)
        """,
        on="none",
    ),
    *cases(
        "is_inexact",
        """
        is_inexact(T([2])), is_inexact(T([2], 'complex64')), is_inexact(T([2], 'int64'))
        is_floating(T([2])), is_floating(T([2], 'complex64')), is_floating(T([2], 'bool'))
        is_integer(T([2])), is_integer(T([2], 'int8')), is_integer(T([2], 'bool'))
        is_bool(T([2])), is_bool(T([2], 'bool'))
        is_floating(TensorDict(a=T([2])))
        is_floating(TensorDict(a=T([2]), b=T([2], 'int64')))
        is_floating(torch.float32)
        is_bool(True)
        """,
        on="none",
    ),
    *_utils(
        "isin",
        f"""
        {K}{L}u.isin(a, b, 'k')
        {K}{L}u.isin(b, a, 'k')
        {K}{L}u.isin(a, b, 'v')
        {K}{L}u.isin(a, b, ('k',), dim=-1)
        {K}{L}u.isin(a, b, 'k', dim=1)
        {K}{L}u.isin(a, b, 'zz')
        {K}u.isin(a, TensorDict(), 'k')
        {K}u.isin(a, 3, 'k')
        {M}u.isin(c, c, 'k')
        {M}u.isin(c, c, 'k', dim=1)
        {M}u.isin(c, c, 'k', 2)
        {K}{M}u.isin(c, a, 'k')
        {M}u.isin(c, TensorDict(k=T([5, 3], 'int64'), batch_size=[5, 3]), 'k')
        {M}u.isin(c, TensorDict(k=T([5, 4], 'int64'), batch_size=[5, 4]), 'k')
        """,
    ),
    *_utils(
        "remove_duplicates",
        f"""
        {K}u.remove_duplicates(a, 'k')
        {K}u.remove_duplicates(a, 'k', return_indices=True)
        {K}u.remove_duplicates(a, 'v')
        {K}u.remove_duplicates(a, 'k', dim=-1)
        {K}u.remove_duplicates(a, 'k', dim=1)
        {K}u.remove_duplicates(a, 'zz')
        {M}u.remove_duplicates(c, 'k', dim=1)
        {M}u.remove_duplicates(c, 'k', dim=0, return_indices=True)
        u.remove_duplicates(TensorDict(k=torch.tensor([3, 1, 3, 1]), batch_size=[4], names=['x']), 'k')
        u.remove_duplicates(TensorDict(n={{'k': T([4])}}, batch_size=[4]), 'n')
        u.remove_duplicates(TensorDict(k=torch.tensor([[3], [1], [3]]), v=T([3]), batch_size=[3]), 'k')
        """,
    ),
    *cases(
        "parse_tensor_dict_string",
        """
        parse_tensor_dict_string(repr(td))
        c = set_printoptions(compact=True).__enter__(); r = repr(td); set_printoptions(compact=False).set(); parse_tensor_dict_string(r)
        """,
        on="flat nested deep empty scalar locked cpu mixed empty_nested meta",
    ),
    *cases(
        "parse_tensor_dict_string",
        "parse_tensor_dict_string('x')\nparse_tensor_dict_string('')",
        on="none",
    ),
    *_utils(
        "set_list_to_stack",
        """
        u.list_to_stack(), u.lazy_legacy(), u.capture_non_tensor_stack()
        u.list_to_stack(True), u.lazy_legacy(True), u.capture_non_tensor_stack(True)
        set_list_to_stack(False)(lambda: u.list_to_stack())(), u.list_to_stack()
        c = set_list_to_stack(False); c.__enter__(); x = u.list_to_stack(); c.__exit__(None, None, None); x, u.list_to_stack()
        set_lazy_legacy(True).mode
        set_capture_non_tensor_stack(True).mode
        """,
        warned=True,
    ),
    *cases(
        "get_defaults_to_none",
        """
        get_defaults_to_none()
        set_get_defaults_to_none(False); x = get_defaults_to_none(); set_get_defaults_to_none(); x
        """,
        on="none",
        warned=True,
    ),
    *_utils("timeit", "u.timeit('x')(lambda x: x + 1)(3)"),
    *_utils(
        "logger",
        "u.logger.name, u.logger.level, u.logger.propagate, u.logger.handlers[0].name",
    ),
    *_utils("DeviceType", "u.DeviceType.__args__\nlen(u.IndexType.__args__)"),
    *_utils(
        "deprecated",
        """
        u.prod([2, 3]), u.prod([])
        u.strtobool('yes'), u.strtobool('off')
        u.strtobool('x')
        u.unravel_keys('a')
        u.unravel_keys(('a', ('b',)))
        u.unravel_keys('a', 'b')
        u.infer_size_impl([-1, 2], 6)
        u.infer_size_impl([-1, -1], 6)
        u.infer_size_impl([4, -1], 6)
        u.infer_size_impl([3, 3], 6)
        u.infer_size_impl([-2, 3], 6)
        u.infer_size_impl([0, -1], 0)
        str(u.convert_ellipsis_to_idx((..., 0), torch.Size([2, 3, 4])))
        str(u.convert_ellipsis_to_idx(..., torch.Size([2, 3, 4])))
        str(u.convert_ellipsis_to_idx((0, ..., 0), [2, 3, 4]))
        u.convert_ellipsis_to_idx((0, ..., ...), [2, 3, 4])
        u.convert_ellipsis_to_idx(0, [2, 3, 4])
        str(u.convert_ellipsis_to_idx((None, ..., 0), [2, 3, 4]))
        u.convert_ellipsis_to_idx((0, 0, 0, 0, ...), [2, 3, 4])
        d = u.KeyDependentDefaultDict(lambda k: k * 2); d['a'], dict(d)
        u.lock_blocked(lambda self: 3)(TensorDict())
        u.lock_blocked(lambda self: 3)(TensorDict().lock_())
        u.cache(lambda self: 3)(TensorDict().lock_())
        sorted(map(str, u.NUMPY_TO_TORCH_DTYPE_DICT))
        u.NESTED_TENSOR_ERR
        u.json_dumps({'a': [1, None]})
        u.set_json_backend('nope')
        u.is_namedtuple(Pair(1, 2)), u.is_namedtuple((1,)), u.is_namedtuple_class(Pair)
        u.BufferLegacy(T([2])).shape
        u.nope
        """,
        warned=True,
    ),
    *cases(
        "deprecated",
        """
        tensordict.List is not None, tensordict.Any is not None, tensordict.Dict is not None
        tensordict.Context is not None, tensordict.MappingKey.__name__
        tensordict.defaultdict.__name__, tensordict.Tuple is not None
        tensordict.is_batchedtensor(T([2])), tensordict.is_compiling()
        tensordict.register_pytree_node.__name__
        tensordict.torch is torch
        tensordict.nope
        from tensordict.tensordict import convert_ellipsis_to_idx, is_nested_key, lock_blocked
        """,
        on="none",
        warned=True,
    ),
    *cases(
        "LinkedList",
        """
        L = tensordict.utils.LinkedList; L([1, 2]), L(), L.__module__, issubclass(L, list)
        s = NonTensorStack('a', 'b'); x = tensordict.utils.LinkedList(s.tolist(), td=s); x[0] = 'S'; x[-1] = 'n'; list(x), s.tolist()
        s = NonTensorStack('a', 'b'); x = tensordict.utils.LinkedList(s.tolist(), td=s); x.append('z'); x.extend(['q']); x.insert(0, 'i'); list(x), s.tolist()
        s = NonTensorStack('a', 'b'); x = tensordict.utils.LinkedList(s.tolist(), td=s); x.pop(), x.remove('a'), list(x), s.tolist()
        s = NonTensorStack('a', 'b'); x = tensordict.utils.LinkedList(s.tolist(), td=s); x.clear(); list(x), s.tolist()
        tensordict.utils.LinkedList(['a']).remove('z')
        type(tensordict.utils.LinkedList(['a'])[:1]), type(tensordict.utils.LinkedList(['a']).tolist())
        """,
        on="none",
    ),
]

HELPERS = (U,)
"""The beginnings of programs: answers go by what follows them."""
