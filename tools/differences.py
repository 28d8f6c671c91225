"""Write the accepted differences of recorded cases into docs/differences.

A case of ``tests/parity`` with a reason is an accepted difference, which the tests run.
Each page ends with the cases of its topics: the reason, a program, and the condition
that holds in this package. ``python tools/differences.py`` writes them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "parity"))

from frame import cases_of, topics  # noqa: E402

if TYPE_CHECKING:
    from frame import Case

PAGES = {
    "arithmetic": "pointwise torch",
    "autograd": "autograd",
    "batch-size-and-names": "batch",
    "construction": "construct",
    "indexing": "feature_indexing indexing setitem_sizes",
    "joining": "functional joining",
    "keys": "access keys views",
    "lazy-stacks": "in_place lazy",
    "locking": "locking",
    "modules": "modules module_results nn params_entries selecting transforms",
    "non-tensor-data": (
        "lists nontensor nontensor_alone nontensor_kinds nontensor_rows nontensor_setitem "
        "nontensor_stacks utils"
    ),
    "printing": "display",
    "reductions": "reductions",
    "saving": "consolidating safetensors saving saving_arguments",
    "shape": "arguments shape",
    "tensorclasses": "autocast class_bodies class_construct classes tensorclass",
    "unbatched": "unbatched",
    "vmap": "interop",
}
"""From pages to the topics of their cases."""

HEADING = "## Recorded programs"
INTRODUCTION = f"""{HEADING}

Each entry says what the published package does, or what is right. Then it has the collection `td` with a program, and a condition
that holds here for `result`, `error` or `td`. The tests run all programs (`tests/parity`); `tools/differences.py` writes this section.

<details>
<summary>Show the programs</summary>
"""
END = "\n</details>\n"
LONGEST = 150


def shortened(program: str) -> str:
    """Return a program in one line; the beginning of a long program is left out."""
    line = program.replace("\n", "; ")
    return line if len(line) <= LONGEST else f"… {line[-LONGEST:].lstrip()}"


def entry_of(cases: list[Case]) -> str:
    """Return the entry for the cases of one reason; the shortest case is shown."""
    case = min(cases, key=lambda each: len(each.helper + each.program))
    reason = case.reason[0].upper() + case.reason[1:].rstrip(".")
    reason = re.sub(r"\b([Tt]he) release\b", r"\1 published package", reason)
    more = f" ({len(cases)} programs)" if len(cases) > 1 else ""
    return (
        f"- {reason}{more}.\n"
        f"  - `{case.fixture}`: `` {shortened(case.helper + case.program)} ``\n"
        f"  - `` {shortened(case.ours)} ``\n"
    )


def section(topics_of_page: str) -> str:
    """Return the section of a page about the recorded cases of its topics."""
    reasons: dict[str, list[Case]] = {}
    for topic in topics_of_page.split():
        for case in cases_of(topic):
            if case.reason:
                reasons.setdefault(case.reason, []).append(case)
    entries = "".join(entry_of(cases) for cases in reasons.values())
    return f"{INTRODUCTION}\n{entries}{END}"


def page(name: str, text: str) -> str:
    """Return the text of a page with its current recorded cases."""
    return text.partition(HEADING)[0].rstrip() + "\n\n" + section(PAGES[name])


def topics_with_reasons() -> set[str]:
    """Return the topics with at least one accepted difference."""
    return {topic for topic in topics() if any(c.reason for c in cases_of(topic))}


def path_of(name: str) -> Path:
    """Return the file of a page."""
    return ROOT / "docs" / "differences" / f"{name}.md"


def main() -> None:
    """Write the recorded cases into every page."""
    for name in PAGES:
        path = path_of(name)
        path.write_text(page(name, path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
