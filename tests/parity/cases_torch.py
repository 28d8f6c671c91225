"""torch functions that take collections."""

from frame import cases

UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 "
    "log1p log2 neg reciprocal round sigmoid sin sinh sqrt tan tanh trunc sign isfinite "
    "isnan isneginf isposinf isreal"
).split()
LIKE = (
    "TensorDict({'n': {'b': T([2, 3, 4], start=3)}, 'a': T([2, 3], start=1)}, [2, 3])"
)

CASES = [
    *(
        case
        for name in UNARY
        for case in cases(f"torch.{name}", f"torch.{name}(td)", on="floats locked")
    ),
    *cases(
        "torch.add",
        f"""
        torch.add(td, 1)
        torch.add(td, {LIKE}, alpha=2)
        torch.sub(td, {LIKE})
        torch.mul(td, T([2, 3]))
        torch.div(td, 2)
        torch.pow(td, 2)
        torch.rsub(td, 1)
        torch.maximum(td, {LIKE})
        torch.minimum(td, {LIKE})
        torch.maximum(td, 1)
        torch.clamp(td, 0, 1)
        torch.clamp(td, min=0)
        torch.clamp_min(td, 0)
        torch.clamp_max(td, 0)
        torch.lerp(td, {LIKE}, 0.5)
        torch.addcmul(td, {LIKE}, {LIKE})
        torch.addcdiv(td, {LIKE}, {LIKE} + 7)
        torch.bitwise_and(td.int(), 3)
        torch.logical_and(td, {LIKE})
        torch.add(1, td)
        torch.add(T([2, 3]), td)
        """,
        on="floats named locked",
        message=False,
    ),
    *cases(
        "torch.sum",
        """
        torch.sum(td)
        torch.sum(td, 0)
        torch.mean(td, dim=1, keepdim=True)
        torch.std(td, 0)
        torch.var(td)
        torch.prod(td)
        torch.all(td)
        torch.amax(td, 0)
        torch.logsumexp(td, 0)
        torch.eq(td, td)
        torch.softmax(td, 0)
        torch.square(td)
        torch.nn.functional.relu(td)
        """,
        on="floats named",
        message=False,
    ),
    *cases(
        "torch.zeros_like",
        """
        torch.zeros_like(td)
        torch.ones_like(td)
        torch.zeros_like(td, dtype=torch.int32)
        torch.zeros_like(td, device='meta')
        torch.ones_like(td, requires_grad=True)
        torch.full_like(td, 2)
        torch.full_like(td, 2, dtype=torch.int64)
        torch.empty_like(td).zero_()
        torch.rand_like(td).zero_()
        torch.randn_like(td).zero_()
        torch.clone(td)
        """,
        on="floats locked named cpu subclass sub empty",
        message=False,
    ),
    *cases(
        "torch.where",
        f"""
        torch.where(T([2, 3], 'bool'), td, {LIKE})
        torch.where(T([2, 3], 'bool'), td, 0)
        torch.where(T([2, 3], 'bool'), 0, td)
        torch.where(T([2, 3], 'bool'), td, {LIKE}, out=td.clone())
        torch.gather(td, 0, torch.tensor([[0, 1, 0]]))
        torch.masked_select(td, T([2, 3], 'bool'))
        """,
        on="floats locked named",
        message=False,
    ),
    *(
        case
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss")
        for case in cases(
            f"torch.nn.functional.{name}",
            f"""
            nn.functional.{name}(td, {LIKE})
            nn.functional.{name}(td, {LIKE}, reduction='none')
            nn.functional.{name}(td, {LIKE}, reduction='sum')
            nn.functional.{name}(td, {LIKE}, reduction='nope')
            nn.functional.{name}(td, {LIKE}.select('a'))
            """,
            on="floats locked named",
            message=False,
        )
    ),
    *cases(
        "torch.nn.functional.smooth_l1_loss",
        f"nn.functional.smooth_l1_loss(td, {LIKE}, beta=2.0)",
        on="floats",
        reason="the release does not hand beta on",
        ours=f"result['a'] == nn.functional.smooth_l1_loss(td['a'], {LIKE}['a'], beta=2.0)",
    ),
    *cases(
        "torch.autograd.grad",
        """
        torch.autograd.grad((td * 2).sum(), td)
        torch.autograd.grad(td * 2, td, td.data)
        torch.autograd.grad(td * 2, td, grad_outputs=td.data)
        torch.autograd.grad(td * 2, td)
        torch.autograd.grad((td * 2).sum(), (td,))
        torch.autograd.grad(((td * 2).sum(), (td * 3).sum()), td)
        torch.autograd.grad((td * 2).sum(), (td, td))
        torch.autograd.grad((td * 2).sum(), td['a'])
        torch.autograd.grad((td * 2).sum(reduce=True), td)
        torch.autograd.grad((td * 2).sum(), td.clone().detach().requires_grad_())
        torch.autograd.grad((td ** 2).sum(), td, create_graph=True)
        """,
        on="grad",
        message=False,
    ),
    *cases(
        "__torch_function__",
        """
        TensorDict.__torch_function__(torch.add, (TensorDict,), (td, 1))
        TensorDict.__torch_function__(torch.relu, (TensorDict,), (td,))
        TensorDict.__torch_function__(torch.add, (TensorDict, int), (td, 1))
        """,
        on="floats",
        message=False,
    ),
    *cases(
        "__torch_function__",
        "T([2, 3]).add(td)",
        on="floats",
        reason="compiled code asks for the tensor's methods where a collection meets one",
        ours="(result == td + T([2, 3])).all()",
    ),
]
