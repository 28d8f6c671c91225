"""Established import path: probabilistic modules, and the value they take."""

from typing import TYPE_CHECKING

from tensordict._deprecated_utils import NN_PROBABILISTIC
from tensordict._established import established_names
from tensordict.nn.probabilistic_module import (
    ProbabilisticTensorDictModule,
    _use_generator,
)
from tensordict.nn.probabilistic_sequence import ProbabilisticTensorDictSequential
from tensordict.nn.settings import (
    InteractionType,
    interaction_type,
    set_interaction_type,
)

__all__ = [
    "InteractionType",
    "ProbabilisticTensorDictModule",
    "ProbabilisticTensorDictSequential",
    "_use_generator",
    "interaction_type",
    "set_interaction_type",
]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__, NN_PROBABILISTIC)
