"""Gradients."""

from frame import cases

LOSS = "(td * 2).sum().backward()"

CASES = [
    *cases("data", "td.data", on="grad flat locked named sub empty"),
    *cases("data", "[v.requires_grad for v in td.data.values(True, True)]", on="grad"),
    *cases(
        "data",
        """
        td.data = td.data + 1
        td.data = (td.data + 1).select('a')
        td.data = (td.data + 1).update({'z': T([2, 3])})
        td.data = TensorDict(a=T([2, 3]))
        """,
        on="grad",
        message=False,
    ),
    *cases("detach", "td.detach()", on="grad flat locked named sub empty"),
    *cases(
        "detach", "[v.requires_grad for v in td.detach().values(True, True)]", on="grad"
    ),
    *cases("detach_", "td.detach_()\ntd.detach_() is td", on="flat grad"),
    *cases("requires_grad", "td.requires_grad", on="grad flat empty"),
    *cases(
        "requires_grad_",
        """
        td.requires_grad_()
        td.requires_grad_().requires_grad
        td.requires_grad_(False)
        td.requires_grad_() is td
        """,
        on="floats grad",
        message=False,
    ),
    *cases(
        "requires_grad_",
        "td.requires_grad_()",
        on="locked",
        reason="the release changes the leaves before the one of integers, then fails",
        ours="isinstance(error, RuntimeError) and not td['a'].requires_grad",
    ),
    *cases(
        "grad",
        f"""
        td.grad
        {LOSS}; td.grad
        {LOSS}; td.zero_grad(); td.grad
        {LOSS}; td.zero_grad(False); td.grad
        {LOSS}; td.zero_grad(set_to_none=False) is td
        td['a'].sum().backward(); td.grad
        td['n', 'b'].sum().backward(); td.grad
        td.grad = td.data * 3; td.grad
        td.grad = td.data.select('a')
        """,
        on="grad",
        message=False,
    ),
    *cases("grad", "td.grad\ntd.zero_grad()", on="flat locked named"),
    *cases(
        "grad",
        "td.grad = None; td.grad",
        on="grad",
        reason="assigning None fails on an attribute of None; a tensor's grad takes it",
        ours="result is None",
    ),
    *cases(
        "backward",
        """
        (td * 2).backward()
        (td * 2).backward(td.data); td.grad
        (td * 2).backward(gradient=td.data, retain_graph=True); td.grad
        (td * 2).backward(td.data.select('a')); td.grad
        (td * 2).backward(td.data[0]); td.grad
        (td * 2).backward(T([2, 3]))
        (td * 2).sum().backward(inputs=td); td.grad
        (td * 2).sum().backward(inputs=[td['a']]); td.grad
        (td ** 2).sum().backward(create_graph=True); td.grad
        td.data.backward()
        """,
        on="grad",
        message=False,
    ),
    *cases("backward", "td.backward()", on="flat empty"),
    *cases(
        "param_count",
        "td.param_count()\ntd.param_count(count_duplicates=False)",
        on="grad flat empty",
    ),
    *cases(
        "data_ptr",
        """
        p = td.data_ptr(); type(p), p.batch_size, p.device, sorted(map(str, p.keys(True, True)))
        p = td.data_ptr(storage=True); p['a'].dtype, p['a'].shape
        p = td.data_ptr(); p['a'].item() == td['a'].data_ptr()
        """,
        on="flat nested named sub",
    ),
]
