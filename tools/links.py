"""Check the links of the built documentation: ``python tools/links.py FOLDER``.

Names each link to a page, a file or an anchor of the site that does not exist. Links to
other sites are not followed: they fail for reasons that are not ours.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Collect the links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what a tag refers to, and the name by which others refer to it."""
        for name, value in attrs:
            if name in ("href", "src") and value is not None and tag != "base":
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken(folder: Path) -> list[str]:
    """Return a line for each link that leads nowhere."""
    folder = folder.resolve()
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    lines = []
    for path, page in pages.items():
        if "_modules" in path.parts:  # Sphinx makes these of the source.
            continue
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = (path.parent / unquote(parts.path)).resolve()
            found = pages.get(target)
            if not target.exists() or (
                found and unquote(parts.fragment) not in found.anchors
            ):
                lines.append(f"{path.relative_to(folder)}: {link}")
    return lines


def main() -> None:
    """Print what leads nowhere; the status is 1 where there is any."""
    lines = broken(Path(sys.argv[1]))
    print("\n".join(lines) or "every link leads somewhere")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
