"""Additions to the Dynamo of torch 2.11, which the Python primitives need.

The primitives set the state of a new tensordict as one dictionary (``result.__dict__ =
{...}``), which is the cheapest form to compile. An older Dynamo does not trace this
store, and the tensordict has no attributes there. For it, the primitives are compiled
with one store for each attribute. It has further limits:

* It does not connect a deletion from this dictionary with an earlier store. An unlocked
  tensordict therefore keeps the attributes of a lock, with the values of an unlocked
  one.
* It stores a value that is set through a property of a new tensordict as an attribute
  of that name.
* It cannot hold the slices of an index plan that is made while compiling.
* It cannot unpack an object into a list (``[*td.keys(True)]``).
"""

from __future__ import annotations

import ast
import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from tensordict.primitives import lock as lock_primitives
from tensordict.primitives.lock import LOCK_STATE
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

__all__ = ["patch", "spell_out", "stores_are_traced"]


def patch(modules: Iterable[ModuleType]) -> None:
    """Patch Dynamo and the primitives of ``modules``, if Dynamo is older."""
    if not stores_are_traced():
        spell_out(modules)
        lock_primitives._forget_lock.__code__ = _undo_lock.__code__
        _trace_setters()
    _hold_slices()
    _unpack_objects()


def stores_are_traced() -> bool:
    """Return whether Dynamo traces a store to ``__dict__``."""
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    store = getattr(UserDefinedObjectVariable, "method_setattr_standard", None)
    return store is not None and "__dict__" in store.__code__.co_consts


def _undo_lock(td: CollectionProtocol) -> None:
    """Replace :func:`tensordict.primitives.lock._forget_lock`: nothing is deleted."""
    for name in LOCK_STATE:
        unlocked = getattr(CollectionProtocol, name)
        if td._is_dense:
            if getattr(td, name):
                setattr(td, name, unlocked)
        elif name in td.__dict__:
            td.__dict__[name] = unlocked  # some are properties of its class


def _trace_setters() -> None:
    """Make a store to a property of a new tensordict call the setter.

    Dynamo does this for mutable mappings. A class that is also a context manager is
    only a context manager to it, if compiled code makes the instance.
    """
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.ctx_manager import GenericContextWrappingVariable

    cls: Any = GenericContextWrappingVariable
    store = cls.method_setattr_standard

    def method_setattr_standard(
        self: Any, tx: Any, name: Any, value: Any, directly_update_dict: bool = False
    ) -> Any:
        if not directly_update_dict and issubclass(
            type(self.value), CollectionProtocol
        ):
            field = inspect.getattr_static(type(self.value), name.value, None)
            if isinstance(field, property) and type(field.fset) is FunctionType:
                setter = VariableTracker.build(tx, field.fset)
                return setter.call_function(tx, [self, value], {})
        return store(self, tx, name, value, directly_update_dict)

    cls.method_setattr_standard = method_setattr_standard


def _hold_slices() -> None:
    """Make Dynamo hold constant slices, if it does not."""
    try:
        from torch._dynamo.variables import SliceVariable
        from torch._dynamo.variables.builder import SourcelessBuilder

        builder: Any = SourcelessBuilder
        handlers = builder._type_handlers
    except (ImportError, AttributeError):
        return
    if "SliceVariable" in SourcelessBuilder.create.__code__.co_names:
        return

    def build_slice(tx: Any, value: slice) -> Any:
        parts = (value.start, value.stop, value.step)
        return SliceVariable([SourcelessBuilder.create(tx, part) for part in parts], tx)

    handlers.setdefault(slice, build_slice)


def _unpack_objects() -> None:
    """Make Dynamo unpack iterable objects, if it does not."""
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    unpack = getattr(VariableTracker, "force_apply_to_var_sequence", None)
    # An older Dynamo checks that it can unpack an object, but then does not unpack it.
    if unpack is None or "force_unpack_var_sequence" in unpack.__code__.co_names:
        return

    def force_apply_to_var_sequence(
        self: Any, tx: object, fn: Callable[..., Any]
    ) -> None:
        for item in self.force_unpack_var_sequence(tx):
            fn(item)

    cls: Any = UserDefinedObjectVariable
    cls.force_apply_to_var_sequence = force_apply_to_var_sequence


def spell_out(modules: Iterable[ModuleType]) -> None:
    """Recompile the functions of ``modules`` with one store for each attribute."""
    for module in modules:
        try:
            tree = ast.parse(inspect.getsource(module))
        except OSError:  # the package was installed without its sources
            continue
        tree = ast.fix_missing_locations(_Stores().visit(tree))
        code = compile(tree, inspect.getfile(module), "exec", dont_inherit=True)
        codes = {each.co_qualname: each for each in _code_objects(code)}
        for function in [*vars(module).values()]:
            if (
                type(function) is FunctionType
                and function.__module__ == module.__name__
            ):
                function.__code__ = codes.get(function.__qualname__, function.__code__)


def _code_objects(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects of functions, outer functions first."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _code_objects(constant)


class _Stores(ast.NodeTransformer):
    """Replaces ``x.__dict__ = {"a": b}`` by ``object.__setattr__(x, "a", b)``."""

    def visit_Assign(self, node: ast.Assign) -> Any:
        (target, *others) = node.targets
        if (
            others
            or not isinstance(target, ast.Attribute)
            or target.attr != "__dict__"
            or not isinstance(node.value, ast.Dict)
            or None in node.value.keys  # contains `**other`
        ):
            return self.generic_visit(node)
        store = ast.parse("object.__setattr__", mode="eval").body
        return [
            ast.Expr(
                ast.Call(store, [target.value, key, value], []), lineno=node.lineno
            )
            for key, value in zip(node.value.keys, node.value.values, strict=True)
            if key is not None
        ]
