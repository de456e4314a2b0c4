"""Hooks of MkDocs (mkdocs.yml): pages for files outside `docs/`, links into the repository, and no need of a network.

`make docs` is strict: every warning that is logged here or by MkDocs fails the build.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from scripts.docs import repository

log = logging.getLogger("mkdocs.hooks.rstar2")
_SHIM, _OWN_SHIM = "https://unpkg.com/iframe-worker/shim", "vendor/iframe-worker.js"
"""The script that the theme loads for its search in a site on the disk, and the copy in this project."""
_LONG_CODE = re.compile(r"(?<=<code>)(?<!<span></span><code>)[^<\n]{30,}(?=</code>)")
"""Code in a text, not a block of code."""
_BREAKS = re.compile(r"::|[/_.](?=\w)")
"""Where a path or a name may break."""
_REMOTE = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside `docs/` that the site shows."""
    for path, page in repository.PAGES.items():
        if page == "index.md":
            continue
        text = (repository.ROOT / path).read_text("utf-8")
        text = repository.for_site(text, path, log.warning)
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, repository.EXAMPLES, content=_examples()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Make links into the repository work in the site; fail on paths and symbols that do not exist."""
    source = f"docs/{page.file.src_uri}"
    if page.file.generated_by:
        return markdown
    for line, problem in repository.stale_references(markdown):
        log.warning("%s:%s: %s", source, line, problem)
    return repository.for_site(markdown, source, log.warning)


def on_page_content(html: str, **_: Any) -> str:
    """Let long paths and names in code font break, so that they do not squeeze the other columns of a table."""
    return _LONG_CODE.sub(lambda match: _BREAKS.sub(lambda mark: f"{mark[0]}<wbr>", match[0]), html)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Load the theme's shim from the site; fail on a page that would load anything else from another server."""
    output = output.replace(_SHIM, get_relative_url(_OWN_SHIM, page.url))
    for tag in _REMOTE.findall(output):
        log.warning("%s loads from another server: %s", page.file.src_uri, tag)
    return output


def _examples() -> str:
    parts = ["# Example manifests\n", "The manifests of `examples/`, as they are in the repository.\n"]
    for path in repository.examples():
        text = (repository.ROOT / path).read_text("utf-8")
        parts.append(f"## {path} {{#{repository.example_anchor(path)}}}\n\n```yaml\n{text}```\n")
    return "\n".join(parts)
