"""The names that fields of a tensorclass cannot have, unless ``shadow`` is set.

They are the attributes of tensorclasses in tensordict 0.15.3, recorded by declaring a
field of each name. Attributes that only this package has are allowed: it accepts each
class that tensordict 0.15 accepts.
"""

__all__ = ["RESERVED"]

RESERVED = frozenset(
    """
    abs abs_ acos acos_ add add_ addcdiv addcdiv_ addcmul addcmul_ all all_gather
    all_reduce amax amin any apply apply_ arecv as_tensor asend asin asin_ atan
    atan_ atleast_1d atleast_2d atleast_3d attrs auto_batch_size_ auto_device_
    backward batch_dims batch_size bfloat16 bitwise_and bool broadcast broadcast_to
    bytes cat cat_from_tensordict cat_tensors ceil ceil_ chunk clamp clamp_max
    clamp_max_ clamp_min clamp_min_ clear clear_device_ clear_refs_for_compile_
    clone complex128 complex32 complex64 consolidate contiguous copy copy_ copy_at_
    cos cos_ cosh cosh_ cpu create_nested cuda cummax cummin data_ptr del_ densify
    depth detach detach_ device dim div div_ double dtype dumps empty entry_class
    erf erf_ erfc erfc_ exclude exp exp_ expand expand_as expm1 expm1_ extend fill_
    filter_empty_ filter_non_tensor_data flatten flatten_keys flip fliplr flipud
    float float16 float32 float64 floor floor_ frac frac_ from_any from_consolidated
    from_csv from_dataclass from_dict from_dict_instance from_h5 from_json from_list
    from_module from_modules from_namedtuple from_pandas from_parquet from_pytree
    from_remote_init from_schema from_struct_array from_tensordict from_tuple
    from_zarr fromkeys gather gather_and_stack get get_at get_item_shape
    get_non_tensor grad half init_remote int int16 int32 int64 int8 irecv
    is_consolidated is_contiguous is_cpu is_cuda is_empty is_floating_point
    is_locked is_memmap is_meta is_non_tensor is_shared isend isfinite isnan
    isneginf isposinf isreal items keys lazy_stack lerp lerp_ lgamma lgamma_ load
    load_ load_memmap load_memmap_ load_state_dict lock_ log log10 log10_ log1p
    log1p_ log2 log2_ log_ logical_and logsumexp make_memmap
    make_memmap_from_storage make_memmap_from_tensor map map_iter masked_fill
    masked_fill_ masked_select max maximum maximum_ maybe_dense_stack mean memmap
    memmap_ memmap_like memmap_refresh_ min minimum minimum_ mod moveaxis movedim
    mul mul_ named_apply names nanmean nansum narrow ndim ndimension neg neg_
    new_empty new_full new_ones new_tensor new_zeros non_tensor_items norm numel
    numpy pack pad param_count permute pin_memory pin_memory_ pop popitem pow pow_
    prod qint32 qint8 quantile quint4x2 quint8 reciprocal reciprocal_ record_stream
    recv reduce refine_names rename rename_ rename_key_ rename_keys repeat
    repeat_interleave replace requires_grad requires_grad_ reshape roll rot90 round
    round_ rsub save saved_path scatter select send separates set set_ set_at_
    set_non_tensor setdefault shape share_memory_ sigmoid sigmoid_ sign sign_ sin
    sin_ sinh sinh_ size softmax sorted_keys split split_keys sqrt sqrt_ squeeze
    stack stack_from_tensordict stack_tensors state_dict std sub sub_ sum swapaxes
    swapdims tan tan_ tanh tanh_ tensor_split tile to to_csv to_dict to_h5 to_json
    to_lazystack to_mds to_module to_namedtuple to_padded_tensor to_pandas
    to_parquet to_pytree to_store to_struct_array to_tensordict to_zarr tolist
    transpose trunc trunc_ type uint16 uint32 uint64 uint8 unbind unflatten
    unflatten_keys unlock_ unsqueeze update update_ update_at_ values var view where
    zero_ zero_grad

    _CONFLICTING_BATCH_SIZES _MutableMapping__marker _SHARED_INPLACE_ERROR _abc_impl
    _add_batch_dim _apply_ _apply_nest _as_tensor _autocast _batch_op
    _batch_size_setter _broadcast_to _build_lock_schema _cast_filter _cast_reduction
    _cat_or_stack_tensors _change_batch_size _check_batch_size _check_device
    _check_dim_name _check_is_shared _check_new_batch_size _check_unlock _chunk
    _clone _clone_recurse _collect_subtd_names _compare _contains_key _contains_str
    _contains_tensordict _contiguous_inplace _contiguous_via_to_tensordict
    _convert_inplace _convert_to_tensor _convert_to_tensordict _copy_entries
    _copy_of_leaves _copy_shares_storage _create_nested_str _create_nested_tuple
    _data _data_setter _default_get _del _dense_apply _densify _depth _detach_
    _dtype _empty _erase_cache _erase_names _exclude _expand _fast_apply _fill_
    _fills_without_reading _finish_reduce _flatten_keys_inplace
    _flatten_keys_outplace _flatten_lenient _from_dict_defaults _from_dict_impl
    _from_dict_validated _from_module _from_tensordict _frozen _gather_inplace_warns
    _get_at_str _get_at_tuple _get_ignores_kwargs _get_names_idx _get_non_tensor
    _get_str _get_sub_tensordict _get_tuple _get_tuple_maybe_non_tensor _grad
    _has_cuda _has_exclusive_keys _has_mps _has_names _has_non_tensor
    _index_tensordict _inplace_batch_size_change _inplace_flatten_keys_exact
    _inplace_flatten_sizes _inplace_on_copies _inplace_on_nested_copies
    _inplace_rebind_leaves _inplace_set _inplace_shape_ops_unsupported _irecv
    _is_dense_node _is_locked _is_memmap _is_non_tensor_leaf _is_shared
    _is_tensorclass _isend _items_list _last_op _last_op_queue _lazy
    _leaves_built_on_read _legacy_permute _legacy_squeeze _legacy_transpose
    _legacy_unsqueeze _legacy_view _load_memmap _lock_parents_weakrefs
    _lock_sub_tensordicts _locked_schema _make_memmap_subtd _map
    _map_on_dense_copies _mark_consolidated_stale _masked_fill _masked_fill_
    _masked_select_inplace_unsupported _masked_select_on_dense_copy
    _masking_on_dense_copy _maybe_names _maybe_remove_batch_dim
    _maybe_set_shared_attributes _members_as_lists _memmap_
    _memmap_inplace_unsupported _memmap_prefix _multithread_apply_flat
    _multithread_apply_nest _multithread_rebuild _nested_keys
    _nested_reads_return_copies _new_impl _new_unsafe _nocast _non_tensordict
    _parse_batch_size _permute _pin_memory_unsupported _popped_value _propagate_lock
    _propagate_unlock _raise_if_holds_lazy_stack
    _raise_if_inplace_shape_ops_unsupported _reads_return_copies _recv _reduce
    _reduce_get_metadata _reduce_vals_and_metadata _reduced_names _reduction_parts
    _remove_batch_dim _rename_key _rename_key_lenient _rename_keys _rename_subtds
    _repeat _repeat_interleave _repr_html_ _repr_parts _reshape _safe _scalar_fields
    _select _send _set_at_str _set_at_tuple _set_at_warns_cast _set_device _set_dict
    _set_names _set_non_tensor _set_str _set_tuple _setitem_index
    _setitem_key_inplace _shadow _share_memory_ _skip_post_init_on_rebuild _softmax
    _sorted_keys _split _squeeze _stack_onto_ _stack_onto_at_
    _storage_holds_no_gradients _storage_is_read_only _stream _sync_all
    _td_dim_names _tensor_only _tensorclass_fields _tensordict _tensordict_fields
    _to _to_consolidated _to_cuda_with_pin_mem _to_module _to_per_leaf
    _to_tensordict _to_writes_back_in_place _transform_keys _transpose
    _tree_of_copies _type_hints _unbind _unflatten_keys_fast _unsqueeze _update_
    _update_at_ _update_at_fast _update_consolidated_metadata _update_entries
    _update_fast _update_fast_merge _update_plan _update_stores_copy_of_self
    _update_write_back _validate_value _validate_value_batchfree
    _validate_value_batchfree_devicefree _validate_value_devicefree
    _validate_value_generic _values_list _view _view_dtype _where _wrapped_attr
    _write_back _zero_

    __abs__ __abstractmethods__ __add__ __and__ __bool__ __class__ __class_getitem__
    __contains__ __copy__ __deepcopy__ __delattr__ __delitem__ __dict__ __dir__
    __doc__ __enter__ __eq__ __exit__ __format__ __ge__ __getattribute__ __getitem__
    __getitems__ __getstate__ __gt__ __hash__ __iadd__ __imul__ __init__
    __init_subclass__ __invert__ __ipow__ __isub__ __iter__ __itruediv__ __le__
    __len__ __lt__ __mod__ __module__ __mul__ __ne__ __neg__ __new__ __or__ __pow__
    __radd__ __rand__ __reduce__ __reduce_ex__ __repr__ __reversed__ __rmul__
    __ror__ __rpow__ __rsub__ __rtruediv__ __rxor__ __setattr__ __setitem__
    __setstate__ __sizeof__ __slots__ __str__ __sub__ __subclasshook__
    __torch_function__ __truediv__ __weakref__ __xor__
    """.split()  # noqa: SIM905 - easier to read without quotes
)
