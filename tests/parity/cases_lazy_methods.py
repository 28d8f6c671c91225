"""The rest of the vocabulary over lazy stacks: each public method at least once."""

from frame import cases

STACKS = "lazy lazy_last lazy_ragged lazy_hetero"
EVEN = "lazy lazy_last"

UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p "
    "log2 neg reciprocal round sigmoid sign sin sinh sqrt tan tanh trunc"
)

CASES = [
    *cases(
        "pointwise_in_place",
        "\n".join(f"td.float().{name}_(); td" for name in UNARY.split()),
        on=STACKS,
        message=False,
    ),
    *cases(
        "arithmetic",
        """
        td.mul(2)
        td.mul_(2)
        td.sub(td)
        td.sub_(1)
        td.rsub(1)
        td.div(2)
        td.float().div_(2)
        td.pow(2)
        td.pow_(2)
        td.mod(2)
        td.clamp(0, 2)
        td.clamp(td, td + 1)
        td.clamp_min(td + 1)
        td.clamp_max(td - 1)
        td.clamp_min_(td + 1)
        td.clamp_max_(td - 1)
        td.maximum(td + 1)
        td.minimum(td - 1)
        td.maximum_(td + 1)
        td.minimum_(td - 1)
        td.float().lerp(td.float() + 1, 0.5)
        td.float().addcdiv(td.float() + 1, td.float() + 2, value=2)
        td.float().addcdiv_(td.float() + 1, td.float() + 2)
        td.addcmul(td, td, value=2)
        td.bool().logical_and(td.bool())
        td.bool().bitwise_and(td.bool())
        td.isfinite()
        td.isnan()
        td.isneginf()
        td.isposinf()
        """,
        on=STACKS,
        message=False,
    ),
    *cases(
        "reductions",
        """
        td.amin(0)
        td.min(dim=0)
        td.cummax(dim=0)
        td.cummin(dim=0)
        td.float().logsumexp(0)
        td.float().nanmean(dim=0)
        td.nansum(dim=0)
        td.prod(dim=0)
        td.float().quantile(0.5, dim=0)
        td.float().std(dim=0)
        td.float().var(dim=0)
        """,
        on=EVEN,
        message=False,
    ),
    *cases(
        "dtypes",
        """
        td.float16()
        td.int()
        td.int16()
        td.int32()
        td.uint8()
        td.complex32()
        td.complex128()
        td.is_floating_point()
        """,
        on=EVEN,
        message=False,
    ),
    *cases(
        "shapes",
        """
        td.batch_dims, td.ndimension(), td.size(), td.size(0)
        td.expand_as(td)
        td.fliplr()
        td.flipud()
        td.moveaxis(0, 1)
        td.swapaxes(0, 1)
        td.swapdims(0, -1)
        td.tile((2, 1))
        td.scatter(0, torch.zeros(td.batch_size, dtype=torch.int64), td)
        """,
        on=EVEN,
        message=False,
    ),
    *cases(
        "names",
        """
        td.rename('x', 'y')
        td.rename_('x', 'y')
        td.names = ['x', None]; td.rename(x='z').names
        td.names = ['x', None]; td.rename_(x='z').names
        td.names = ['x', None]; td.refine_names('x', 'y').names
        """,
        on="lazy lazy_hetero",
        message=False,
    ),
    *cases(
        "entries",
        """
        td.filter_empty_()
        td.filter_non_tensor_data()
        td.non_tensor_items()
        td.set_non_tensor('s', 'hi'); td['s']
        td.set_non_tensor('s', 'hi'); td.get_non_tensor('s')
        td.create_nested('z')
        td.create_nested(('z', 'y'))
        td.rename_keys({'a': 'c'})
        td.get_at('b', 0, default=3)
        td.get_at(('n', 'b'), 0)
        list(td.sorted_keys)
        td.depth
        td.param_count(), td.bytes()
        td.zero_grad()
        td.detach()
        td.detach_()
        td.masked_fill_(torch.ones(td.batch_size, dtype=torch.bool), 2)
        td.clear_device_().device
        td.auto_device_().device
        td.is_cpu, td.is_cuda, td.is_meta, td.is_memmap(), td.is_shared()
        td.is_consolidated()
        td.new_empty(2, 2).batch_size
        td.new_full((2, 3), 1.5)
        td.new_tensor(1.5)
        """,
        on=STACKS,
        message=False,
    ),
    *cases(
        "clear_refs_for_compile_",
        "td.clear_refs_for_compile_()",
        on="lazy lazy_last lazy_hetero",
        message=False,
    ),
    *cases(
        "joins",
        """
        td.cat_tensors('a', ('n', 'b'), out_key='c', dim=-1)
        td.stack_tensors('a', 'a', out_key='c')
        td.cat_from_tensordict(0)
        td.stack_from_tensordict(0)
        LazyStackedTensorDict.maybe_dense_stack([td, td])
        """,
        on=STACKS,
        message=False,
    ),
    *cases(
        "conversions",
        """
        td.to_namedtuple()
        LazyStackedTensorDict.from_namedtuple(td.to_namedtuple())
        td.to_pytree()
        td.from_dict_instance(td.to_dict())
        LazyStackedTensorDict.fromkeys(['a'], 1)
        LazyStackedTensorDict.from_tuple((torch.zeros(2), torch.ones(2)))
        td.to_struct_array()
        TensorDict.from_struct_array(td.to_struct_array())
        """,
        on="lazy lazy_last",
        message=False,
    ),
    *cases(
        "writing_ragged",
        """
        td[:, 0] = torch.ones(1)
        td[[0, 1]] = torch.ones(1)
        td[:, :2] = torch.ones(2, 1)
        td[..., 0] = torch.ones(1)
        td[np.array([1]), -3, None] = torch.ones(1, 1)
        td[torch.tensor([True, False])] = torch.ones(1)
        td[:, torch.tensor([True, False, True])] = torch.ones(1)
        td.create_nested('r')
        td.create_nested(('r', 'x'))
        """,
        on="lazy_features lazy lazy_inner",
        message=False,
    ),
    *cases(
        "looks_of_parts",
        """
        LazyStackedTensorDict.lazy_stack([td._get_sub_tensordict(0), td._get_sub_tensordict(1)], 0).get_item_shape('a')
        LazyStackedTensorDict.lazy_stack([td._get_sub_tensordict(0), td._get_sub_tensordict(1)],
            0).get_item_shape(('n', 'b'))
        LazyStackedTensorDict.lazy_stack([td._get_sub_tensordict(0)], 0).get_item_shape('n')
        """,
        on="nested lazy lazy_last",
        message=False,
    ),
]
