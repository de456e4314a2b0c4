"""Search the repository for the phrases of avoid.yaml: `python -m tests.language.words [PATH ...]`.

Prints each place as `path:line: phrase -> the words to use`, and exits with 1 if there is any. PATH is a file or a
folder; the default is the whole repository.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from tests.language import sources

LIST = Path(__file__).with_name("avoid.yaml")


@dataclass(frozen=True)
class Phrase:
    """An entry of the list: a pattern and the words to use instead."""

    regex: re.Pattern[str]
    use: str
    matches: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exemption:
    """Files, or a text or a section in them, that hold words of the list of necessity."""

    path: str
    reason: str
    text: str = ""
    section: str = ""
    binding: str = ""

    def covers(self, path: str) -> bool:
        """Return whether the exemption is about this file."""
        return fnmatch.fnmatchcase(path, self.path)

    def blank(self, content: str) -> str:
        """Return the content without the exempted part; line breaks stay."""
        if self.binding:
            return content
        part = self.text
        if self.section:
            match = re.search(rf"^## {re.escape(self.section)}\n.*?(?=^## |\Z)", content, re.MULTILINE | re.DOTALL)
            part = match[0] if match else ""
        if not (self.text or self.section):
            part = content
        return content.replace(part, re.sub(r"[^\n]", " ", part)) if part else content


@dataclass(frozen=True)
class Place:
    """A place where a text breaks the list."""

    path: str
    line: int
    match: str
    use: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.match} -> {self.use}"


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of the list as a regular expression; a space matches any white space."""
    return re.compile(re.sub(r"(?<!\[) (?!-\])", r"\\s+", pattern), re.IGNORECASE)


@cache
def phrases() -> tuple[Phrase, ...]:
    """Return the phrases of the list."""
    items = yaml.safe_load(LIST.read_text("utf-8"))["phrases"]
    return tuple(
        Phrase(compiled(item["pattern"]), item["use"], tuple(item["matches"]), tuple(item.get("passes", ())))
        for item in items
    )


@cache
def sentences() -> dict[str, re.Pattern[str]]:
    """Return each sentence of the list, in lower case with single spaces -> the pattern that finds its line."""
    plain = [sources.as_prose(text) for text in yaml.safe_load(LIST.read_text("utf-8"))["sentences"]]
    return {
        " ".join(text.lower().split()): re.compile(r"\s+".join(map(re.escape, text.split())), re.IGNORECASE)
        for text in plain
    }


@cache
def banned_names() -> dict[str, str]:
    """Return the names that nothing has -> what to name instead."""
    return dict(yaml.safe_load(LIST.read_text("utf-8"))["bindings"])


@cache
def exemptions() -> tuple[Exemption, ...]:
    """Return the exemptions of the list."""
    return tuple(Exemption(**item) for item in yaml.safe_load(LIST.read_text("utf-8"))["exemptions"])


def search(path: str, content: str) -> Iterator[Place]:
    """Yield each avoided phrase in a file's path and content; exemptions are the caller's business."""
    prose = sources.as_prose(f"{path}\n{content}")  # the path is line 0
    matches = [(match, phrase.use) for phrase in phrases() for match in phrase.regex.finditer(prose)]
    flat = " ".join(prose.lower().split())  # a search for plain text is many times faster than a pattern
    for sentence in sentences():
        if sentence in flat:
            matches += [(match, "a plain sentence") for match in sentences()[sentence].finditer(prose)]
    for match, use in matches:
        yield Place(path, prose.count("\n", 0, match.start()), " ".join(match[0].split()), use)


def bindings(path: str, tree: ast.Module) -> Iterator[Place]:
    """Yield each name that the module binds and that the list bans."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.alias):
            name = (node.asname if isinstance(node, ast.alias) else node.name) or ""
        if name.strip("_").lower() in banned_names():
            use = banned_names()[name.strip("_").lower()]
            yield Place(path, getattr(node, "lineno", 0), f"`{name}`", f"a name for {use}")


def places(path: str) -> list[Place]:
    """Return every place in a file that breaks the list, less the exemptions."""
    about = [exemption for exemption in exemptions() if exemption.covers(path)]
    content = sources.texts()[path]
    for exemption in about:
        content = exemption.blank(content)
    result = list(search(path, content))
    if path.endswith(".py"):
        allowed = {exemption.binding for exemption in about}
        named = bindings(path, sources.tree(path))
        result += [place for place in named if place.match.strip("`_") not in allowed]
    return sorted(result, key=lambda place: place.line)


def main(arguments: Sequence[str]) -> int:
    """Print the places in the given files or folders; 1 when there is any."""
    prefixes = tuple(argument.removeprefix("./").rstrip("/") for argument in arguments)
    folders = tuple(f"{prefix}/" for prefix in prefixes)
    chosen = [path for path in sources.texts() if not prefixes or path in prefixes or path.startswith(folders)]
    avoided = [place for path in chosen for place in places(path)]
    print(*avoided, sep="\n")
    print(f"{len(avoided)} places in {len({place.path for place in avoided})} of {len(chosen)} files", file=sys.stderr)
    return 1 if avoided else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
