"""A plugin that tells mypy what ``@tensorclass`` makes of a class.

Without it mypy takes a decorated class for a dataclass of its fields. With it a class
is what it is when the program runs: a :class:`TensorClass`, which is made with
``batch_size=``, is indexed, and has the methods of every collection. Enable it where
mypy is configured::

    [tool.mypy]
    plugins = ["tensordict.mypy_plugin"]

It also says that ``torch.stack``, ``torch.cat`` and the functions of shape and of new
values take collections, that the options in ``TensorClass["nocast"]`` are no types, and
what the declared keys of a :class:`TypedTensorDict` hold: ``state["position"]`` is what
``state.position`` is, and a ``NotRequired[Tensor]`` is a tensor that need not be given.
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
"""The functions of torch that give a collection of the class of the first argument.

Those of the last line give several of them, in a tuple.
"""


class TensorDictPlugin(Plugin):
    """The plugin that tells mypy about tensorclasses."""

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

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        """Look at a file that was just read, before its names are looked up."""
        if any(map(_is_ours, file.imports)):
            for cls in _classes_in(file):
                _take_brackets(cls)
                _take_not_required(cls)
        return []

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Give a declared key the type of its declaration."""
        return _declared if fullname.endswith("__getitem__") else None

    def get_function_signature_hook(
        self, fullname: str
    ) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """Let torch's functions take collections."""
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
    """Return whether the class is ready for what its base asks for."""
    return any(base.fullname == BASE for base in context.cls.info.mro)


def _is_ours(imported: ImportBase) -> bool:
    """Return whether an import statement names this package."""
    if isinstance(imported, Import):
        return any(name.partition(".")[0] == PACKAGE for name, _ in imported.ids)
    named = getattr(imported, "id", "")
    return bool(named.partition(".")[0] == PACKAGE)


def _classes_in(node: Node) -> Iterator[ClassDef]:
    """All class statements below a node. Mypy's own visitors cannot be extended."""
    if isinstance(node, ClassDef):
        yield node
    for name in ("defs", "body", "else_body", "finally_body", "handlers", "func"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [below]:
            if isinstance(each, Node):
                yield from _classes_in(each)


def _take_brackets(cls: ClassDef) -> None:
    """Make keywords of the class statement of the options in brackets behind a base.

    Brackets hold types for mypy, which looks for a class of the name of each option.
    """
    for place, base in enumerate(cls.base_type_exprs):
        if not isinstance(base, IndexExpr):
            continue
        named = base.base
        if not isinstance(named, (NameExpr, MemberExpr)):
            continue
        options = _texts(base.index)
        if named.name in TAKE_OPTIONS and options:
            cls.base_type_exprs[place] = named
            if "frozen" in options:
                cls.keywords["frozen"] = NameExpr("True")


def _take_not_required(cls: ClassDef) -> None:
    """Make fields with a default of the keys that need not be given.

    To mypy ``NotRequired`` is for the keys of a ``TypedDict`` alone.
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
                # It is of every type.
                statement.rvalue = NameExpr("NotImplemented")


def _name_of(base: Expression) -> str:
    """The last name of what a class derives from, without brackets."""
    if isinstance(base, IndexExpr):
        base = base.base
    return base.name if isinstance(base, (NameExpr, MemberExpr)) else ""


def _texts(index: Expression) -> list[str]:
    """The texts in the brackets; none where there is anything else."""
    items = index.items if isinstance(index, TupleExpr) else [index]
    texts = [item.value for item in items if isinstance(item, StrExpr)]
    return texts if len(texts) == len(items) else []


def _declared(context: MethodContext) -> Type:
    """The type of the key that is read, if it is declared; what annotations say if not."""
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


def _keeping(context: FunctionSigContext) -> FunctionLike:
    """The signature with a collection in place of the tensor, if the argument is one."""
    signature = context.default_signature
    if not context.args or len(context.args[0]) != 1:
        return signature
    given = get_proper_type(context.api.get_expression_type(context.args[0][0]))
    if not _is_collection(given):
        return signature
    result: Type = given
    several = get_proper_type(signature.ret_type)
    if isinstance(several, TupleType):
        several = tuple_fallback(several)
    if isinstance(several, Instance) and several.args:
        result = several.copy_modified(args=[given])
    types = [given, *signature.arg_types[1:]]
    return signature.copy_modified(arg_types=types, ret_type=result)


def _choosing(context: FunctionSigContext) -> FunctionLike:
    """The signature of ``torch.where`` for what is chosen from, if it is a collection."""
    signature = context.default_signature
    chosen = [expressions[0] for expressions in context.args[1:3] if expressions]
    if len(chosen) != 2 or len(signature.arg_types) < 3:
        return signature
    types = [get_proper_type(context.api.get_expression_type(each)) for each in chosen]
    if not _is_collection(types[0]):
        return signature
    every = [signature.arg_types[0], *types, *signature.arg_types[3:]]
    return signature.copy_modified(arg_types=every, ret_type=types[0])


def _is_collection(given: Type) -> bool:
    """Return whether a type is that of a collection, or a variable of such types."""
    bound = given.upper_bound if isinstance(given, TypeVarType) else given
    bound = get_proper_type(bound)
    return isinstance(bound, Instance) and bound.type.has_base(COLLECTION)


def _item_of(joined: Type) -> Type | None:
    """The collections in a list or tuple of some; None where they are no collections."""
    if isinstance(joined, TupleType):
        joined = tuple_fallback(joined)
    if not isinstance(joined, Instance) or not joined.args:
        return None
    item = get_proper_type(joined.args[0])
    return item if _is_collection(item) else None


def plugin(version: str) -> type[Plugin]:
    """The plugin: what mypy calls when it reads its configuration."""
    del version
    return TensorDictPlugin
