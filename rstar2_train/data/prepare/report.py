"""Counts what each rule removed, with examples: the report that lies beside every prepared file.

Filled in by pipeline.py, shown by cli/data.py. Holds nothing that differs between two runs on the same input: no time,
no machine, no folder.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rstar2_train.data.prepare.records import RULES, RemovedRow

EXAMPLES = 5
"""Examples of each rule in a report: the first ones."""
_EXCERPT = 200


class RemovalReport:
    """Rows read and rows removed, by source and rule."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        """Source -> rows."""
        self.removed: dict[str, Counter[str]] = {}
        """Rule -> source -> rows."""
        self.examples: dict[str, list[dict[str, str]]] = {}

    def remove(self, removed: RemovedRow, *, source: str, at: str, text: str) -> None:
        """Note a removed row. `at`: file and line, or id; `text`: of which the beginning is kept as an example."""
        self.removed.setdefault(removed.rule, Counter())[source] += 1
        examples = self.examples.setdefault(removed.rule, [])
        if len(examples) < EXAMPLES:
            text = text.encode("utf-8", "replace").decode()
            excerpt = text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
            examples.append({"at": at, "why": removed.why, "text": excerpt})

    def add(self, other: RemovalReport) -> None:
        """Take in another one, whose rows come after this one's."""
        self.read.update(other.read)
        for rule, counts in other.removed.items():
            self.removed.setdefault(rule, Counter()).update(counts)
            examples = self.examples.setdefault(rule, [])
            examples += other.examples[rule][: EXAMPLES - len(examples)]

    @property
    def kept(self) -> Counter[str]:
        """Source -> rows that no rule removed."""
        left = Counter(self.read)
        for counts in self.removed.values():
            left.subtract(counts)
        return left

    def as_json(self) -> dict[str, Any]:
        """The report's figures: totals, and for each rule that removed something what it is, counts and examples."""
        return {
            "read": {"all": self.read.total(), **self.read},
            "kept": {"all": self.kept.total(), **self.kept},
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
        """An account that was written as JSON."""
        data = json.loads(path.read_text(encoding="utf-8"))
        account = cls()
        account.read.update(_by_source(data["read"]))
        for rule, entry in data["removed"].items():
            account.removed[rule] = Counter(_by_source(entry["rows"]))
            account.examples[rule] = entry["examples"]
        return account


def _by_source(counts: dict[str, int]) -> dict[str, int]:
    return {source: count for source, count in counts.items() if source != "all"}
