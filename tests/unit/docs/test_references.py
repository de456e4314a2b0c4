"""Files, symbols and anchors that the documentation names exist, and its manifests are valid."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import yaml

from rstar2_train.api.validation import check
from scripts.docs import repository
from tests.language.sources import tracked
from tests.support.hostile import HOSTILE

ROOT = repository.ROOT
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / path for path in repository.PAGES)]


def test_pages_name_existing_paths_and_symbols() -> None:
    """A rename of a file or of a function takes the documents along."""
    stale = [
        f"{page.relative_to(ROOT)}:{line}: {problem}"
        for page in PAGES
        for line, problem in repository.stale_references(page.read_text("utf-8"))
    ]
    assert not stale


def test_pages_link_to_existing_files_and_anchors() -> None:
    """`make docs` checks the links of the site; this one also those that only GitHub shows.

    A page that only the site has, such as that of the examples, is linked by its file or folder.
    """
    broken = [
        f"{page.name}:{line}: {target}"
        for page in PAGES
        for line, target in repository.links(page.read_text("utf-8"))
        if ":" not in target and not _exists(page, target)
    ]
    assert not broken


def _exists(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = Path(posixpath.normpath(page.parent / path)) if path else page
    return file.exists() and (not anchor or anchor in repository.anchors(file.read_text("utf-8")))


def test_sources_name_existing_pages_and_anchors() -> None:
    """Comments, docstrings and messages, such as `docs/lora.md#memory`."""
    named = {
        (path, page, anchor)
        for path in tracked()
        if path.endswith((".py", ".yaml", ".tpl", ".toml", "Makefile")) and not path.startswith("tests/")
        for page, anchor in re.findall(r"\b(docs/[\w-]+\.md)(?:#([\w-]+))?", (ROOT / path).read_text("utf-8"))
    }
    assert len(named) > 30
    assert {entry for entry in named if not _exists(ROOT / "README.md", "#".join(filter(None, entry[1:])))} == set()


def test_pages_show_valid_manifests() -> None:
    """Each AgenticRLJob in a fenced block passes `rstar2 validate`."""
    manifests = 0
    for page in PAGES:
        for block in re.findall(r"```yaml[^\n]*\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL):
            if "kind: AgenticRLJob" not in block:
                continue
            manifests += 1
            job, issues = check(yaml.safe_load(block))
            assert job is not None, [str(issue) for issue in issues]
    assert manifests


def test_threat_model_names_existing_attacks() -> None:
    """Each attack of the threat model is a snippet of tests/support/hostile."""
    page = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
    listed = {name for names in re.findall(r"attacks? ((?:`[\w-]+`(?:, )?)+)", page) for name in names.split("`")[1::2]}
    assert listed
    assert listed <= {attack.name for attack in HOSTILE}
