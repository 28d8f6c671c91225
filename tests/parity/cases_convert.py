"""Turning a collection into plain Python objects and numpy arrays."""

from frame import EVERY, cases

CASES = [
    *cases(
        "to_dict",
        """
        td.to_dict()
        td.to_dict(retain_none=False)
        td.to_dict(convert_tensors=True)
        td.to_dict(convert_tensors='numpy')
        td.to_dict(tolist_first=True)
        td.to_dict(tolist_first=True, convert_tensors=True)
        """,
        on=EVERY + " empty_nested one mixed",
    ),
    *cases("to_dict", "td.to_dict(convert_tensors='numpy')", on="grad meta"),
    *cases(
        "tolist",
        """
        td.tolist()
        td.tolist(convert_tensors=True)
        td.tolist(convert_tensors='numpy')
        td.tolist(convert_nodes=False)
        td.tolist(tolist_first=True)
        """,
        on=EVERY + " one",
    ),
    *cases("numpy", "td.numpy()", on=EVERY + " grad meta mixed empty_nested"),
    *cases("numpy", "TensorDict(a=T([2]).bfloat16()).numpy()", on="none"),
    *cases("numpy", "td.numpy()['a'][:] = 5", on="flat"),
    *cases(
        "to_namedtuple",
        """
        td.to_namedtuple()
        type(td.to_namedtuple()).__name__
        td.to_namedtuple(Pair)
        td.to_namedtuple(dest_cls=Pair)
        """,
        on=EVERY + " dotted",
    ),
    *cases(
        "to_namedtuple",
        "TensorDict({'a': TensorDict({'a': 1, 'b': 2}), 'b': 3}).to_namedtuple(Pair)",
        on="none",
    ),
    *cases(
        "to_struct_array",
        """
        td.to_struct_array()
        td.to_struct_array().dtype.names
        str(td.to_struct_array().dtype)
        td.to_struct_array()['a'][...] = 5
        """,
        on="flat nested deep scalar zero locked named cpu subclass sub mixed one grad",
    ),
    *cases("to_struct_array", "td.to_struct_array()", on="empty", message=False),
    *cases("to_pytree", "td.to_pytree()", on="flat nested sub"),
    *cases(
        "to_tensordict",
        """
        td.to_tensordict()
        td.to_tensordict(retain_none=True)
        """,
        on=EVERY + " nested_subclass grad half_named empty_nested",
    ),
    *cases(
        "to_tensordict",
        "[v.is_leaf for v in td.to_tensordict().values(True, True)]",
        on="grad",
    ),
    *cases(
        "dict",
        """
        dict(td)
        dict(td.items())
        {**td}
        """,
        on="flat nested sub",
    ),
    *cases(
        "tolist_first below what is a list",
        """
        TensorDict(x=TensorDict(n=TensorDict(a=T([2, 3]), batch_size=[2, 3]),
            batch_size=[2])).to_dict(tolist_first=True)
        TensorDict(x=TensorDict(n=TensorDict(a=T([3]), batch_size=[3]))).to_dict(tolist_first=True)
        TensorDict(n=Data(T([]), n=Data(T([])))).to_dict(tolist_first=True)
        TensorDict(n=Data(T([2]), n=Data(T([2]), batch_size=[2]), batch_size=[2])).to_dict(tolist_first=True)
        """,
        on="none",
    ),
]
