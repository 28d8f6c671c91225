"""Making new collections."""

from frame import EVERY, cases

CASES = [
    *cases(
        "clone",
        """
        td.clone()
        td.clone(False)
        td.clone(recurse=True)
        td.copy()
        copy.copy(td)
        copy.deepcopy(td)
        """,
        on=EVERY + " empty_nested nested_subclass half_named",
    ),
]
