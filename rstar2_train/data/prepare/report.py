"""Counts the rows that each rule removed, with examples: the report next to every prepared file.

Filled by `pipeline.py`, rendered by `render.py`. Contains no time, machine or folder, so that two runs on the same
input write the same report.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rstar2_train.data.prepare.records import RULES, RemovedRow

EXAMPLES = 5
"""Maximum examples per rule in a report; the first rows are the examples."""
_EXCERPT = 200
"""Maximum characters of an example's text."""


class RemovalReport:
    """Number of rows read and removed, per source and rule."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        """Source -> rows."""
        self.removed: dict[str, Counter[str]] = {}
        """Rule -> source -> rows."""
        self.examples: dict[str, list[dict[str, str]]] = {}
        """Rule -> examples."""
        self.unused: dict[str, list[str]] = {}
        """Source -> columns that its layout does not read."""

    def remove(self, removed: RemovedRow, *, source: str, at: str, text: str) -> None:
        """Count a removed row. `at`: its file and line, or its id. `text`: its text, cut in the example."""
        self.removed.setdefault(removed.rule, Counter())[source] += 1
        examples = self.examples.setdefault(removed.rule, [])
        if len(examples) < EXAMPLES:
            text = text.encode("utf-8", "replace").decode()
            excerpt = text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
            examples.append({"at": at, "why": removed.reason, "text": excerpt})

    def add(self, other: RemovalReport) -> None:
        """Add the counts of another report, whose rows follow the rows of this one."""
        self.read.update(other.read)
        for rule, counts in other.removed.items():
            self.removed.setdefault(rule, Counter()).update(counts)
            examples = self.examples.setdefault(rule, [])
            examples += other.examples[rule][: EXAMPLES - len(examples)]
        for source, names in other.unused.items():
            self.unused[source] = list(dict.fromkeys([*self.unused.get(source, ()), *names]))

    @property
    def kept(self) -> Counter[str]:
        """Source -> rows that no rule removed."""
        kept = Counter(self.read)
        for counts in self.removed.values():
            kept.subtract(counts)
        return kept

    def as_json(self) -> dict[str, Any]:
        """Return the totals, and the description, counts and examples of each rule that removed a row."""
        return {
            "read": {"all": self.read.total(), **self.read},
            "kept": {"all": self.kept.total(), **self.kept},
            "notUsed": self.unused,
            "removed": {
                rule: {
                    "what": RULES[rule],
                    "rows": {"all": self.removed[rule].total(), **self.removed[rule]},
                    "examples": self.examples[rule],
                }
                for rule in RULES
                if rule in self.removed
            },
        }

    @classmethod
    def load(cls, path: Path) -> RemovalReport:
        """Read a report that was written as JSON."""
        data = json.loads(path.read_text(encoding="utf-8"))
        report = cls()
        report.read.update(_without_total(data["read"]))
        for rule, entry in data["removed"].items():
            report.removed[rule] = Counter(_without_total(entry["rows"]))
            report.examples[rule] = entry["examples"]
        report.unused.update(data["notUsed"])
        return report


def _without_total(counts: dict[str, int]) -> dict[str, int]:
    return {source: count for source, count in counts.items() if source != "all"}
