"""What the methods of values answer for values of many kinds.

One case is one method and one class; its answer has a line for each kind of value. Not
among them: what a save of a value by itself makes of its batch size, which the release
loses (docs/differences.md).
"""

from frame import cases

CLASSES = {
    "entry": "TensorDict({'v': value}, [2]).get('v')",
    "NonTensorData": "NonTensorData(value, batch_size=[2])",
    "MetaData": "MetaData(value, batch_size=[2])",
    "NonTensorStack": (
        "NonTensorStack(*value) if isinstance(value, list) "
        "else NonTensorStack(value, value)"
    ),
}

METHODS = {
    "tolist": "v.tolist()",
    "data": "str(v.get('data'))",
    "sizes": "(list(v.batch_size), v.device, v.names)",
    "maybe_to_stack": "v.maybe_to_stack()",
    "unbind": "v.unbind(0)",
    "element": "v[0]",
    "slice": "v[:1]",
    "mask": "v[torch.tensor([True, False])]",
    "places": "v[torch.tensor([1, 0])]",
    "stack": "torch.stack([v, v.clone()])",
    "cat": "torch.cat([v, v.clone()])",
    "state_dict": "sorted(map(str, v.state_dict()))",
    "load_state_dict": "v.clone().load_state_dict(v.state_dict())",
    "memmap": "v.memmap()",
    "memmap_": "v.memmap_()",
    "memmap_like": "v.memmap_like(tempfile.mkdtemp())",
    "from_tensordict": "type(v).from_tensordict(TensorDict({}, [2]), {'data': 'z'})",
    "set": "v.clone().set('data', 'new')",
    "update": "v.clone().update(NonTensorData('new', batch_size=[2]))",
    "update_": "v.clone().update_(NonTensorData('new', batch_size=[2]))",
    "copy_": "v.clone().copy_(v)",
}

KINDS = [
    case
    for name, made in CLASSES.items()
    for method, call in METHODS.items()
    for case in cases(
        f"{method} of {name}",
        f"from kinds_setup import answers; "
        f"answers(lambda value: {made}, lambda v: {call})",
        on="none",
    )
]

LOCKS_AND_NAMES = """
NonTensorStack(1, 2, 3).lock_().flip(0).is_locked
NonTensorStack(1, 2, 3).lock_().expand(2, 3).is_locked
NonTensorStack(1, 2, 3).lock_().expand(3).is_locked
NonTensorData(1, batch_size=[3]).lock_().expand(2, 3).is_locked
NonTensorData(1, batch_size=[3]).lock_().atleast_2d().is_locked
NonTensorData(1, batch_size=[3]).memmap()[:2].is_locked
NonTensorData(1, batch_size=[3]).memmap()[torch.tensor([0])].is_locked
NonTensorData(1).flatten()
NonTensorStack(1, 2)[object()]
NonTensorStack(1, 2, 3).new_zeros(2, empty_lazy=True)
TensorDict({'s': 'hi'}, [0, 2]).unsqueeze(0)[0].get('s')
lazy_stack([NonTensorData(1, batch_size=[0])] * 2).roll(1).stack_dim
td = TensorDict({'s': ['a', 'b']}, [2], names=['y']); [td.pad([0, 0]).get('s').names, td.get('s').names]
"""

LOADED = (
    "td = TensorDict({'s': 'hi', 't': ['a', 'b'], 'n': {'s': 'x'}}, [2], names=['y']); "
    "td = TensorDict.load_memmap(td.memmap(tempfile.mkdtemp()).saved_path); "
    "[td.get(key).names for key in ('s', 't', ('n', 's'))]"
)

CASES = [
    *cases("locks and names", LOCKS_AND_NAMES, on="none", message=False),
    *cases("names of loaded values", LOADED, on="none"),
    *cases(
        "stack of frozensets",
        "v = MetaData(frozenset([1]), batch_size=[2]); torch.stack([v, v.clone()])",
        on="none",
        reason="Equal values of metadata are stacked to one, as sets are.",
        ours="type(result) is MetaData",
    ),
    *KINDS,
]
