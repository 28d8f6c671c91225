"""record.py parity|scenarios|compat [--differences] [TOPIC...]: write answers of the release.

Run it where release 0.15.3 of ``tensordict`` is what ``import tensordict`` finds, for
example ``PYTHONPATH=/path/to/the/release python tests/record.py parity shape``. It refuses
to run anywhere else. Without topics it records all of them. A case that answers differently
when it is run again is an error. ``--differences`` prints the accepted differences instead.

The topics of ``compat`` are files and pickles: ``compat/topic_<topic>.py`` writes its own.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import tensordict

RELEASE = "0.15.3"
FRAMES = {"parity": "frame", "scenarios": "scenario"}
"""The folders that have recorded answers, with the module that has the cases of each."""


def record(frame: Any, topic: str) -> int:
    """Record one topic. Returns the number of cases that are not deterministic."""
    answers = []
    unstable = 0
    for case in frame.cases_of(topic):
        first, second = frame.run(case)[0], frame.run(case)[0]
        if not case.ordered:
            first, second = map(frame.without_order, (first, second))
        if first != second:
            unstable += 1
            sys.stderr.write(f"not deterministic: {topic}: {case.name}\n")
        first.pop("ours", None)
        answers.append((case, first))
    frame.write_answers(topic, answers)
    raised = [(case, found) for case, found in answers if "raises" in found]
    sys.stdout.write(f"{topic}: {len(answers)} answers, {len(raised)} of them errors\n")
    return unstable


def write_files(folder: Path, topics: list[str]) -> None:
    """Write the files and pickles of topics anew, of all where none is named."""
    warnings.simplefilter("ignore")
    every = sorted(path.stem for path in folder.glob("topic_*.py"))
    for name in [f"topic_{topic}" for topic in topics] or every:
        importlib.import_module(name).main()
        sys.stdout.write(f"{name}: written\n")


def main(folder: str, *arguments: str) -> int:
    """Record the topics named on the command line, or print the differences."""
    sys.path.insert(0, str(Path(__file__).parent / folder))
    named = [name for name in arguments if not name.startswith("-")]
    frame: Any = importlib.import_module(FRAMES[folder]) if folder in FRAMES else None
    if frame and "--differences" in arguments:
        for topic in named or frame.topics():
            for case in frame.cases_of(topic):
                if case.reason:
                    sys.stdout.write(f"{topic}: {case.name}: {case.reason}\n")
        return 0
    found = tensordict.__version__
    if found.split("+")[0] != RELEASE or "+rs" in found:
        sys.stderr.write(
            f"answers are recorded from tensordict {RELEASE}, found {found} "
            f"in {tensordict.__file__}\n"
        )
        return 2
    if not frame:
        write_files(Path(__file__).parent / folder, named)
        return 0
    return 1 if sum(record(frame, topic) for topic in named or frame.topics()) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
