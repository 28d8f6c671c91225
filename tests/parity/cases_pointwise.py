"""Elementwise functions, arithmetic and comparisons."""

from frame import EVERY, SOME, cases

UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 "
    "log1p log2 neg reciprocal round sigmoid sign sin sinh sqrt tan tanh trunc"
).split()
BINARY = "add sub mul div pow maximum minimum clamp_min clamp_max".split()
COMPARISONS = "== != < <= > >=".split()

LIKE = (
    "TensorDict({'n': {'b': T([2, 3, 4], start=3)}, 'a': T([2, 3], start=1)}, [2, 3])"
)
LESS = "TensorDict({'a': T([2, 3], start=1)}, [2, 3])"
MORE = (
    "TensorDict({'a': T([2, 3]), 'n': {'b': T([2, 3, 4]), 'x': T([2, 3])}, "
    "'z': T([2, 3])}, [2, 3])"
)
FLOATS = "floats locked named subclass sub cpu nested_subclass"
NUMBER_DEFAULT = (
    "a number as default fails in the middle of the release's own foreach call"
)

CASES = [
    *(
        case
        for name in UNARY
        for case in [
            *cases(
                name, f"td.{name}()", on="floats named locked subclass empty scalar"
            ),
            *cases(f"{name}_", f"td.{name}_()", on="floats locked sub"),
            *cases(f"{name}_", f"td.{name}_()", on="mixed", message=False),
        ]
    ),
    *cases("abs", "td.abs()", on="deep zero cpu sub half_named nested_subclass meta"),
    *cases("__neg__", "-td", on="flat floats named locked sub"),
    *cases("__abs__", "abs(td)", on="floats named locked sub"),
    *cases("__invert__", "~td.bool()", on=EVERY),
    *cases("__invert__", "~td", on="flat mixed"),
    *(
        case
        for name in "isfinite isnan isneginf isposinf isreal".split()
        for case in cases(
            name, f"td.{name}()\n(td / 0).{name}()", on=SOME + " subclass"
        )
    ),
    # Arithmetic ------------------------------------------------------------------
    *(
        case
        for name in BINARY
        for case in [
            *cases(
                name,
                f"""
                td.{name}(2)
                td.{name}(1.5)
                td.{name}(torch.tensor(2.0))
                td.{name}(torch.tensor([1.0, 2.0, 3.0]))
                td.{name}(T([2, 3], start=4).abs())
                td.{name}({LIKE})
                td.{name}({LESS}, default='intersection')
                td.{name}({MORE}, default='intersection')
                td.{name}({MORE}, default=torch.tensor(2.0))
                """,
                on="floats named subclass sub deep",
                message=False,
            ),
            *cases(
                name,
                f"""
                td.{name}(2)
                td.{name}(T([3]))
                td.{name}({LIKE})
                td.{name}({LESS}, default='intersection')
                """,
                on="locked",
                message=False,
            ),
            *cases(name, f"td.{name}({LESS})\ntd.{name}({MORE})", on="floats"),
            *cases(name, f"td.{name}('x')\ntd.{name}(None)", on="floats"),
            *cases(
                name,
                f"td.{name}({MORE}, default=2.0)",
                on="floats",
                reason=NUMBER_DEFAULT,
                ours="list(result.keys()) == ['a', 'n', 'z']",
            ),
            *cases(
                f"{name}_",
                f"""
                td.{name}_(2)
                td.{name}_(torch.tensor(2.0))
                td.{name}_(torch.tensor([1.0, 2.0, 3.0]))
                td.{name}_({LIKE})
                td.{name}_({MORE})
                td.{name}_({LESS})
                """,
                on="floats named sub nested_subclass",
                message=False,
            ),
        ]
    ),
    *cases(
        "add",
        f"""
        td.add(1, alpha=2)
        td.add(torch.tensor(1), alpha=2)
        td.add(T([2, 3]), alpha=2)
        td.add({LIKE}, alpha=2)
        td.sub(1, alpha=2)
        td.sub(torch.tensor(1.0, dtype=torch.float64), alpha=2)
        td.sub({LIKE}, alpha=2)
        td.add_(1, alpha=2)
        td.add_(T([2, 3]), alpha=3)
        td.sub_(1, 2)
        td.sub_({LIKE}, alpha=2)
        td.rsub(1)
        td.rsub(1, alpha=2)
        td.rsub({LIKE})
        td.rsub({LIKE}, alpha=3)
        td.rsub(T([2, 3]))
        td.rsub(torch.tensor(2), alpha=2)
        """,
        on="floats locked named sub",
    ),
    *cases(
        "add",
        """
        td + 1
        td + 1.5
        td + True
        td + 1j
        td * 2.5
        td / 2
        2 / td
        td ** 2
        td % 2
        3 - td
        td + torch.tensor(1.0, dtype=torch.float64)
        td * torch.tensor(1.0, dtype=torch.float64)
        td + T([2, 3], 'float64')
        td + T([2, 3], 'int64')
        td.float() + td
        """,
        on="mixed nested flat",
        message=False,
    ),
    *cases(
        "__add__",
        f"""
        td + {LIKE}
        td - {LIKE}
        td * {LIKE}
        td / {LIKE}
        td % {LIKE}
        td.abs() ** {LIKE}
        1 + td
        1 - td
        2 * td
        1 / td
        td + T([3])
        td + T([4, 2, 3])
        td + T([2, 1])
        td + T([5])
        T([2, 3]) + td
        T([2, 3]) - td
        T([2, 3]) * td
        T([2, 3]) / td
        2 ** td
        td + np.float32(2)
        td + [1, 2]
        td // 2
        """,
        on="floats locked named subclass sub",
        message=False,
    ),
    *cases(
        "__add__",
        """
        td + 1
        td + td
        1 - td
        td.clamp(min=0)
        """,
        on="empty_nested",
    ),
    *cases("__add__", "td + 1\ntd + td\ntd * T([2, 3])", on="empty zero single scalar"),
    *cases(
        "__add__",
        """
        td + td[0]
        td[0] + td
        td + td[:1]
        td[:, :1] + td
        td + TensorDict({'a': T([]), 'n': {'b': T([])}})
        td + td.unsqueeze(0)
        td == td[0]
        td[0] == td
        td < td[:1]
        """,
        on="floats named",
    ),
    *cases(
        "__iadd__",
        f"""
        td += 1
        td -= {LIKE}
        td *= 2
        td /= 2
        td **= 2
        td %= 2
        td += T([2, 3])
        """,
        on="floats locked named sub",
    ),
    *cases("mod", f"td.mod(2)\ntd.mod(T([2, 3]))\ntd.mod({LIKE})", on=FLOATS),
    # Bounds, and of three ----------------------------------------------------------
    *cases(
        "clamp",
        f"""
        td.clamp(0, 1)
        td.clamp(min=0)
        td.clamp(max=1)
        td.clamp(0.5)
        td.clamp(T([2, 3]), T([2, 3]) + 1)
        td.clamp({LIKE}, {LIKE} + 1)
        td.clamp({LIKE})
        td.clamp({LIKE}, 1)
        td.clamp(T([2, 3]), 1)
        td.clamp(0, 1, out=td.clone())
        td.clamp(0, 1, out=td.empty())
        """,
        on="floats locked named sub",
        message=False,
    ),
    *cases(
        "lerp",
        f"""
        td.lerp({LIKE}, 0.5)
        td.lerp({LIKE}, torch.tensor(0.5))
        td.lerp({LIKE}, T([2, 3]))
        td.lerp({LIKE}, {LIKE})
        td.lerp(T([2, 3]), 0.5)
        td.lerp({LESS}, 0.5)
        td.lerp({MORE}, 0.5)
        td.lerp_({LIKE}, 0.5)
        td.lerp_(T([2, 3]), 0.5)
        td.addcmul({LIKE}, {LIKE})
        td.addcmul({LIKE}, {LIKE}, value=2)
        td.addcmul({LIKE}, T([2, 3]))
        td.addcmul(T([2, 3]), T([2, 3]))
        td.addcmul({LESS}, {LIKE})
        td.addcmul({LIKE}, 2.0)
        td.addcdiv({LIKE}, {LIKE} + 7)
        td.addcdiv({LIKE}, {LIKE} + 7, 3)
        td.addcmul_({LIKE}, {LIKE}, value=2)
        td.addcdiv_({LIKE}, {LIKE} + 7)
        """,
        on="floats locked named sub",
        message=False,
    ),
    *cases(
        "softmax",
        """
        td.softmax(0)
        td.softmax(-1)
        td.softmax(1, torch.float64)
        td.softmax(dim=0, dtype=torch.float64)
        td.softmax(2)
        td.softmax(-3)
        """,
        on="floats locked named sub",
        message=False,
    ),
    *cases("zero_", "td.zero_()", on=EVERY),
    *cases(
        "fill_",
        """
        td.fill_('a', 2)
        td.fill_('n', 2)
        td.fill_(('n', 'b'), 1.5)
        td.fill_('missing', 1)
        """,
        on="nested locked sub",
        message=False,
    ),
    # Comparisons ---------------------------------------------------------------------
    *(
        case
        for operator in COMPARISONS
        for case in [
            *cases(
                operator,
                f"""
                td {operator} 1
                td {operator} 1.5
                td {operator} torch.tensor(1)
                td {operator} T([2, 3])
                td {operator} T([3])
                td {operator} {LIKE}
                td {operator} {{'a': T([2, 3]), 'n': {{'b': T([2, 3, 4])}}}}
                td {operator} 'x'
                td {operator} None
                td {operator} [1]
                td {operator} np.float32(1)
                1 {operator} td
                """,
                on="floats locked named subclass sub",
            ),
            *cases(operator, f"td {operator} {LESS}", on="floats", message=False),
            *cases(operator, f"td {operator} td.clone()", on="empty empty_nested deep"),
        ]
    ),
    *cases(
        "__or__",
        """
        td.bool() | td.bool()
        td.bool() | True
        True | td.bool()
        td.bool() | T([2, 3], 'bool')
        td.bool() ^ td.bool()
        td.bool() ^ True
        td.bool() ^ T([2, 3], 'bool')
        td.bool() & td.bool()
        td.bool() & True
        True & td.bool()
        td.int() & 3
        td.int() | 3
        td | 1
        td & 1
        td | 'x'
        td ^ 'x'
        """,
        on="floats locked named sub",
        message=False,
    ),
    *cases(
        "__and__",
        "td.bool() & T([2, 3], 'bool')",
        on="floats",
        reason="& alone broadcasts a tensor from the right; | and bitwise_and do not",
        ours="(result == td.bool().bitwise_and(T([2, 3], 'bool'))).all()",
    ),
    *cases(
        "logical_and",
        f"""
        td.logical_and({LIKE})
        td.logical_and(T([2, 3]))
        td.logical_and(torch.tensor(1))
        td.logical_and({MORE}, default='intersection')
        td.logical_and(1)
        td.int().bitwise_and(3)
        td.int().bitwise_and(T([2, 3], 'int64'))
        td.bitwise_and(1)
        """,
        on="floats locked named sub",
        message=False,
    ),
    *cases(
        "logical_and",
        f"td.logical_and({MORE}, default=torch.tensor(True))",
        on="floats named sub",
    ),
    *cases(
        "logical_and",
        f"td.logical_and({MORE}, default=torch.tensor(True))",
        on="locked",
        reason="the release locks the result before it adds the other's entries",
        ours="result.is_locked and list(result.keys()) == ['a', 'n', 'z']",
    ),
    *cases("__bool__", "bool(td)", on="floats empty"),
    *cases("__hash__", "hash(td)", on="floats", message=False),
    # Nearly equal ----------------------------------------------------------------------
    *cases(
        "assert_close",
        f"""
        assert_close(td, td.clone())
        assert_close(td, td + 1e-9)
        assert_close(td, td + 1)
        assert_close(td, {LESS})
        assert_close({LESS}, td)
        assert_close(td, {LESS}, intersection=True)
        assert_close(td, td.clone(), rtol=1e-3, atol=1e-3)
        assert_close(td, td + 1, rtol=2.0, atol=2.0, msg='hello')
        assert_close(td, td.double())
        assert_close(td, 1)
        assert_close(td / 0 * 0, td / 0 * 0)
        assert_close(td / 0 * 0, td / 0 * 0, equal_nan=False)
        assert_close(td, td + 1, prefix=('z',))
        """,
        on="floats named",
        message=False,
    ),
    # Collections without leaves.
    *cases(
        "div",
        """
        td.div(TensorDict({'n': {}}, [2, 3]), default='intersection')
        td.maximum(TensorDict({'z': {}}, [2, 3]), default='intersection')
        td.add(TensorDict({}, [2, 3]), default='intersection')
    """,
        on="empty",
    ),
    *cases(
        "div",
        """
        td = TensorDict({'n': {}}, [2]); td.div(TensorDict({'n': {}}, [2]), default='intersection')
        td = TensorDict({'n': {}}, [2]); td.clamp_max(TensorDict({'z': {}}, [2]), default='intersection')
        td = TensorDict({'n': {}}, [2]); td.pow(TensorDict({'n': {'m': {}}}, [2]), default='intersection')
        td = TensorDict({'n': {}, 'a': T([2])}, [2]);
            td.mul(TensorDict({'m': {}, 'a': T([2])}, [2]), default='intersection')
    """,
        on="none",
    ),
    *cases(
        "__eq__",
        """
        td == {'a': {}, 'b': T([2, 3, 4])}
        td != {'a': {'x': T([2, 3])}, 'b': 3}
        td > {'a': {}, 'b': T([2, 3, 4])}
        td == {'a': T([2, 3]), 'b': {}}
        td == {'a': 1, 'b': T([2, 3, 1])}
    """,
        on="flat",
    ),
]
