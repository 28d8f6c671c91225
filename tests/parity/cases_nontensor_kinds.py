"""Methods of non-tensor data, called for values of many kinds.

One case is one method and one class; its answer has a line for each kind of value. Not
among them: what a save of a value by itself makes of its batch size, which the release
loses (docs/differences/non-tensor-data.md).
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

ENTRY = "TensorDict({}, [2]).set('v', v)"
SAVED = f"{ENTRY}.save(tempfile.mkdtemp()).saved_path"

WHOLE = {
    "equal": "(v == v.clone()).tolist()",
    "unequal": "(v != v.clone()).tolist()",
    "pickle": "pickle.loads(pickle.dumps(v))",
    "entry state_dict": f"sorted(map(str, {ENTRY}.state_dict()))",
    "entry load": f"TensorDict.load({SAVED}, allow_pickle=True).get('v')",
    "entry load_": f"{ENTRY}.load_({SAVED}, allow_pickle=True).get('v')",
    "entry load_memmap": f"TensorDict.load_memmap({SAVED}, allow_pickle=True).get('v')",
    "entry memmap_refresh_": (
        f"{ENTRY}.memmap_(tempfile.mkdtemp()).memmap_refresh_(allow_pickle=True).get('v')"
    ),
}

LISTS = (
    "The files of the release lose the shape of a stack of lists.",
    "all(result[at][1].startswith('[2] ') for at in (13, 14))",
)
MAPPED = (
    "Values in a collection that was mapped have no device.",
    "all(result[at][1] == '[2] [None] None True' for at in (10, 11, 12, 15, 18))",
)
ACCEPTED = {
    ("equal", "NonTensorStack"): (
        "Values that are tensors compare as a whole.",
        "result[16] == ['True', 'True']",
    ),
    ("unequal", "NonTensorStack"): (
        "Values that are tensors compare as a whole.",
        "result[16] == ['False', 'False']",
    ),
    ("entry load", "NonTensorStack"): LISTS,
    ("entry load_", "NonTensorStack"): LISTS,
    ("entry load_memmap", "NonTensorStack"): LISTS,
    ("entry memmap_refresh_", "entry"): MAPPED,
    ("entry memmap_refresh_", "NonTensorStack"): MAPPED,
}


def accepted(method: str, name: str) -> dict[str, str]:
    """The reason of an accepted difference, and what we answer."""
    found = ACCEPTED.get((method, name))
    return {} if found is None else {"reason": found[0], "ours": found[1]}


KINDS = [
    case
    for name, made in CLASSES.items()
    for method, call in {**METHODS, **WHOLE}.items()
    for case in cases(
        f"{method} of {name}",
        f"from kinds_setup import answers; "
        f"answers(lambda value: {made}, lambda v: {call})",
        on="none",
        **accepted(method, name),
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
NonTensorStack(1, 2)[object()]
TensorDict({'s': 'hi'}, [0, 2]).unsqueeze(0)[0].get('s')
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
