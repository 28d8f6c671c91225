"""The commands on checkpoints: list, verify, and convert steps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tensordict.cli import common
from tensordict.ops.display import readable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

__all__ = ["convert", "inspect", "refuse_damaged", "show_problems", "verify"]

DAMAGED = 1


def inspect(arguments: argparse.Namespace) -> int:
    """List the steps in the order of their saves, or the items of one step."""
    from tensordict.checkpoint import tools

    steps = tools.steps_at(arguments.path)
    found = [tools.survey(path) for path, _ in steps]
    is_one = [str(path) for path, _ in steps] == [arguments.path]
    if arguments.json:
        common.print_json(
            found[0] if is_one else {"path": arguments.path, "steps": found}
        )
    elif is_one:
        _show_step(found[0])
    else:
        size = readable(sum(summary["num_bytes"] for summary in found))
        print(f"{arguments.path}: checkpoints, {len(found)} steps, {size}")
        for (_, number), summary in zip(steps, found, strict=True):
            print(f"  {_line(number, summary)}")
    return DAMAGED if any("problem" in summary for summary in found) else 0


def _line(number: int, found: dict[str, Any]) -> str:
    size = readable(found["num_bytes"])
    if "problem" in found:
        return f"step {number}: {size}  !! {found['problem']}"
    return f"step {number}: {size}, {found['time']}{_metrics(found)}"


def _metrics(found: dict[str, Any]) -> str:
    shown = (
        f"{name} {value['value'] if isinstance(value, dict) else value}"
        for name, value in found["metrics"].items()
    )
    text = ", ".join(shown)
    return f", {text}" if text else ""


def _show_step(found: dict[str, Any]) -> None:
    size = readable(found["num_bytes"])
    print(f"{found['path']}: checkpoint, {size}")
    if "step" in found:
        print(f"  step {found['step']}, {found['time']}{_metrics(found)}")
    for name, item in found.get("items", {}).items():
        about = f"{item['tensors']} tensors, {readable(item['num_bytes'])}"
        print(
            f"  {name}: {item['kind']}, {about}"
            if item["files"]
            else f"  {name}: {item['kind']}"
        )
    if found.get("elsewhere"):
        print(f"  {_elsewhere(found)}")
    if "problem" in found:
        print(f"  !! {found['problem']}")


def _elsewhere(found: dict[str, Any]) -> str:
    shown = ", ".join(map(str, found["elsewhere"]))
    return f"the parts of these ranks are elsewhere (shared=False): {shown}"


def verify(arguments: argparse.Namespace) -> int:
    """Compare the files of all steps with their checksums; return 1 for damage."""
    from tensordict.checkpoint import tools

    problems = {
        str(path): tools.verify(path, arguments.threads)
        for path, _ in tools.steps_at(arguments.path)
    }
    elsewhere = {place: tools.survey(place).get("elsewhere") for place in problems}
    return show_problems(arguments, problems, elsewhere)


def show_problems(
    arguments: argparse.Namespace,
    problems: Mapping[str, list[str]],
    elsewhere: Mapping[str, Any],
) -> int:
    """Print the damage of steps, by their paths; return 1 if there is any."""
    if arguments.json:
        common.print_json({"path": arguments.path, "steps": problems})
    else:
        for place, lines in problems.items():
            for line in lines:
                print(f"DAMAGED   {line}")
            print(f"{place}: checkpoint, {'damaged' if lines else 'ok (every byte)'}")
            if elsewhere.get(place):
                print(f"{place}: {_elsewhere({'elsewhere': elsewhere[place]})}")
    return DAMAGED if any(problems.values()) else 0


def refuse_damaged(arguments: argparse.Namespace) -> None:
    """Refuse to convert a damaged step.

    Raises:
        RuntimeError: the step is damaged.
    """
    from tensordict.checkpoint import tools

    path, _ = tools.steps_at(arguments.source)[-1]
    lines = tools.verify(path, arguments.threads)
    if lines:
        raise RuntimeError("\n".join(lines))


def convert(arguments: argparse.Namespace) -> int:
    """Write a checkpoint of another program as a step."""
    from tensordict.checkpoint import tools

    if os.path.exists(arguments.target) and not arguments.force:
        raise FileExistsError(17, common.MSG_THERE, arguments.target)
    tools.convert_to_step(arguments.source, arguments.target, durable=arguments.durable)
    found = tools.survey(arguments.target)
    if arguments.json:
        common.print_json(
            {
                "source": arguments.source,
                "target": arguments.target,
                "layout": "checkpoint",
                "num_bytes": found["num_bytes"],
            }
        )
    else:
        size = readable(found["num_bytes"])
        print(f"{arguments.source} -> {arguments.target} (checkpoint, {size})")
    return 0
