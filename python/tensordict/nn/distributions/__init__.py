"""Distributions, and modules that compute their parameters."""

from typing import TYPE_CHECKING

from tensordict._deprecated_utils import NN_DISTRIBUTIONS
from tensordict._established import established_names
from tensordict.nn.distributions import continuous, deterministic, discrete
from tensordict.nn.distributions.composite import CompositeDistribution
from tensordict.nn.distributions.continuous import (
    AddStateIndependentNormalScale,
    Delta,
    NormalParamExtractor,
)
from tensordict.nn.distributions.discrete import OneHotCategorical, rand_one_hot
from tensordict.nn.distributions.truncated_normal import TruncatedNormal
from tensordict.nn.settings import InteractionType, set_interaction_type
from tensordict.nn.utils import add_custom_mapping, mappings

__all__ = [
    "AddStateIndependentNormalScale",
    "CompositeDistribution",
    "Delta",
    "InteractionType",
    "NormalParamExtractor",
    "OneHotCategorical",
    "TruncatedNormal",
    "add_custom_mapping",
    "continuous",
    "discrete",
    "mappings",
    "rand_one_hot",
    "set_interaction_type",
]

deterministic.register()

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__, NN_DISTRIBUTIONS)
