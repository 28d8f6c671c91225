"""Operations that change the sizes of a collection in place, and what they leave in it."""

from frame import cases

WHOLE = "(r is s, s.batch_size, s['a'].tolist(), [list(m.batch_size) for m in s.tensordicts])"
MADE = [
    f"s = lazy_stack([TensorDict(a=T([{n}, 2], start=i), batch_size=[{n}]) "
    f"for i in range({count})], {dim})"
    for n, count, dim in ((3, 2, 0), (2, 2, 1), (2, 1, 1))
]


def of_stacks(*calls: str) -> str:
    """A program for each call and kind of stack: what it gives and leaves behind."""
    return "\n".join(
        f"{made}; r = s.{call}; {WHOLE}" for made in MADE for call in calls
    )


CASES = [
    *cases(
        "pad",
        of_stacks(
            "pad([0, 0, 0, 2], inplace=True)",
            "pad([1, 0], inplace=True, value=5)",
            "pad([0, 2, 1, 0], inplace=True)",
            "pad([0, 1, 0], inplace=True)",
        ),
        on="none",
    ),
    *cases(
        "pad",
        "td.pad([-1, 0], inplace=True); [list(each.batch_size) for each in td.tensordicts]",
        on="lazy",
        reason="padding in place with a negative number leaves the release's stack with "
        "more members than its batch size has",
        ours="td.batch_size[0] == 1 and td.batch_size[0] == len(td['a'])",
    ),
    *cases(
        "roll",
        of_stacks(
            "roll(1, inplace=True)",
            "roll(1, 0, inplace=True)",
            "roll((1, -1), (0, 1), inplace=True)",
            "roll(1, 7, inplace=True)",
        ),
        on="none",
    ),
    *cases(
        "flatten",
        """
        td.flatten(0, 1, inplace=True)
        td.reshape(6, inplace=True)
        td.unflatten(1, (3, 1), inplace=True)
    """,
        on="lazy",
        message=False,
    ),
    *cases(
        "repeat",
        """
        td.repeat(2, 1, inplace=True)
        td.repeat_interleave(2, 0, inplace=True)
        td.gather(0, torch.tensor([[0, 0], [1, 0]]), inplace=True)
    """,
        on="lazy lazy_last",
        reason="the release refuses what changes a stack in place, but pad and roll",
        ours="error is None and result is td and td['a'].shape[:2] == td.batch_size "
        "and len(td.tensordicts) == td.batch_size[td.stack_dim]",
    ),
    *cases(
        "pad",
        """
        m = NonTensorStack("x", "y"); r = m.pad([0, 1], inplace=True); (r is m, m.tolist())
        m = NonTensorData("x", batch_size=[2]); r = m.pad([0, 1], inplace=True); (r is m, m.tolist())
        m = NonTensorStack("x", "y"); r = m.roll(1, inplace=True); (r is m, m.tolist())
        m = NonTensorData("x", batch_size=[2]); m.masked_select(torch.tensor([True, False]), inplace=True); m.tolist()
        NonTensorData("x", batch_size=[3]).empty(batch_size=2)
    """,
        on="none",
    ),
    *cases(
        "repeat",
        """
        m = NonTensorStack("x", "y"); m.repeat(2, inplace=True); m.tolist() == [*"xyxy"]
        m = NonTensorStack("x", "y"); m.gather(0, torch.tensor([1, 1]), inplace=True); m.tolist() == [*"yy"]
        m = NonTensorStack("x", "y"); m.masked_select(torch.tensor([True, False]), inplace=True); m.tolist() == ["x"]
    """,
        on="none",
        reason="the release refuses what changes a stack in place, but pad and roll",
        ours="result is True",
    ),
    *cases(
        "new_tensor",
        """
        td.new_tensor(T([2]))
        td.new_tensor([[1, 2]], dtype=torch.float64)
        td.new_tensor(td.clone())
    """,
        on="tc tc_nested tc_in c_shadow c_within c_outer lazy_tc",
    ),
    *cases(
        "select",
        """
        td.select("a", as_tensordict=True)
        td.select("a", "z", strict=False, as_tensordict=True)
        td.select("a", as_tensordict=True, inplace=True)
    """,
        on="tc tc_nested tc_locked tc_text typed flat",
    ),
    *cases(
        "pad",
        'NonTensorStack("x", "y").lock_().pad([0, 1], inplace=True)',
        on="none",
        reason="the release changes a stack of values that is locked",
        ours="isinstance(error, RuntimeError)",
    ),
    *cases(
        "separates",
        "td.separates('z', default=None, strict=False)",
        on="lazy lazy_last uneven lazy_ragged",
    ),
    *cases(
        "separates",
        """
        td.separates("a", default=None)
        td.separates("a", "z", default=None)
        td.separates("a", "z", default=2.5)
    """,
        on="lazy lazy_last lazy_ragged",
        reason="with a default the release stacks the entries of a stack, and gives copies",
        ours="result.tensordicts[0].get('a') is not None and 'a' not in td.keys()",
    ),
    *cases(
        "from_dict",
        """
        r = TensorDictParams.from_dict(TensorDict(a=T([3]), batch_size=[3])); (type(r), r)
        p = TensorDictParams(TensorDict(a=T([3]))); r = TensorDictParams.from_dict(p); (r is p, r["a"] is p["a"])
        p = Point(T([2, 3]), "text", batch_size=[2]); p.from_dict_instance(p)
    """,
        on="none",
    ),
    *cases(
        "new_full",
        "td.new_full([-1, 2], 1.0, empty_lazy=True)",
        on="lazy",
        reason="a negative size is 0 in the release where it is that of the stack dim",
        ours="isinstance(error, RuntimeError)",
    ),
    *cases(
        "pad",
        "td.pad([0, 0, 0, 1], inplace=True)",
        on="lazy_view lazy_squeezed",
        reason="the release changes the batch size of the view and not of its source",
        ours="isinstance(error, RuntimeError)",
    ),
]
