"""Names that fields may want: the public ones of every container, and common words."""

from torch import Tensor

from tensordict import TensorClass, tensorclass

NAMES = """
    H T T_destination a abs abs_ acos acos_ action add add_ add_module addcdiv
    addcdiv_ addcmul addcmul_ all all_gather all_reduce amax amin any append apply
    apply_ arecv args as_tensor asend asin asin_ atan atan_ atleast_1d atleast_2d
    atleast_3d attrs auto_batch_size_ auto_device_ backward batch batch_dims
    batch_size bfloat16 bitwise_and bool boxes broadcast broadcast_to buffers bytes
    call_super_init cat cat_from_tensordict cat_tensors ceil ceil_ children chunk
    clamp clamp_max clamp_max_ clamp_min clamp_min_ clear clear_device_
    clear_refs_for_compile_ clone cls compile complex128 complex32 complex64
    consolidate contiguous copy copy_ copy_at_ cos cos_ cosh cosh_ cpu create_nested
    cuda cummax cummin data data_ptr del_ densify depth detach detach_ device dim
    div div_ done double dtype dump_patches dumps empty entry_class episode erf erf_
    erfc erfc_ eval exclude exp exp_ expand expand_as expm1 expm1_ extend extra_repr
    fields fill_ filter_empty_ filter_non_tensor_data flatten flatten_keys flip
    fliplr flipud float float16 float32 float64 floor floor_ forward frac frac_
    from_any from_consolidated from_csv from_dataclass from_dict from_dict_instance
    from_h5 from_json from_list from_module from_modules from_namedtuple
    from_nontensordata from_pandas from_parquet from_pytree from_remote_init
    from_schema from_struct_array from_tensordict from_tuple from_zarr fromkeys
    gather gather_and_stack get get_at get_buffer get_extra_state get_item_shape
    get_nestedtensor get_non_tensor get_parameter get_submodule grad half hidden
    hook_in hook_out id images index info init init_remote inputs insert int int16
    int32 int64 int8 ipu irecv is_consolidated is_contiguous is_cpu is_cuda is_empty
    is_floating_point is_locked is_memmap is_meta is_non_tensor is_shared isend
    isfinite isnan isneginf isposinf isreal items key keys kind kwargs label
    lazy_stack length lerp lerp_ lgamma lgamma_ load load_ load_memmap load_memmap_
    load_state_dict lock lock_ log log10 log10_ log1p log1p_ log2 log2_ log_
    logical_and logits logsumexp loss mH mT make_memmap make_memmap_from_storage
    make_memmap_from_tensor map map_iter mask masked_fill masked_fill_ masked_select
    max maximum maximum_ maybe_dense_stack maybe_to_stack mean memmap memmap_
    memmap_like memmap_refresh_ min minimum minimum_ mod mode modules moveaxis
    movedim mtia mul mul_ name named_apply named_buffers named_children
    named_modules named_parameters names nanmean nansum narrow ndim ndimension neg
    neg_ new_empty new_full new_ones new_tensor new_zeros next non_tensor_items norm
    numel numpy obs observation out outputs pack pad param_count parameters permute
    pin_memory pin_memory_ pop popitem position pow pow_ prod qint32 qint8 quantile
    quint4x2 quint8 reciprocal reciprocal_ record_stream recv reduce refine_names
    register_backward_hook register_buffer register_forward_hook
    register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_get_post_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook
    register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook rename rename_ rename_key_ rename_keys repeat
    repeat_interleave replace requires_grad requires_grad_ reshape reward roll rot90
    round round_ rsub save saved_path scatter scores seed select send separates set
    set_ set_at_ set_extra_state set_non_tensor set_submodule setdefault shape
    share_memory share_memory_ sigmoid sigmoid_ sign sign_ sin sin_ sinh sinh_ size
    softmax sorted_keys split split_keys sqrt sqrt_ squeeze stack stack_dim
    stack_from_tensordict stack_tensors state state_dict std step sub sub_ sum
    swapaxes swapdims tan tan_ tanh tanh_ target td tensor_split tensordict
    tensordicts terminated tile time to to_csv to_dict to_empty to_h5 to_json
    to_lazystack to_mds to_module to_namedtuple to_padded_tensor to_pandas
    to_parquet to_pytree to_store to_struct_array to_tensordict to_zarr tokens
    tolist train transpose trunc trunc_ truncated type uint16 uint32 uint64 uint8
    unbind unflatten unflatten_keys unlock_ unsqueeze update update_ update_at_
    valid_keys value values var velocity view weights where x xpu y z zero_
    zero_grad
""".split()  # noqa: SIM905 - a page of names, not of quotes


def refused():
    """List the names that a class refuses, in each form, with the error's class."""
    answers = {}
    for name in NAMES:
        forms = (_by_base(name), _by_decorator(name), _shadowing(name))
        if any(forms):
            answers[name] = forms
    return answers


def _by_base(name):
    body = {"__annotations__": {name: Tensor}, "__module__": __name__}
    return _error(lambda: type(TensorClass)("Made", (TensorClass,), body))


def _by_decorator(name):
    body = {"__annotations__": {name: Tensor}}
    return _error(lambda: tensorclass(type("Made", (), body)))


def _shadowing(name):
    body = {"__annotations__": {name: Tensor}}
    return _error(lambda: tensorclass(shadow=True)(type("Made", (), body)))


def _error(declare):
    try:
        declare()
    except Exception as error:  # noqa: BLE001 - every error is an answer
        return type(error).__name__
    return ""
