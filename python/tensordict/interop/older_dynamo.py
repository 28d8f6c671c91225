"""What Dynamo of torch 2.11 lacks to trace the twins.

The twins give a new container its state as one dictionary (``result.__dict__ = {...}``),
which costs the least to compile. An older Dynamo does not know what that does: to it, the
container then has no attributes. There the same twins are compiled with one store for
each attribute. Nor can it hold the slices of a plan that was made while compiling.
"""

from __future__ import annotations

import ast
import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

__all__ = ["make_up_for_it", "spell_out"]


def make_up_for_it(modules: Iterable[ModuleType]) -> None:
    """Change the twins of ``modules`` and Dynamo, which is imported, where it is older."""
    if not _stores_are_traced():
        spell_out(modules)
    _hold_slices()


def _stores_are_traced() -> bool:
    """Whether Dynamo knows what a store to ``__dict__`` does."""
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    store = getattr(UserDefinedObjectVariable, "method_setattr_standard", None)
    return store is not None and "__dict__" in store.__code__.co_consts


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
