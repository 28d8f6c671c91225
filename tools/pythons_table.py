"""Write the test results of each Python into ``docs/dev/release.md``.

``pythons_table.py RESULTS`` reads the files that ``tools/pythons.py`` wrote to the
folder ``RESULTS`` and merges them into ``docs/dev/pythons.json``, which keeps the
results of other Pythons and suites. Then it writes the tables from this file. It
measures nothing.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from pythons import OTHER

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "docs" / "dev" / "pythons.json"
PAGE = ROOT / "docs" / "dev" / "release.md"
BEGIN, END = (
    "<!-- pythons: written by tools/pythons_table.py -->",
    "<!-- pythons: end -->",
)


def order(name: str) -> tuple:
    """Return the sort key of a Python: by number, then by its options."""
    version, _, rest = name.partition("-")
    return int(version.split(".")[1]), rest


def cell(result: dict | None) -> str:
    """Return the result of one suite in a few words."""
    if result is None:
        return "not run"
    parts = [f"{result['passed']:,} passed"]
    if result["failed"]:
        parts.append(f"{len(result['failed'])} failed")
    elif result["status"]:
        parts.append(f"ended with {result['status']}")
    if result["skipped"]:
        parts.append(f"{sum(result['skipped'].values())} skipped")
    return ", ".join(parts)


def tables(known: dict[str, dict]) -> str:
    """Return the tables of versions and suites, and the reasons of skips."""
    names = sorted(known, key=order)
    lines = ["| | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
    rows = [(field, [known[n][field] for n in names]) for field in ("python", "torch")]
    for suite in sorted(
        {suite_name for name in names for suite_name in known[name]["suites"]}
    ):
        cells = [cell(known[name]["suites"].get(suite)) for name in names]
        is_folder = suite != "bare"
        rows.append((f"`tests/{suite}`" if is_folder else f"`SUITES={suite}`", cells))
    lines += [" | ".join((f"| {title}", *cells)) + " |" for title, cells in rows]
    lines += ["", "Not run from wheels:", ""]
    lines += [f"- `tests/{name}` {reason}." for name, reason in OTHER.items()]
    for name in names:
        lines += ["", *reasons(name, known[name])]
    return "\n".join(lines)


def reasons(name: str, results: dict) -> list[str]:
    """Return a line for each skip reason and failed test of one Python."""
    without = results.get("without")
    libraries = ", ".join(re.split(r"[^\w.-]", each)[0] for each in without or ())
    lines = [f"**{name}**"]
    if without is None:
        lines[0] += ": without the libraries of the extras"
    elif libraries:
        lines[0] += f": there is no wheel of {libraries}"
    skipped: dict[str, int] = {}
    for result in results["suites"].values():
        for reason, count in result["skipped"].items():
            # Drop the file and line in front of a reason.
            short = re.sub(r"^\S+\.py:\d+: |^Skipped: ", "", reason).splitlines()[0]
            skipped[short] = skipped.get(short, 0) + count
    lines += [""] if skipped else []
    lines += [
        f"- {count} skipped: {reason}" for reason, count in sorted(skipped.items())
    ]
    failed = [
        each for result in results["suites"].values() for each in result["failed"]
    ]
    return [*lines, *(f"- failed: `{each}`" for each in sorted(failed))]


def merged(known: dict[str, dict], folder: Path) -> dict[str, dict]:
    """Return the stored results, updated with the newer results in a folder."""
    for path in sorted(folder.glob("*.json")):
        new = json.loads(path.read_text("utf-8"))
        old = known.get(path.stem, {"suites": {}})
        known[path.stem] = new | {"suites": old["suites"] | new["suites"]}
    return known


def page(text: str, known: dict[str, dict]) -> str:
    """Return the text of the page with the current tables."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{tables(known)}\n\n{END}{after}"


def main() -> None:
    """Read the results, store them, and write the page."""
    known = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    for folder in sys.argv[1:]:
        known = merged(known, Path(folder))
    KEPT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8"), known), "utf-8")


if __name__ == "__main__":
    main()
