"""``python benches/strings.py --peer DIR``: a tensordict with 20,000 strings.

Each operation is timed with this package and with the published release, alternately in
separate processes. Prints the minimum times, and the ratio of the release to this
package: the best and the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_STRINGS = 20_000


def operations(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return the operations, which change nothing."""
    from tensordict import TensorDict

    words = [f"word {number}" for number in range(NUM_STRINGS)]
    td = TensorDict({"words": words}, batch_size=[NUM_STRINGS])
    empty = TensorDict({}, batch_size=[NUM_STRINGS])
    rows = torch.randint(0, NUM_STRINGS, (NUM_STRINGS // 2,))
    saved = folder / "saved"
    td.save(saved)
    return {
        "set": lambda: empty.set("words", words),
        "index by tensor": lambda: td[rows],
        "clone": td.clone,
        "save": lambda: td.save(folder / "target"),
        "load": lambda: TensorDict.load(saved),
    }


def measure(repeats: int) -> dict[str, float]:
    """Return for each operation its shortest time in milliseconds."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, operation in operations(Path(folder)).items():
            operation()
            times = []
            for _ in range(repeats):
                start_s = time.perf_counter()
                operation()
                times.append(time.perf_counter() - start_s)
            found[name] = min(times) * 1e3
    return found


def measured_by(path: str | None, repeats: int) -> dict[str, float]:
    """Run :func:`measure` in a separate process, with the package at ``path``."""
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = path
    command = [sys.executable, "-W", "ignore", __file__, "--worker", str(repeats)]
    result = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print one line for each operation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--worker", type=int, metavar="REPEATS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(arguments.worker)))
        return
    ours, peer = [], []
    for _ in range(arguments.rounds):
        ours.append(measured_by(None, 10))
        if arguments.peer:
            peer.append(measured_by(arguments.peer, 2))
    print(f"{NUM_STRINGS} strings, {arguments.rounds} rounds; milliseconds, best")
    print(f"{'operation':18}{'ours':>10}{'peer':>10}{'peer/ours':>24}")
    for name in ours[0]:
        line = f"{name:18}{min(each[name] for each in ours):10.2f}"
        if peer:
            ratios = [
                theirs[name] / own[name] for own, theirs in zip(ours, peer, strict=True)
            ]
            spread = f"{max(ratios):.0f}, median {statistics.median(ratios):.0f}"
            line += f"{min(each[name] for each in peer):10.2f}{spread:>24}"
        print(line)


if __name__ == "__main__":
    main()
