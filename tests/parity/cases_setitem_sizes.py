"""Batch sizes of what is written at an index: cases that random comparisons found."""

from frame import cases

CASES = [
    *cases(
        "update_at_",
        """
        td.update_at_((td * 2)[0], -1)
        td.update_at_((td * 2)[0], slice(None))
        td.update_at_((td * 2)[:1], None)
        td.update_at_((td * 2)[0], True)
        td.copy_at_((td * 2)[0], -1, fast=False)
        td.copy_at_((td * 2)[:1], None, fast=False)
        td[None] = (td * 2)[:1]
        td[None] = (td * 2)[0, 0]
        td[True] = (td * 2)[:, :1]
        td[None] = TensorDict({'a': T([])}, [])
    """,
        on="nested",
    ),
    *cases(
        "update_at_",
        """
        td.update_at_((td * 2)[:1], 0)
        td.update_at_((td * 2)[0, 0], 0)
        td.update_at_((td * 2)[:, :1], slice(None))
        td.update_at_((td * 2)[None], ...)
        td.update_at_(lazy_stack([(td * 2)[0]]), -1)
        td.copy_at_((td * 2)[0, 0], -1, fast=False)
        td.copy_at_((td * 2)[:1], slice(None), fast=False)
        x = TensorDict({'a': T([])}, []); x[True] = x.clone()
        x = TensorDict({'a': T([])}, []); x[None] = x.clone()
    """,
        on="nested",
        message=False,
    ),
]

ROW = "the release writes one row to many only where its batch size is the index's"
CASES += cases(
    "update_at_",
    """
    td.update_at_((td * 2)[:1], 0)
    td.update_at_((td * 2)[0, 0], 0)
    td.update_at_((td * 2)[:, :1], slice(None))
    td.update_at_((td * 2)[None], ...)
    td.update_at_(lazy_stack([(td * 2)[0]]), -1)
    td.copy_at_((td * 2)[0, 0], -1, fast=False)
    td.copy_at_((td * 2)[:1], slice(None), fast=False)
    x = TensorDict({'a': T([])}, []); x[True] = x.clone()
    x = TensorDict({'a': T([])}, []); x[None] = x.clone()
    """,
    on="nested",
    reason=ROW,
    ours="error is None",
)
