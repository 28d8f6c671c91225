"""Reductions."""

from frame import EVERY, cases

SUMS = "sum mean prod nansum nanmean std var".split()
FLOATS = "floats locked named subclass nested_subclass sub cpu scalar one single"
SAME = "TensorDict({'a': T([2, 3]), 'n': {'b': T([2, 3], start=3)}}, [2, 3])"
FIRST_DIM_ONLY = "the release takes the first dim of the tuple and ignores the others"

CASES = [
    *(
        case
        for name in SUMS
        for case in [
            *cases(
                name,
                f"""
                td.float().{name}()
                td.float().{name}(0)
                td.float().{name}(-1)
                td.float().{name}(1, True)
                td.float().{name}(0, keepdim=True)
                td.float().{name}(dim=None)
                td.float().{name}(5)
                td.float().{name}(-4)
                td.float().{name}(dim='feature')
                td.float().{name}(dim='feature', keepdim=True)
                td.float().{name}(reduce=True)
                td.float().{name}(reduce=False)
                """,
                on=FLOATS + " deep empty",
                message=False,
            ),
            *cases(
                name,
                f"""
                {SAME}.{name}(0, reduce=True)
                {SAME}.{name}(0, reduce=True, keepdim=True)
                {SAME}.{name}(dim='feature', reduce=True)
                td.{name}(0, reduce=True)
                td.{name}()
                td.{name}(0)
                """,
                on="mixed",
                message=False,
            ),
            *(
                cases(
                    name,
                    f"""
                    {SAME}.{name}((0, 1), reduce=True)
                    td.float().{name}((0, 1))
                    td.float().{name}((1, 0), keepdim=True)
                    td.float().{name}((-1,))
                    td.float().{name}(keepdim=True)
                    """,
                    on="floats named deep",
                )
                if name != "prod"
                else cases(
                    name,
                    "td.prod((0, 1))\ntd.prod((1, 0))",
                    on="floats",
                    reason=FIRST_DIM_ONLY,
                    ours="result['a'] == td['a'].prod() and not result.batch_size",
                )
            ),
        ]
    ),
    *(
        case
        for name in "sum mean prod".split()
        for case in cases(
            name,
            f"""
            td.{name}(dtype=torch.float64)
            td.{name}(0, dtype=torch.float64)
            td.{name}(dim='feature', dtype=torch.float64)
            td.{name}(reduce=True, dtype=torch.float64)
            """,
            on="floats flat mixed",
            message=False,
        )
    ),
    *cases(
        "std",
        """
        td.std(correction=0)
        td.std(0, correction=0)
        td.var(1, True, correction=0)
        td.var(dim='feature', correction=0)
        td.std(reduce=True, correction=0)
        """,
        on="floats named",
    ),
    *cases(
        "sum",
        """
        td.sum(key_transform=lambda k: k + '_sum')
        td.sum(0, key_transform=lambda k: k + '_sum')
        td.mean(key_transform=lambda k: ('x', k))
        td.std(0, key_transform=lambda k: (k, 'std'))
        td.quantile(0.5, key_transform=lambda k: k)
        td.norm(key_transform=lambda k: k + '_norm')
        """,
        on="floats named subclass",
    ),
    *cases(
        "quantile",
        """
        td.quantile(0.5)
        td.quantile(0.5, 0)
        td.quantile(0.25, -1, True)
        td.quantile(0.5, keepdim=True)
        td.quantile(torch.tensor([0.25, 0.5]))
        td.quantile(torch.tensor([0.25, 0.5]), 0)
        td.quantile(torch.tensor([0.25, 0.5]), 1, True)
        td.quantile(0.5, 'feature')
        td.quantile(torch.tensor([0.25, 0.5]), 'feature')
        td.quantile(0.5, reduce=True)
        td.quantile(torch.tensor([0.25, 0.5]), reduce=True)
        td.quantile(0.3, 0, interpolation='nearest')
        td.quantile(0.3, interpolation='nope')
        td.quantile(2.0)
        td.quantile(0.5, 7)
        """,
        on="floats named locked sub one",
        message=False,
    ),
    *cases(
        "quantile",
        "td.quantile(0.5, (0, 1))",
        on="floats",
        reason=FIRST_DIM_ONLY,
        ours="result['a'] == td['a'].quantile(0.5)",
    ),
    # Extrema -----------------------------------------------------------------------
    *(
        case
        for name in ("max", "min")
        for case in [
            *cases(
                name,
                f"""
                td.{name}()
                td.{name}(0)
                td.{name}(-1)
                td.{name}(1, True)
                td.{name}(dim=0, keepdim=True)
                td.{name}(0, return_indices=False)
                td.{name}(return_indices=True)
                td.{name}(reduce=True)
                td.{name}(5)
                td.{name}('feature')
                td.a{name}()
                td.a{name}(keepdim=True)
                td.a{name}(reduce=True)
                td.a{name}(7)
                td.a{name}('feature')
                td.cum{name}(0)
                td.cum{name}(-1)
                td.cum{name}(0, return_indices=False)
                td.cum{name}(4)
                td.cum{name}()
                """,
                on="floats locked cpu one empty",
                message=False,
            ),
            *cases(
                name,
                f"td.{name}(keepdim=True)\ntd.cum{name}(None)",
                on="floats locked one",
                message=False,
            ),
            *cases(
                name,
                f"""
                td.{name}(0)
                td.{name}(1, True)
                td.cum{name}(0)
                """,
                on="named",
            ),
            *cases(
                name,
                f"""
                {SAME}.{name}(0, reduce=True)
                {SAME}.{name}(dim='feature', reduce=True)
                {SAME}.a{name}(0, reduce=True)
                {SAME}.cum{name}(0, reduce=True)
                td.{name}(0, reduce=True)
                """,
                on="mixed",
                message=False,
            ),
            *cases(f"a{name}", f"td.a{name}(0)\ntd.a{name}(1, True)", on="floats one"),
            *cases(
                f"a{name}",
                f"td.a{name}(0)",
                on="named",
                reason="the release drops the names of nested collections here alone",
                ours="result['n'].names == ['y'] and result.names == ['y']",
            ),
            *cases(
                f"a{name}",
                f"td.a{name}((0, 1))",
                on="floats",
                reason=FIRST_DIM_ONLY,
                ours=f"result['a'] == td['a'].{name}() and not result.batch_size",
            ),
            *cases(
                name,
                f"td.{name}((0, 1))\ntd.cum{name}((0, 1))",
                on="floats",
                reason=FIRST_DIM_ONLY,
                ours="isinstance(error, TypeError)",
            ),
        ]
    ),
    # Truth ---------------------------------------------------------------------------
    *(
        case
        for name in ("all", "any")
        for case in cases(
            name,
            f"""
            td.{name}()
            td.bool().{name}()
            (td == td).{name}()
            (td != td).{name}()
            td.bool().{name}(0)
            td.bool().{name}(-1)
            td.bool().{name}(dim=0)
            td.{name}(5)
            td.{name}(-5)
            td.{name}((0, 1))
            """,
            on=EVERY,
            message=False,
        )
    ),
    # Norms -----------------------------------------------------------------------------
    *cases(
        "norm",
        """
        td.norm()
        td.norm(dtype=torch.float64)
        td.norm(out=TensorDict())
        td.norm(out=td.clone())
        td.norm(out=TensorDict({}, [3]).lock_())
        td.norm(1)
        """,
        on="floats locked named subclass sub empty scalar",
        message=False,
    ),
    *cases("norm", "td.norm()", on="flat"),
    *cases(
        "logsumexp",
        """
        td.logsumexp()
        td.logsumexp(0)
        td.logsumexp(-1, True)
        td.logsumexp((0, 1))
        td.logsumexp(keepdim=True)
        td.logsumexp(6)
        """,
        on="floats locked named subclass sub one",
        message=False,
    ),
    *cases("logsumexp", "td.logsumexp(0, out=td.sum(0))", on="floats named one"),
]
