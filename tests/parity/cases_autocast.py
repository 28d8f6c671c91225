"""Values given to fields of each annotation, under each option of tensorclasses."""

from frame import cases, differing

ANNOTATIONS = (
    *(
        "torch.Tensor",
        "int",
        "float",
        "bool",
        "complex",
        "str",
        "list",
        "dict",
        "tuple",
    ),
    *("np.ndarray", "TensorDict", "Inner", "typing.Any", "torch.Tensor | None"),
    *("int | None", "list[int]", "'torch.Tensor'", "bytes", "set"),
)
VALUES = (
    *("1", "1.5", "True", "2j", "'1'", "'x'", "[1, 2]", "['a', 'b']", "(1, 2)"),
    *("{'z': T([2])}", "{'k': 1}", "np.ones(2)", "np.float32(2)", "T([2])", "None"),
    *("b'x'", "{1}", "torch.float32", "np.float64(2)", "np.int64(2)", "np.bool_(True)"),
)
COLLECTIONS = ("TensorDict(z=T([2]))", "Inner(T([2]))")
# Their texts depend on settings, those of a set of texts on chance, and a collection of
# another class is an error by accident.
NO_COLLECTIONS = ("str", "set", "TensorDict")
OPTIONS = ("", "autocast=True", "nocast=True", "tensor_only=True", "frozen=True")

PROGRAM = "in_field({}, [{}], {}, **dict({}))"


def programs(options: str, size: str) -> str:
    """A line per annotation."""
    lines = []
    for annotation in ANNOTATIONS:
        values = VALUES if annotation in NO_COLLECTIONS else VALUES + COLLECTIONS
        if annotation == "set":
            values = tuple(value for value in values if value != "['a', 'b']")
        lines.append(PROGRAM.format(annotation, ", ".join(values), size, options))
    return "\n".join(lines)


CASES = [
    case
    for options in OPTIONS
    for size in ("[]", "[2]")
    for case in cases(
        f"field {options} {size}".replace("=True", ""),
        programs(options, size),
        on="none",
    )
]

NUMBERS = "a field of numbers keeps them without batch dims, too"
LISTS = "a field of lists keeps a list of numbers that is no column of rows"
KEPT = {
    "int": (NUMBERS, "result[0] == 'int 1' and result[2] == 'bool True'"),
    "int | None": (NUMBERS, "result[0] == 'int 1' and result[2] == 'bool True'"),
    "float": (NUMBERS, "result[:2] == ['int 1', 'float 1.5']"),
    "bool": (NUMBERS, "result[2] == 'bool True'"),
    "list": (LISTS, "result[6] == 'list [1, 2]'"),
    "list[int]": (LISTS, "result[6] == 'list [1, 2]'"),
}
for annotation, (reason, ours) in KEPT.items():
    for options in ("", "frozen=True", *(["nocast=True"] if reason == LISTS else [])):
        CASES = differing(
            CASES,
            f"in_field({annotation}, [",
            f"], [], **dict({options}))",
            reason=reason,
            ours=ours,
        )

# In a batch the release raises for what it cannot cast.
CASES = differing(
    CASES,
    "in_field(int | None, [",
    "**dict(autocast=True))",
    reason="a field of numbers keeps them, whatever the batch size and options",
    ours="result[0] == 'int 1' and result[2] == 'bool True'",
)
