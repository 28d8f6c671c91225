"""``python tests/distributed/against_release.py --peer DIR``: transfers to and from the release.

``DIR`` has the package of the published release. Two processes, one of which runs it, send
every kind of collection to each other by every call that ``wire="0.15"`` has, in both
directions. What the release cannot send to itself, as a third pair tells, is left out. The
exit status says whether anything went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

SECONDS = 240
"""For which a partner is waited for."""

CALLS = ("plain", "tagged", "random", "early", "consolidated", "whole", "broadcast")


def leaves(found: Any) -> Any:
    """Leave values out that are no tensors: they do not travel leaf by leaf."""
    if isinstance(found, dict):
        return {key: leaves(value) for key, value in sorted(found.items())}
    if isinstance(found, list):
        return [leaves(each) for each in found]
    return None if isinstance(found, str) else found


def options_of(call: str, wire: dict[str, str]) -> dict[str, Any]:
    """The arguments of a transfer."""
    options: dict[str, Any] = dict(wire)
    if call != "plain":
        options["init_tag"] = 5
    if call == "random":
        options["pseudo_rand"] = True
    if call == "consolidated":
        options["consolidated"] = True
    return options


def sent(td: Any, call: str, wire: dict[str, str]) -> None:
    """Send a collection to rank 1."""
    if call == "whole":
        td.init_remote(dst=1, **wire)
    elif call == "broadcast":
        td.init_remote(use_broadcast=True, **wire)
    elif call == "early":
        works = td.isend(dst=1, return_early=True, **options_of(call, wire))
        for work in works:
            work.wait()
    else:
        td = td.consolidate() if call == "consolidated" else td
        td.send(dst=1, **options_of(call, wire))


def received(td: Any, call: str, wire: dict[str, str]) -> Any:
    """Receive a collection from rank 0, into this one where the call does that."""
    if call in ("whole", "broadcast"):
        from tensordict import TensorDict

        is_broadcast = call == "broadcast"
        return TensorDict.from_remote_init(src=0, use_broadcast=is_broadcast, **wire)
    if call == "early":
        works = td.irecv(src=0, return_premature=True, **options_of(call, wire))
        for work in works:
            work.wait()
        return td
    td = td.consolidate() if call == "consolidated" else td
    td.recv(src=0, **options_of(call, wire))
    return td


def serve(rank: int, path: str) -> None:
    """Run the cases that standard input names."""
    import torch
    from torch import distributed

    import tensordict
    from collections_of_ranks import COLLECTIONS, state

    torch.set_num_threads(1)
    ours = Path(__file__).parents[2] / "python"
    is_ours = ours in Path(tensordict.__file__).parents
    wire = {"wire": "0.15"} if is_ours else {}
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=SECONDS // 4),
    )
    for line in sys.stdin:
        call, name = json.loads(line)
        try:
            if rank == 0:
                sent(COLLECTIONS[name](1), call, wire)
                answer = None
            else:
                made = received(COLLECTIONS[name](0), call, wire)
                whole = call in ("whole", "broadcast")
                found, expected = state(made), state(COLLECTIONS[name](1))
                if not whole:
                    found, expected = leaves(found), leaves(expected)
                expected = json.loads(json.dumps(expected, default=str))
                found = json.loads(json.dumps(found, default=str))
                answer = None if found == expected else f"{found} is not {expected}"
        except BaseException as error:  # noqa: BLE001 (it is told)
            answer = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)


class Pair:
    """Two processes, each with a package; they are made again when a transfer failed."""

    def __init__(self, sender: str, receiver: str) -> None:
        self.packages = sender, receiver
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        """Start both."""
        self.close()
        path = tempfile.mkdtemp() + "/group"
        tests = str(Path(__file__).parents[1])
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-W", "ignore", __file__),
                    *("--rank", str(rank), "--path", path),
                ],
                env=dict(os.environ, PYTHONPATH=f"{package}:{tests}"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, package in enumerate(self.packages)
        ]

    def close(self) -> None:
        """End both."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes = []

    def run(self, call: str, name: str) -> str | None:
        """Run a case: what went wrong."""
        if not self.processes:
            self.start()
        problems = []
        for process in self.processes:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps([call, name]) + "\n")
                process.stdin.flush()
            except OSError:
                problems.append("a process has ended")
        for who, process in zip(("sender", "receiver"), self.processes, strict=True):
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], SECONDS)
            line = process.stdout.readline() if ready else ""
            answer = json.loads(line) if line else "hangs or has ended"
            if answer is not None:
                problems.append(f"{who}: {answer}")
        if not problems:
            return None
        self.close()
        return "; ".join(problems)


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run all cases, and print those that went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="where the published release is installed")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--path")
    parser.add_argument("--calls", nargs="*", default=CALLS)
    options = parser.parse_args()
    if options.rank is not None:
        serve(options.rank, options.path)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from collections_of_ranks import COLLECTIONS

    ours = str(Path(__file__).parents[2] / "python")
    pairs = {
        "to the release": Pair(ours, options.peer),
        "from the release": Pair(options.peer, ours),
    }
    release = Pair(options.peer, options.peer)
    num_right, wrong = 0, 0
    for call in options.calls:
        for name in COLLECTIONS:
            own = release.run(call, name)
            if own is not None:
                say(f"{call:12} {name:18} not by the release itself: {own[:200]}")
                continue
            for way, pair in pairs.items():
                problem = pair.run(call, name)
                if problem is None:
                    num_right += 1
                else:
                    wrong += 1
                    say(f"{call:12} {name:18} {way}: {problem[:400]}")
        say(f"{call:12} is done: {num_right} right, {wrong} wrong so far")
    for pair in (*pairs.values(), release):
        pair.close()
    say(f"{num_right} right, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
