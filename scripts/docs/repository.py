"""Links between the documentation and the rest of the repository, and the paths and symbols that a page names.

A page may link to a file of the repository by its relative path, as GitHub and editors show it. In the site, files of
`PAGES` and job manifests have pages of their own; of any other link the text stays. Called by `hooks.py` when the site
is built, and by tests/unit/docs, which also check the Markdown files outside `docs/`.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "images/README.md": "images.md",
}
"""File of the repository -> page of the site that stands for it."""
EXAMPLES = "examples.md"
"""Page with the manifests of examples/."""
_TOP = (
    "rstar2_train",
    "operator",
    "scripts",
    "tests",
    "bench",
    "examples",
    "helm",
    "images",
    "crds",
    "docs",
    ".github",
)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^\s*(```|~~~)")
_SPAN = re.compile(r"`([^`\n]+)`")
_REFERENCE = re.compile(rf"(?P<path>({'|'.join(map(re.escape, _TOP))})/[\w./*-]*)(::(?P<symbol>[\w.]+))?")


def prose(text: str) -> Iterator[tuple[int, str, bool]]:
    """(line number, line, whether it is prose) of a Markdown text; lines of fenced code are not prose."""
    fenced = False
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        fence = bool(_FENCE.match(line))
        yield number, line, not (fenced or fence)
        fenced ^= fence


def example_anchor(path: str) -> str:
    """Anchor of an example on the page of examples."""
    return posixpath.basename(path).replace(".", "-")


def examples() -> list[str]:
    """Job manifests of examples/, as paths of the repository, sorted."""
    files = sorted((ROOT / "examples").rglob("*.yaml"))
    return [str(file.relative_to(ROOT)) for file in files if "\nkind: AgenticRLJob" in file.read_text("utf-8")]


def page_of(path: str) -> str | None:
    """The page of the site that shows a file of the repository; None when no page does."""
    if path in PAGES:
        return PAGES[path]
    if path == "examples":
        return EXAMPLES
    if path in examples():
        return f"{EXAMPLES}#{example_anchor(path)}"
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def for_site(text: str, source: str, report: Callable[[str], None]) -> str:
    """A page's Markdown with links that work in the site.

    `source`: the file of the repository that holds the text; `report` gets a message for each link to a missing file.
    """

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if source.startswith("docs/") and path.startswith("docs/"):
            return match[0]  # MkDocs checks it
        page = page_of(path)
        if page is not None:
            to = f"{page}#{anchor}" if anchor else page
            return f"{match['image']}[{match['text']}]({to})"
        if not (ROOT / path).exists():
            report(f"{source} links to {match['target']}, which does not exist")
        return match["text"]

    return "".join(_LINK.sub(link, line) if is_prose else line for _, line, is_prose in prose(text))


def links(text: str) -> Iterator[tuple[int, str]]:
    """(line number, target) of every link in a Markdown text."""
    for number, line, is_prose in prose(text):
        if is_prose:
            yield from ((number, match["target"]) for match in _LINK.finditer(line))


def anchors(text: str) -> set[str]:
    """Anchors of a Markdown text: of its headings, as GitHub and MkDocs make them, and those that it sets itself."""
    ids = set(re.findall(r'\bid="([^"]+)"', text)) | set(re.findall(r"\{#([\w-]+)", text))
    for _, line, is_prose in prose(text):
        if is_prose and (heading := re.match(r"#+\s+(.*?)\s*(\{#.*\})?\s*$", line)):
            plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", ""))
            ids.add(re.sub(r"\s", "-", plain.strip().lower()))
    return ids


def stale_references(text: str) -> Iterator[tuple[int, str]]:
    """(line number, the problem) of every path or `path::symbol` in a code span that does not exist."""
    for number, line, is_prose in prose(text):
        for span in _SPAN.findall(line) if is_prose else ():
            match = _REFERENCE.fullmatch(span)
            if match is None:
                continue
            path, symbol = match["path"], match["symbol"]
            if not (any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()):
                yield number, f"{path} does not exist"
            elif symbol and symbol not in symbols(ROOT / path):
                yield number, f"{path} has no {symbol}"


def symbols(file: Path) -> set[str]:
    """Names that a source file defines: functions, classes, constants, and `Class.member` of Python."""
    text = file.read_text("utf-8")
    if file.suffix != ".py":
        return set(re.findall(r"\b\w+\b", text))
    names: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    collect(ast.parse(text).body, "")
    return names
