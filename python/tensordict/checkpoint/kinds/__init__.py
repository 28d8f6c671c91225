"""The kinds of items of a checkpoint: one class each, listed in one table."""

from tensordict.checkpoint.kinds.collection import CollectionKind
from tensordict.checkpoint.kinds.file import File, FileKind
from tensordict.checkpoint.kinds.generator import GeneratorKind
from tensordict.checkpoint.kinds.interface import (
    Kind,
    Saving,
    kind_named,
    kind_of,
    loading_kind,
    register_kind,
)
from tensordict.checkpoint.kinds.module import ModuleKind
from tensordict.checkpoint.kinds.optimizer import OptimizerKind
from tensordict.checkpoint.kinds.stateful import StatefulKind
from tensordict.checkpoint.kinds.tensor import TensorKind
from tensordict.checkpoint.kinds.value import ValueKind

__all__ = [
    "File",
    "Kind",
    "Saving",
    "kind_named",
    "kind_of",
    "loading_kind",
    "register_kind",
]

for _kind in (
    ModuleKind(),
    OptimizerKind(),
    FileKind(),
    CollectionKind(),
    TensorKind(),
    GeneratorKind(),
    StatefulKind(),
    ValueKind(),
):
    register_kind(_kind, is_last=True)
