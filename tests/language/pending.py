"""The files that do not follow a language rule yet: pending.yaml. A list may only lose entries.

`python -m tests.language.pending` removes the entries that are no longer needed, and adds none.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

FILE = Path(__file__).with_name("pending.yaml")
HEADER = "# An entry that is no longer needed does no harm. Leave this file alone: two changes would conflict in it.\n"


@cache
def pending(rule: str) -> frozenset[str]:
    """Return the entries of one rule: paths, or names for the rules about names."""
    return frozenset(yaml.safe_load(FILE.read_text("utf-8"))[rule] or ()) if FILE.exists() else frozenset()


def main() -> None:
    """Write the lists again with the entries that are still needed."""
    from tests.language import names, sources, words

    still = {
        "words": {path for path in pending("words") if path in sources.texts() and words.places(path)},
        "tests": names.unclear_tests().keys(),
        "packages": names.undocumented_packages().keys(),
        "classes": names.repeated_classes().keys(),
    }
    lists = {rule: sorted(pending(rule) & set(entries)) for rule, entries in still.items()}
    FILE.write_text(HEADER + yaml.safe_dump(lists), "utf-8")
    print(*(f"{rule}: {len(entries)}" for rule, entries in lists.items()), sep="\n")


if __name__ == "__main__":
    main()
