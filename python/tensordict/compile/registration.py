"""Registration of the Python twins of native primitives with :func:`torch.compile`.

Dynamo traces Python and cannot trace ``tensordict._rust``. Each native primitive has a
twin of the same name in :mod:`tensordict.primitives`, which is registered with
:func:`torch.compiler.substitute_in_graph`. This needs ``torch._dynamo``, whose import
takes longer than torch's. So the twins are registered when the program imports Dynamo;
processes that never compile, such as data workers, do not import it.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any

import torch

from tensordict.compile import (
    construction,
    control_flow,
    nested_regions,
    older_dynamo,
    rules,
)
from tensordict.interop import vmap
from tensordict.primitives import STEMS
from tensordict.primitives.after_import import after_import

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["install", "register_twins"]

CONSTANT = frozenset(
    {
        "_cast_of",
        "_looked_up",
        "_permutation_plan",
        "_split_plan",
        "_unbind_plan",
        "index_plan",
        "index_shape",
        "places_at",
        "places_listed",
        "places_moved",
        "places_split",
        "unravel_key",
        "unravel_key_list",
        "unravel_key_to_tuple",
        "view_shape",
    }
)
"""Twins whose arguments are keys, sizes, indices and functions.

If all arguments are constants, Dynamo calls the native primitive and traces nothing.
"""

_lock = threading.Lock()
_registered: set[int] = set()
"""The ids of the native functions that have been registered."""


def twin_modules() -> tuple[ModuleType, ...]:
    """Return the modules whose public functions are twins of functions in ``_rust``."""
    return tuple(
        importlib.import_module(f"tensordict.primitives.{stem}") for stem in STEMS
    )


def pairs() -> list[tuple[Any, Any]]:
    """Return all pairs of a native primitive, or other function, and its twin."""
    from tensordict import _rust
    from tensordict.compile import unbatched_and_non_tensor
    from tensordict.interop import pytree
    from tensordict.ops import families, splitting, torch_dispatch
    from tensordict.primitives import dims as dims_primitives
    from tensordict.primitives import modules as modules_primitives
    from tensordict.primitives import tied

    function_pairs: list[tuple[Any, Any]] = [
        *modules_primitives.TRACED,
        *tied.TRACED,
        *pytree.TRACED,
        *dims_primitives.TRACED,
        *families.TRACED,
        *splitting.TRACED,
        *torch_dispatch.TRACED,
        *unbatched_and_non_tensor.TRACED,
    ]
    for module in twin_modules():
        for name, twin in vars(module).items():
            if (
                name.startswith("_")
                or getattr(twin, "__module__", "") != module.__name__
            ):
                continue
            native = getattr(_rust, name, twin)
            if native is not twin and callable(native):
                function_pairs.append((native, twin))
    return function_pairs


def register_twins() -> None:
    """Register the twins and rules with Dynamo; a second call changes nothing."""
    vmap.register_foreach_rules()
    construction.install_rules()
    rules.install("leaf_loop_rules")
    rules.install("module_rules")
    nested_regions.install()
    control_flow.install()
    older_dynamo.patch(twin_modules())
    with _lock:
        for native, twin in pairs():
            if id(native) in _registered:
                continue
            torch.compiler.substitute_in_graph(
                native,
                can_constant_fold_through=twin.__name__ in CONSTANT,
                skip_signature_check=True,
            )(twin)
            _registered.add(id(native))


def install() -> None:
    """Register the twins now if Dynamo is imported, or when it is imported."""
    after_import("torch._dynamo", register_twins)
