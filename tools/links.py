"""Check the links of the built documentation: ``python tools/links.py FOLDER``.

Prints each link to a missing page, file or anchor of the site. Links to other sites are
not checked, because they fail for reasons outside of this project.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """A parser that collects the links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the link targets and the anchors of a tag."""
        for name, value in attrs:
            if name in ("href", "src") and value is not None and tag != "base":
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken(folder: Path) -> list[str]:
    """Return a line for each broken link."""
    folder = folder.resolve()
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    lines = []
    for path, page in pages.items():
        if "_modules" in path.parts:  # pages that Sphinx makes from the source
            continue
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = (path.parent / unquote(parts.path)).resolve()
            target_page = pages.get(target)
            if not target.exists() or (
                target_page and unquote(parts.fragment) not in target_page.anchors
            ):
                lines.append(f"{path.relative_to(folder)}: {link}")
    return lines


def main() -> None:
    """Print the broken links; the exit status is 1 if there are any."""
    lines = broken(Path(sys.argv[1]))
    print("\n".join(lines) or "every link leads somewhere")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
