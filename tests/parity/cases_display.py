"""The text of collections, with every option."""

from frame import cases

SHOWN = (
    "flat nested deep empty empty_nested scalar zero locked named cpu meta subclass "
    "nested_subclass sub grad dotted mixed"
)
OPTIONS = [
    "show_batch_size",
    "show_device",
    "show_is_shared",
    "show_shape",
    "show_field_device",
    "show_dtype",
    "show_field_is_shared",
]
EXTRA = [
    "show_grad",
    "show_is_contiguous",
    "show_is_view",
    "show_storage_size",
    "plain",
]


def printed(options: str) -> str:
    """A program that prints under options; both sides name the form, as defaults differ."""
    return f"exec('with set_printoptions({options}): r = repr(td)'); r"


CASES = [
    *cases("__repr__", printed("compact=False"), on=SHOWN),
    *cases("__repr__", printed("compact=True"), on=SHOWN),
    *cases("__repr__", printed("compact=False, verbose=False"), on=SHOWN),
    *cases("__repr__", printed("compact=True, verbose=False"), on=SHOWN),
    *[
        case
        for option in OPTIONS
        for form in (True, False)
        for case in cases(
            "set_printoptions",
            printed(f"compact={form}, {option}=False"),
            on="nested cpu meta",
        )
    ],
    *[
        case
        for option in EXTRA
        for case in cases(
            "set_printoptions", printed(f"{option}=True"), on="nested mixed sub"
        )
    ],
    *[
        case
        for order in ("'alphabetical'", "'insertion'", "None", "True")
        for form in (True, False)
        for case in cases(
            "set_printoptions",
            printed(f"compact={form}, sort_keys={order}"),
            on="nested dotted",
        )
    ],
    *cases(
        "set_printoptions",
        """
        set_printoptions(foo=1)
        set_printoptions(True)
        exec('with set_printoptions(html=False): r = td._repr_html_()'); r
        """,
        on="nested deep cpu",
    ),
    *cases(
        "set_printoptions",
        """
        exec('with set_printoptions(compact=False): r = td._repr_html_()'); r
        exec('with set_printoptions(compact=True): r = td._repr_html_()'); r
        """,
        on="nested deep cpu",
        reason="a notebook shows one tree, with sizes, places and previews",
        ours="'<details open>' in result and 'float32' in result",
    ),
    *cases(
        "get_printoptions",
        """
        {k: v for k, v in get_printoptions().items() if k != 'compact'}
        exec('with set_printoptions(verbose=False): r = get_printoptions()'); r.pop('compact'); r
        exec('with set_printoptions(show_grad=True): r = get_printoptions()'); r
        """,
        on="none",
    ),
    *cases(
        "__repr__",
        'exec(\'with set_printoptions(compact=True): r = [repr(TensorDict({"k" * n: T([3]), "n": {"b": T([2]), "c" * n: 1}})) for n in range(1, 60)]\'); r',
        on="none",
    ),
    *cases(
        "__repr__",
        "exec('with set_printoptions(compact=True): r = [repr(TensorDict({\"a\": torch.zeros(2, dtype=d)})) for d in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)]'); r",
        on="none",
    ),
]
