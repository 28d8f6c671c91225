"""record.py [TOPIC...]: write ``answers/<topic>.json`` from the published release.

Run it where release 0.15.3 of ``tensordict`` is what ``import tensordict`` finds, for
example ``PYTHONPATH=/path/to/the/release python tests/parity/record.py shape``. It
refuses to run anywhere else. Without topics it records all of them. A case that answers
differently when it is run again is an error: set ``values=False`` or make it definite.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from frame import answers_path, cases_of, run, topics, without_order  # noqa: E402

import tensordict  # noqa: E402

RELEASE = "0.15.3"


def record(topic: str) -> int:
    """Record one topic. Returns the number of cases that are not deterministic."""
    answers = {}
    unstable = 0
    for case in cases_of(topic):
        first, _ = run(case)
        second, _ = run(case)
        if not case.ordered:
            first, second = without_order(first), without_order(second)
        if first != second:
            unstable += 1
            sys.stderr.write(f"not deterministic: {case.name}\n")
        answers[case.name] = first
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(answer, separators=(',', ':'))}"
        for name, answer in answers.items()
    )
    path = answers_path(topic)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    raised = sum("raises" in answer for answer in answers.values())
    sys.stdout.write(f"{topic}: {len(answers)} answers, {raised} of them errors\n")
    return unstable


def main() -> int:
    """Record the topics named on the command line."""
    found = tensordict.__version__
    if found.split("+")[0] != RELEASE or "+rs" in found:
        sys.stderr.write(
            f"answers are recorded from tensordict {RELEASE}, found {found} "
            f"in {tensordict.__file__}\n"
        )
        return 2
    return 1 if sum(record(topic) for topic in sys.argv[1:] or topics()) else 0


if __name__ == "__main__":
    sys.exit(main())
