"""Add to Dynamo of torch 2.11 what the primitives in Python need to be traced.

They give a new collection its state as one dictionary (``result.__dict__ = {...}``),
which costs the least to compile. An older Dynamo does not know what that does: to it, the
collection then has no attributes. There the same functions are compiled with one store for
each attribute. What is deleted of that dictionary it does not connect with what was
stored before, so there a collection that is unlocked keeps the attributes of a lock, with
the values that they have without one. What is set through a property of a new collection it
stores as an attribute of that name, too. Nor can it hold the slices of a plan that was made while compiling, or
unpack an object into a list (``[*td.keys(True)]``).
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

__all__ = ["make_up_for_it", "spell_out", "stores_are_traced"]


def make_up_for_it(modules: Iterable[ModuleType]) -> None:
    """Change the primitives of ``modules`` and Dynamo, which is imported, where it is older."""
    if not stores_are_traced():
        spell_out(modules)
        lock_primitives._forget_lock.__code__ = _undo_lock.__code__
        _trace_setters()
    _hold_slices()
    _unpack_objects()


def stores_are_traced() -> bool:
    """Return whether Dynamo knows what a store to ``__dict__`` does."""
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    store = getattr(UserDefinedObjectVariable, "method_setattr_standard", None)
    return store is not None and "__dict__" in store.__code__.co_consts


def _undo_lock(td: CollectionProtocol) -> None:
    """:func:`tensordict.primitives.lock._forget_lock` without a deletion, where there can be attributes."""
    for name in LOCK_STATE:
        unlocked = getattr(CollectionProtocol, name)
        if td._is_dense:
            if getattr(td, name):
                setattr(td, name, unlocked)
        elif name in td.__dict__:
            td.__dict__[name] = unlocked  # some are properties of its class


def _trace_setters() -> None:
    """Teach Dynamo that a store to a property of a new collection calls its setter.

    It knows that of a mutable mapping. But what is a context manager, too, is only that
    to it, if it is made in compiled code.
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
    """Teach Dynamo to hold a slice that is a constant, if it does not know."""
    try:
        from torch._dynamo.variables import SliceVariable
        from torch._dynamo.variables.builder import SourcelessBuilder

        builder: Any = SourcelessBuilder
        handlers = builder._type_handlers
    except (ImportError, AttributeError):
        return
    if "SliceVariable" in SourcelessBuilder.create.__code__.co_names:
        return

    def held(tx: Any, value: slice) -> Any:
        parts = (value.start, value.stop, value.step)
        return SliceVariable([SourcelessBuilder.create(tx, part) for part in parts], tx)

    handlers.setdefault(slice, held)


def _unpack_objects() -> None:
    """Teach Dynamo to unpack an object that is iterable, if it does not know."""
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    unpack = getattr(VariableTracker, "force_apply_to_var_sequence", None)
    # An older one has made sure that it can force an object, and then does not.
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
    """Give the functions of ``modules`` code that stores each attribute by itself."""
    for module in modules:
        try:
            tree = ast.parse(inspect.getsource(module))
        except OSError:  # a package without its sources
            continue
        tree = ast.fix_missing_locations(_Stores().visit(tree))
        code = compile(tree, inspect.getfile(module), "exec", dont_inherit=True)
        found = {each.co_qualname: each for each in _code_objects(code)}
        for function in [*vars(module).values()]:
            if (
                type(function) is FunctionType
                and function.__module__ == module.__name__
            ):
                function.__code__ = found.get(function.__qualname__, function.__code__)


def _code_objects(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module, those within functions after what holds them."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _code_objects(each)


class _Stores(ast.NodeTransformer):
    """``x.__dict__ = {"a": b}`` becomes ``object.__setattr__(x, "a", b)``."""

    def visit_Assign(self, node: ast.Assign) -> Any:
        (target, *others) = node.targets
        if (
            others
            or not isinstance(target, ast.Attribute)
            or target.attr != "__dict__"
            or not isinstance(node.value, ast.Dict)
            or None in node.value.keys  # another dictionary unpacked into it
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
