"""Working folders for tasks of a user (`rstar2 init`): copies of the folders in `templates`.

A file NAME.sqlite.sql of a template becomes the database NAME.sqlite.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_FOLDER = Path(__file__).with_name("templates")
TEMPLATES = ("maths", "sql", "science", "openenv", "calls")
"""Names of the templates."""
_DATABASE = ".sqlite.sql"


class FolderInUse(Exception):
    """The folder is not empty. The message is for the user."""


def write_template(template: str, folder: Path) -> list[str]:
    """Write the files of a template into `folder`, which is created if missing; return their names, sorted.

    Raises FolderInUse unless the folder is empty or does not exist, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FolderInUse(f"{folder.resolve()} is not empty: name a new or empty folder")
    for source in sorted(path for path in (_FOLDER / template).iterdir() if path.is_file()):
        text = source.read_text(encoding="utf-8")
        if source.name.endswith(_DATABASE):
            with closing(sqlite3.connect(folder / source.name.removesuffix(".sql"))) as database:
                database.executescript(text)
        else:
            (folder / source.name).write_text(text, encoding="utf-8")
    return sorted(path.name for path in folder.iterdir())
