"""The reward: the answer and the known statement must return equal rows, also after a change of the database.

The change is in the row's `data`, which the model never reads: a statement with a copied number fails there.
"""

import sqlite3

MAX_ROWS = 100
MAX_STEPS = 1_000_000
READ_ONLY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


def score(row, answer, transcript):
    """Return 1.0 for an equal result, else 0.0, and the reason."""
    if answer is None:
        return 0.0, "no answer"
    for change in ("", row["data"]["change"]):
        expected = result(row["answer"], change)
        try:
            rows = result(answer, change)
        except (sqlite3.Error, sqlite3.Warning, MemoryError) as error:
            return 0.0, f"{type(error).__name__}: {error}"
        if "order by" not in row["answer"].lower():
            expected, rows = sorted(expected, key=repr), sorted(rows, key=repr)
        if rows != expected:
            return 0.0, "another result after a change of the data" if change else "another result"
    return 1.0, "equal results"


def result(sql, change):
    """Return the rows of a statement on a copy of the database. A statement that writes or runs too long raises."""
    database = sqlite3.connect(":memory:")
    sqlite3.connect("file:shop.sqlite?mode=ro", uri=True).backup(database)
    database.executescript(change)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
    database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READ_ONLY else sqlite3.SQLITE_DENY)
    database.set_progress_handler(lambda: 1, MAX_STEPS)
    return [tuple(map(value, row)) for row in database.execute(sql).fetchmany(MAX_ROWS + 1)]


def value(item):
    """Return a value for the comparison: 2 equals 2.0, and numbers are compared to six places."""
    return round(float(item), 6) if isinstance(item, (int, float)) else item
