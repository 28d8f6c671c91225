"""State dicts of tensordict 0.2 to 0.8, converted to the present form.

The old form holds the batch size and the device of a collection beside its entries. For a
tensorclass it holds one dictionary with the tensors, and one with the rest. In the present form, all
of this is in the metadata.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["is_field", "to_present_form"]

BATCH_SIZE = "__batch_size"
DEVICE = "__device"
TENSORS = "_tensordict"
OTHERS = "_non_tensordict"


def is_field(name: str) -> bool:
    """Return whether a dotted name is the name of a batch size or a device."""
    return name.rpartition(".")[2] in (BATCH_SIZE, DEVICE)


def to_present_form(td: object, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state in the present form: ``state`` itself, if it is not old.

    Args:
        td: the collection that loads the state, or None. Its entries are never taken for
            fields of the old form.
        state: a state dict. It is not changed.
    """
    entries = td._sample_entries() if isinstance(td, CollectionProtocol) else {}
    metadata: dict[str, Any] = {}
    values: dict[str, Any] = dict(state.items())
    fields = values.get(OTHERS)
    if TENSORS in values and isinstance(fields, Mapping) and TENSORS not in entries:
        # The state of a tensorclass, or of non-tensor data.
        del values[OTHERS]
        values.update(values.pop(TENSORS).items())
        metadata["_non_tensor"] = dict(fields)
        if "data" in fields and getattr(td, "_is_non_tensor", td is None):
            metadata["_non_tensor"]["_is_non_tensor"] = True
            metadata["_type"] = "NonTensorData"
    if BATCH_SIZE in values and BATCH_SIZE not in entries:
        metadata["batch_size"] = torch.Size(values.pop(BATCH_SIZE))
        metadata["device"] = values.pop(DEVICE, None)
    found = {
        key: to_present_form(entries.get(key), value)
        if isinstance(value, Mapping)
        else value
        for key, value in values.items()
    }
    if not metadata and all(found[key] is values[key] for key in values):
        return state
    new: Any = OrderedDict(found)
    new._metadata = getattr(state, "_metadata", None) or OrderedDict()
    if metadata:
        new._metadata = OrderedDict({**new._metadata, "": metadata})
    return new
