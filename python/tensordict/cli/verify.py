"""Check a save: that its files are there and long enough; with --deep, every byte."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tensordict.cli import common

if TYPE_CHECKING:
    import argparse

DAMAGED = 1
MODIFIED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict verify``."""
    parser.add_argument("path", help="a save of any layout")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="read every byte and compare it with the sums that the save keeps",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        help="native threads; default: the cores, to 8",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Print what is wrong: status 1 for damage, 3 for changes since the save, else 0."""
    from tensordict.storage import checks, safetensors
    from tensordict.storage.survey import survey

    found = survey(arguments.path)
    problems = list(found.problems)
    modified: list[str] = []
    outcomes: Counter[str] = Counter()
    # What cannot be read whole is not compared with sums either.
    if arguments.deep and not problems:
        place = safetensors.index_of(arguments.path) or arguments.path
        report = checks.verify(place, arguments.threads)
        outcomes = Counter(finding.outcome for finding in report.findings)
        problems = report.lines(checks.DAMAGED)
        modified = report.lines(*checks.CHANGED)
    _show(arguments, found, problems, modified, outcomes)
    if problems:
        return DAMAGED
    return MODIFIED if modified else 0


def _show(
    arguments: argparse.Namespace,
    found: Any,
    problems: list[str],
    modified: list[str],
    outcomes: Counter[str],
) -> None:
    if arguments.json:
        common.print_json(
            {
                "path": found.path,
                "layout": found.layout,
                "deep": arguments.deep,
                "damaged": problems,
                "modified": modified,
                "outcomes": dict(outcomes),
            }
        )
        return
    for line in problems:
        print(f"DAMAGED   {line}")
    for line in modified:
        print(f"MODIFIED  {line}")
    how = "sizes and metadata"
    if outcomes.keys() == {"unchecked"}:
        how += "; the save has no sums to compare its bytes with"
    elif outcomes:
        counted = [f"{count} {outcome}" for outcome, count in outcomes.items()]
        how = f"every byte: {', '.join(counted)}"
    verdict = "damaged" if problems else "modified since the save" if modified else "ok"
    print(f"{found.path}: {found.layout}, {verdict} ({how})")
