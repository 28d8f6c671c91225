"""Check a save: whether its files are complete, and as they were saved."""

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
    parser.add_argument("path", help="a save of any layout, or a checkpoint")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also check data without checksums: read files of other programs to their end, check "
        "the CRC-32 of archives and the form of pickles",
    )
    common.add_threads(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Print the problems; return 1 for damage, 3 for changes since the save, else 0."""
    from tensordict.checkpoint.tools import is_checkpoint
    from tensordict.storage import checksums
    from tensordict.storage.inspect import survey

    if is_checkpoint(arguments.path):
        from tensordict.cli import checkpoints

        return checkpoints.verify(arguments)
    found = survey(arguments.path)
    problems = list(found.problems)
    modified: list[str] = []
    outcomes: Counter[str] = Counter()
    # If the save cannot be read completely, its bytes are not compared.
    if not problems:
        report = checksums.verify(
            arguments.path,
            arguments.threads,
            deep=arguments.deep,
            pbar=common.has_bar(arguments),
        )
        outcomes = Counter(finding.outcome for finding in report.findings)
        problems = report.lines(checksums.DAMAGED)
        modified = report.lines(*checksums.CHANGED)
    show(arguments, found, problems, modified, outcomes)
    if problems:
        return DAMAGED
    return MODIFIED if modified else 0


def show(
    arguments: argparse.Namespace,
    found: Any,
    problems: list[str],
    modified: list[str],
    outcomes: Counter[str],
) -> None:
    """Print the result of a comparison.

    Args:
        arguments: the arguments of the command.
        found: the survey of the save.
        problems: a line for each damage.
        modified: a line for each file that was modified since the save.
        outcomes: the number of files by outcome.
    """
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
        read = "every byte can be read" if arguments.deep else how
        how = f"{read}; the save has no checksums to compare its bytes with"
    elif outcomes:
        counted = [f"{count} {outcome}" for outcome, count in outcomes.items()]
        how = f"every byte: {', '.join(counted)}"
    verdict = "damaged" if problems else "modified since the save" if modified else "ok"
    print(f"{found.path}: {found.layout}, {verdict} ({how})")
