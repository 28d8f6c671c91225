"""record.py [--differences] [CHAPTER...]: write ``answers/<chapter>.json`` from the release.

Run it where release 0.15.3 of ``tensordict`` is what ``import tensordict`` finds, for
example ``PYTHONPATH=/path/to/the/release python tests/scenarios/record.py parameters``.
It refuses to run anywhere else. A scenario that answers differently when it is run again
is an error. ``--differences`` prints the accepted differences instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from scenario import answers_path, chapters, run, scenarios_of  # noqa: E402

import tensordict  # noqa: E402

RELEASE = "0.15.3"


def record(chapter: str) -> int:
    """Record one chapter. Returns the number of scenarios that are not deterministic."""
    answers = {}
    unstable = 0
    for case in scenarios_of(chapter):
        first, _ = run(case)
        second, _ = run(case)
        if first != second:
            unstable += 1
            sys.stderr.write(f"not deterministic: {chapter}.{case.name}\n")
        first.pop("ours", None)
        answers[case.name] = first
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(answer, separators=(',', ':'))}"
        for name, answer in answers.items()
    )
    path = answers_path(chapter)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    raised = [name for name, answer in answers.items() if "raises" in answer]
    sys.stdout.write(
        f"{chapter}: {len(answers)} answers, {len(raised)} of them errors\n"
    )
    for name in raised:
        sys.stdout.write(f"  {name}: {answers[name]['raises']['message']}\n")
    return unstable


def main() -> int:
    """Record the chapters named on the command line, or print the differences."""
    names = [name for name in sys.argv[1:] if not name.startswith("-")] or chapters()
    if "--differences" in sys.argv:
        for chapter in names:
            for case in scenarios_of(chapter):
                if case.differs:
                    sys.stdout.write(f"{chapter}.{case.name}: {case.differs}\n")
        return 0
    found = tensordict.__version__
    if found.split("+")[0] != RELEASE or "+rs" in found:
        sys.stderr.write(
            f"answers are recorded from tensordict {RELEASE}, found {found} "
            f"in {tensordict.__file__}\n"
        )
        return 2
    return 1 if sum(record(chapter) for chapter in names) else 0


if __name__ == "__main__":
    sys.exit(main())
