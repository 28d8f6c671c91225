"""A plugin that tells mypy what ``@tensorclass`` makes of a class.

Without it mypy takes a decorated class for a dataclass of its fields. With it a class
is what it is when the program runs: a :class:`TensorClass`, which is made with
``batch_size=``, is indexed, and has the methods of every collection. Enable it where
mypy is configured::

    [tool.mypy]
    plugins = ["tensordict.mypy_plugin"]

It also says that ``torch.stack`` and ``torch.cat`` take collections. Give options to
mypy as keywords, ``class Data(TensorClass, nocast=True)``: in ``TensorClass["nocast"]``
it takes the option for the name of a type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy.mro import MroError, calculate_mro
from mypy.nodes import TypeInfo
from mypy.plugin import Plugin
from mypy.typeops import tuple_fallback
from mypy.types import Instance, TupleType, get_proper_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy.nodes import ClassDef, Expression
    from mypy.plugin import ClassDefContext, FunctionSigContext
    from mypy.types import FunctionLike, Type

__all__ = ["TensorDictPlugin", "plugin"]

DECORATOR = "tensordict.tensorclass.decorator.tensorclass"
BASE = "tensordict.tensorclass.base.TensorClass"
COLLECTION = "tensordict.protocol.CollectionProtocol"
JOINING = frozenset(
    f"torch._C._VariableFunctions.{name}" for name in ("stack", "cat", "concat")
)


class TensorDictPlugin(Plugin):
    """What mypy asks about tensorclasses."""

    def get_class_decorator_hook(
        self, fullname: str
    ) -> Callable[[ClassDefContext], None] | None:
        """Give a decorated class its base, before mypy looks at its methods."""
        return _give_base if fullname == DECORATOR else None

    def get_class_decorator_hook_2(
        self, fullname: str
    ) -> Callable[[ClassDefContext], bool] | None:
        """Take the place of what mypy does with decorators like ``dataclass``.

        The base is one, too: it is what makes the fields arguments.
        """
        return _has_base if fullname == DECORATOR else None

    def get_function_signature_hook(
        self, fullname: str
    ) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """Let torch's functions join collections."""
        return _joining if fullname in JOINING else None


def _give_base(context: ClassDefContext) -> None:
    cls = context.cls
    node = context.api.lookup_fully_qualified_or_none(BASE)
    base = node.node if node else None
    if not isinstance(base, TypeInfo) or base.bad_mro or not base.mro:
        context.api.defer()
        return
    info = cls.info
    if base in info.mro:
        return
    inherited = [each for each in info.bases if each.type.fullname != "builtins.object"]
    info.bases = [*inherited, Instance(base, [])]
    # It is computed where it is empty only.
    info.mro = []
    try:
        calculate_mro(info)
    except MroError:
        context.api.fail("The bases of the class do not go with TensorClass", cls)
        return
    info.metaclass_type = info.calculate_metaclass_type()
    _take_options(cls, context.reason)


def _take_options(cls: ClassDef, decorator: Expression) -> None:
    """Treat the arguments of the decorator as keywords of the class statement."""
    for name, value in zip(
        getattr(decorator, "arg_names", ()), getattr(decorator, "args", ()), strict=True
    ):
        if name in ("frozen", "kw_only"):
            cls.keywords[name] = value


def _has_base(context: ClassDefContext) -> bool:
    """Whether the class is ready for what its base asks for."""
    return any(base.fullname == BASE for base in context.cls.info.mro)


def _joining(context: FunctionSigContext) -> FunctionLike:
    """The signature with collections in place of tensors, if that is what is joined."""
    signature = context.default_signature
    if not context.args or len(context.args[0]) != 1:
        return signature
    joined = get_proper_type(context.api.get_expression_type(context.args[0][0]))
    item = _item_of(joined)
    if item is None:
        return signature
    types = [joined, *signature.arg_types[1:]]
    return signature.copy_modified(arg_types=types, ret_type=item)


def _item_of(joined: Type) -> Instance | None:
    """The collections in a list or tuple of some; None where they are no collections."""
    if isinstance(joined, TupleType):
        joined = tuple_fallback(joined)
    if not isinstance(joined, Instance) or not joined.args:
        return None
    item = get_proper_type(joined.args[0])
    if isinstance(item, Instance) and item.type.has_base(COLLECTION):
        return item
    return None


def plugin(version: str) -> type[Plugin]:
    """The plugin: what mypy calls when it reads its configuration."""
    del version
    return TensorDictPlugin
