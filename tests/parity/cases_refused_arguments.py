"""Keys and dims that are refused: cases that random comparisons found."""

from frame import cases

CASES = [
    *cases(
        "flatten",
        """
        TensorDict(a=T([2])).flatten(-1, -1)
        TensorDict(a=T([2])).flatten(-1)
        TensorDict(a=T([2])).flatten(0, -1)
        TensorDict(a=T([2])).flatten(0, -2)
        TensorDict(a=T([2])).flatten(0, 0)
        TensorDict(a=T([2]), batch_size=[2]).flatten(0, -2)
        TensorDict(a=T([2]), batch_size=[2]).flatten(-1, -2)
        TensorDict(a=T([2, 3]), batch_size=[2, 3]).flatten(0, -3)
        TensorDict(a=T([2, 3]), batch_size=[2, 3]).flatten(-1, -1)
        Data(T([2])).flatten(-1, -1)
        """,
        on="none",
    ),
    *cases(
        "split_keys",
        "\n".join(
            f"{made}.split_keys({keys}, default={default}, strict={strict})"
            for made in (
                "TensorDict(a=T([2]), n=TensorDict(b=T([2])))",
                "lazy_stack([TensorDict(a=T([2]), n=TensorDict(b=T([2])))] * 2)",
            )
            for keys in (
                "['nope']",
                "['a', 'nope']",
                "[('n', 'nope')]",
                "[('a', 'nope')]",
            )
            for default in ("None", "torch.ones(2)", "'x'")
            for strict in (True, False)
        ),
        on="none",
        message=False,
    ),
    *cases(
        "set",
        """
        Data(T([2]), batch_size=[2]).set(('a', 1), T([2]))
        Data(T([2]), batch_size=[2]).set((1, 'a'), T([2]))
        Data(T([2]), batch_size=[2]).set((1,), T([2]))
        Data(T([2]), batch_size=[2]).set((), T([2]))
        Data(T([2]), batch_size=[2]).set(1, T([2]))
        Data(T([2]), batch_size=[2]).set(None, T([2]))
        """,
        on="none",
        message=False,
    ),
]
