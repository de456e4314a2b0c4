"""Working folders for tasks of a user (`rstar2 init`): copies of the folders in `templates`.

A file NAME.sqlite.sql of a template becomes the database NAME.sqlite.
"""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from pathlib import Path

from rstar2_train.utils.disk import named_disk

_FOLDER = Path(__file__).with_name("templates")
TEMPLATES = ("maths", "sql", "science", "openenv", "calls")
"""Names of the templates."""
_DATABASE = ".sqlite.sql"
_SQLITE_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}
"""Code of SQLite -> error number."""


class FolderInUse(Exception):
    """The folder is not empty. The message is for the user."""


def write_template(template: str, folder: Path) -> list[str]:
    """Write the files of a template into `folder`, which is created if missing; return their names, sorted.

    Raises FolderInUse unless the folder is empty or does not exist, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FolderInUse(f"{folder.resolve()} is not empty: name a new or empty folder")
    try:
        with named_disk(folder):
            _write_files(_FOLDER / template, folder)
    except OSError:
        for path in folder.iterdir():  # so that the same command can be repeated
            path.unlink()
        raise
    return sorted(path.name for path in folder.iterdir())


def _write_files(template: Path, folder: Path) -> None:
    for source in sorted(path for path in template.iterdir() if path.is_file()):
        text = source.read_text(encoding="utf-8")
        if source.name.endswith(_DATABASE):
            _write_database(folder / source.name.removesuffix(".sql"), text)
        else:
            (folder / source.name).write_text(text, encoding="utf-8")


def _write_database(path: Path, text: str) -> None:
    try:
        with closing(sqlite3.connect(path)) as database:
            database.executescript(text)
    except sqlite3.OperationalError as error:
        raise OSError(_SQLITE_ERRORS.get(error.sqlite_errorcode, errno.EIO), str(error), str(path)) from error
