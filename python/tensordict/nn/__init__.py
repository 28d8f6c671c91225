"""Modules that read their inputs from a tensordict and write their outputs to it."""

from typing import TYPE_CHECKING

from tensordict.containers.params import TensorDictParams
from tensordict.functional import make_tensordict
from tensordict.nn.common import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictModuleWrapper,
    WrapModule,
    as_tensordict_module,
    dispatch,
)
from tensordict.nn.cudagraphs import CudaGraphModule
from tensordict.nn.distributions import (
    AddStateIndependentNormalScale,
    CompositeDistribution,
    NormalParamExtractor,
    OneHotCategorical,
    TruncatedNormal,
    rand_one_hot,
)
from tensordict.nn.ensemble import EnsembleModule
from tensordict.nn.functional import (
    get_functional,
    is_functional,
    make_functional,
    repopulate_module,
)
from tensordict.nn.probabilistic import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
)
from tensordict.nn.sequence import TensorDictSequential
from tensordict.nn.settings import (
    InteractionType,
    composite_lp_aggregate,
    interaction_type,
    set_composite_lp_aggregate,
    set_interaction_type,
    set_skip_existing,
    skip_existing,
)
from tensordict.nn.tensorclass_module import (
    TensorClassModuleBase,
    TensorClassModuleWrapper,
)
from tensordict.nn.utils import (
    add_custom_mapping,
    biased_softplus,
    inv_softplus,
    mappings,
)
from tensordict.primitives.deprecation import deprecated_names

__all__ = [
    "AddStateIndependentNormalScale",
    "CompositeDistribution",
    "CudaGraphModule",
    "EnsembleModule",
    "InteractionType",
    "NormalParamExtractor",
    "OneHotCategorical",
    "ProbabilisticTensorDictModule",
    "ProbabilisticTensorDictSequential",
    "TensorClassModuleBase",
    "TensorClassModuleWrapper",
    "TensorDictModule",
    "TensorDictModuleBase",
    "TensorDictModuleWrapper",
    "TensorDictParams",
    "TensorDictSequential",
    "TruncatedNormal",
    "WrapModule",
    "add_custom_mapping",
    "as_tensordict_module",
    "biased_softplus",
    "composite_lp_aggregate",
    "dispatch",
    "get_functional",
    "interaction_type",
    "inv_softplus",
    "is_functional",
    "make_functional",
    "make_tensordict",
    "mappings",
    "rand_one_hot",
    "repopulate_module",
    "set_composite_lp_aggregate",
    "set_interaction_type",
    "set_skip_existing",
    "skip_existing",
]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = deprecated_names(
        __name__,
        {},
        later={
            "functional_modules": "tensordict.nn.functional_modules",
            "params": "tensordict.nn.params",
        },
    )
