"""A mypy plugin for the decorator ``@tensorclass``.

Without the plugin, mypy treats a decorated class as a dataclass. With it, the class is a
:class:`TensorClass` as at runtime: it takes ``batch_size=``, can be indexed and has the
methods of a tensordict. Enable it in the configuration of mypy::

    [tool.mypy]
    plugins = ["tensordict.mypy_plugin"]

The plugin also does the following:

* ``torch.stack``, ``torch.cat`` and the functions for shapes and new values take
  tensordicts.
* The options in ``TensorClass["nocast"]`` are no types.
* The declared keys of a :class:`TypedTensorDict` have types: ``state["position"]`` has
  the type of ``state.position``, and a ``NotRequired[Tensor]`` is an optional tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy.mro import MroError, calculate_mro
from mypy.nodes import (
    AssignmentStmt,
    ClassDef,
    Import,
    IndexExpr,
    MemberExpr,
    NameExpr,
    Node,
    StrExpr,
    TempNode,
    TupleExpr,
    TypeInfo,
    Var,
)
from mypy.plugin import Plugin
from mypy.typeops import tuple_fallback
from mypy.types import (
    Instance,
    LiteralType,
    TupleType,
    TypeVarType,
    UnboundType,
    get_proper_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy.nodes import Expression, ImportBase, MypyFile
    from mypy.plugin import (
        ClassDefContext,
        FunctionSigContext,
        MethodContext,
    )
    from mypy.types import FunctionLike, Type

__all__ = ["TensorDictPlugin", "plugin"]

DECORATOR = "tensordict.tensorclass.decorator.tensorclass"
BASE = "tensordict.tensorclass.base.TensorClass"
PACKAGE = "tensordict"
TAKE_OPTIONS = ("TensorClass", "TypedTensorDict")
TYPED = "tensordict.containers.typed.TypedTensorDict"
COLLECTION = "tensordict.primitives.protocol.CollectionProtocol"
FUNCTIONS = ("torch._C._VariableFunctions", "torch.functional")
JOINING = frozenset(("stack", "cat", "concat"))
KEEPING = frozenset(
    (
        *("clone", "empty_like", "full_like", "ones_like", "rand_like", "randn_like"),
        *("zeros_like", "abs", "exp", "log", "neg", "sqrt", "sign", "round", "isnan"),
        *("flatten", "flip", "gather", "moveaxis", "movedim", "narrow", "permute"),
        *("reshape", "roll", "squeeze", "swapaxes", "swapdims", "transpose", "tile"),
        *("unflatten", "unsqueeze", "broadcast_to", "masked_select"),
        *("chunk", "split", "tensor_split", "unbind"),
    )
)
"""The torch functions whose result has the class of the first argument.

The functions in the last line return a tuple of such results.
"""


class TensorDictPlugin(Plugin):
    """The mypy plugin for tensorclasses."""

    def get_class_decorator_hook(
        self, fullname: str
    ) -> Callable[[ClassDefContext], None] | None:
        """Add the base to a decorated class, before mypy analyzes its methods."""
        return _give_base if fullname == DECORATOR else None

    def get_class_decorator_hook_2(
        self, fullname: str
    ) -> Callable[[ClassDefContext], bool] | None:
        """Replace mypy's own handling of decorators like ``dataclass``.

        The base class is such a decorator, too: it makes fields of the annotations.
        """
        return _has_base if fullname == DECORATOR else None

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        """Change the classes of a parsed file before its names are resolved."""
        if any(map(_is_ours, file.imports)):
            for cls in _classes_in(file):
                _take_brackets(cls)
                _take_not_required(cls)
        return []

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Return the declared type for a declared key."""
        return _declared if fullname.endswith("__getitem__") else None

    def get_function_signature_hook(
        self, fullname: str
    ) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """Make torch's functions accept tensordicts."""
        module, _, name = fullname.rpartition(".")
        if module not in FUNCTIONS:
            return None
        if name in JOINING:
            return _joining
        if name == "where":
            return _choosing
        return _keeping if name in KEEPING else None


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
    inherited = [cls for cls in info.bases if cls.type.fullname != "builtins.object"]
    info.bases = [*inherited, Instance(base, [])]
    # mypy computes the order of bases only if it is empty.
    info.mro = []
    try:
        calculate_mro(info)
    except MroError:
        context.api.fail("The bases of the class conflict with TensorClass", cls)
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
    """Return whether the class has the base :class:`TensorClass`."""
    return any(base.fullname == BASE for base in context.cls.info.mro)


def _is_ours(imported: ImportBase) -> bool:
    """Return whether an import statement imports this package."""
    if isinstance(imported, Import):
        return any(name.partition(".")[0] == PACKAGE for name, _ in imported.ids)
    named = getattr(imported, "id", "")
    return bool(named.partition(".")[0] == PACKAGE)


def _classes_in(node: Node) -> Iterator[ClassDef]:
    """Yield all class statements below a node; mypy's visitors cannot be subclassed."""
    if isinstance(node, ClassDef):
        yield node
    for name in ("defs", "body", "else_body", "finally_body", "handlers", "func"):
        children = getattr(node, name, None)
        for child in children if isinstance(children, list) else [children]:
            if isinstance(child, Node):
                yield from _classes_in(child)


def _take_brackets(cls: ClassDef) -> None:
    """Turn options in brackets after a base into keywords of the class statement.

    Mypy expects types in the brackets, and would look up a class for each option.
    """
    for position, base in enumerate(cls.base_type_exprs):
        if not isinstance(base, IndexExpr):
            continue
        base_name = base.base
        if not isinstance(base_name, (NameExpr, MemberExpr)):
            continue
        options = _texts(base.index)
        if base_name.name in TAKE_OPTIONS and options:
            cls.base_type_exprs[position] = base_name
            if "frozen" in options:
                cls.keywords["frozen"] = NameExpr("True")


def _take_not_required(cls: ClassDef) -> None:
    """Turn ``NotRequired`` keys into fields with a default.

    Mypy accepts ``NotRequired`` in a ``TypedDict`` only.
    """
    if any(_name_of(base).endswith("TypedDict") for base in cls.base_type_exprs):
        return
    for statement in cls.defs.body:
        if not isinstance(statement, AssignmentStmt):
            continue
        declared = statement.unanalyzed_type
        if not isinstance(declared, UnboundType) or len(declared.args) != 1:
            continue
        if declared.name.rpartition(".")[2] == "NotRequired":
            statement.type = statement.unanalyzed_type = declared.args[0]
            if isinstance(statement.rvalue, TempNode):
                # `NotImplemented` has every type.
                statement.rvalue = NameExpr("NotImplemented")


def _name_of(base: Expression) -> str:
    """Return the last name in the expression of a base class, without brackets."""
    if isinstance(base, IndexExpr):
        base = base.base
    return base.name if isinstance(base, (NameExpr, MemberExpr)) else ""


def _texts(index: Expression) -> list[str]:
    """Return the texts in the brackets; an empty list if other items are there."""
    items = index.items if isinstance(index, TupleExpr) else [index]
    texts = [item.value for item in items if isinstance(item, StrExpr)]
    return texts if len(texts) == len(items) else []


def _declared(context: MethodContext) -> Type:
    """Return the declared type of the key, otherwise the default type."""
    td = get_proper_type(context.type)
    if not isinstance(td, Instance) or not td.type.has_base(TYPED):
        return context.default_return_type
    key = get_proper_type(context.arg_types[0][0])
    if isinstance(key, Instance) and key.last_known_value is not None:
        key = key.last_known_value
    field = td.type.get(str(key.value)) if isinstance(key, LiteralType) else None
    declared = field.node if field else None
    if not isinstance(declared, Var) or declared.type is None:
        return context.default_return_type
    return declared.type


def _joining(context: FunctionSigContext) -> FunctionLike:
    """Return the signature for tensordicts, if the arguments are tensordicts."""
    signature = context.default_signature
    if not context.args or len(context.args[0]) != 1:
        return signature
    joined = get_proper_type(context.api.get_expression_type(context.args[0][0]))
    item = _item_of(joined)
    if item is None:
        return signature
    types = [joined, *signature.arg_types[1:]]
    return signature.copy_modified(arg_types=types, ret_type=item)


def _keeping(context: FunctionSigContext) -> FunctionLike:
    """Return the signature for a tensordict, if the argument is a tensordict."""
    signature = context.default_signature
    if not context.args or len(context.args[0]) != 1:
        return signature
    argument_type = get_proper_type(context.api.get_expression_type(context.args[0][0]))
    if not _is_collection(argument_type):
        return signature
    result: Type = argument_type
    default_result = get_proper_type(signature.ret_type)
    if isinstance(default_result, TupleType):
        default_result = tuple_fallback(default_result)
    if isinstance(default_result, Instance) and default_result.args:
        result = default_result.copy_modified(args=[argument_type])
    types = [argument_type, *signature.arg_types[1:]]
    return signature.copy_modified(arg_types=types, ret_type=result)


def _choosing(context: FunctionSigContext) -> FunctionLike:
    """Return the signature of ``torch.where`` for tensordicts, or the default."""
    signature = context.default_signature
    choices = [expressions[0] for expressions in context.args[1:3] if expressions]
    if len(choices) != 2 or len(signature.arg_types) < 3:
        return signature
    types = [get_proper_type(context.api.get_expression_type(arg)) for arg in choices]
    if not _is_collection(types[0]):
        return signature
    arg_types = [signature.arg_types[0], *types, *signature.arg_types[3:]]
    return signature.copy_modified(arg_types=arg_types, ret_type=types[0])


def _is_collection(type_: Type) -> bool:
    """Return whether a type, or the bound of a type variable, is a tensordict class."""
    bound = type_.upper_bound if isinstance(type_, TypeVarType) else type_
    bound = get_proper_type(bound)
    return isinstance(bound, Instance) and bound.type.has_base(COLLECTION)


def _item_of(joined: Type) -> Type | None:
    """Return the item type of a list or tuple of tensordicts; None for other types."""
    if isinstance(joined, TupleType):
        joined = tuple_fallback(joined)
    if not isinstance(joined, Instance) or not joined.args:
        return None
    item = get_proper_type(joined.args[0])
    return item if _is_collection(item) else None


def plugin(version: str) -> type[Plugin]:
    """Return the plugin class, when mypy reads its configuration."""
    del version
    return TensorDictPlugin
