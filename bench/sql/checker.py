"""The reward of the tiny SQL task: the last statement that ran gives the right value, also after a hidden change.

The answer must be the value that the tool returned for it. A guessed number has no statement, so it fails.
"""

import json
import sqlite3

READ_ONLY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
MAX_STEPS = 100_000


def score(row, answer, transcript):
    """Return 1.0 for the right value by a right statement, else 0.0, and the reason."""
    calls = [call for call in transcript["calls"] if call["status"] == "ok"]
    if answer is None or not calls:
        return 0.0, "no answer" if answer is None else "no statement ran"
    if answer.strip() != calls[-1]["response"].strip():
        return 0.0, "the answer is not the value of the last statement"
    statement = json.loads(calls[-1]["code"])["sql"]
    for change in ("", row["data"]["change"]):
        try:
            if value(statement, change) != value(row["answer"], change):
                return 0.0, "another value after the change" if change else "another value"
        except (sqlite3.Error, sqlite3.Warning) as error:
            return 0.0, f"{type(error).__name__}: {error}"
    return 1.0, "equal values"


def value(sql, change):
    """Return the rows of a statement on a copy of the database. A statement that writes or runs too long raises."""
    database = sqlite3.connect(":memory:")
    sqlite3.connect("file:data.sqlite?mode=ro", uri=True).backup(database)
    database.executescript(change)
    database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READ_ONLY else sqlite3.SQLITE_DENY)
    database.set_progress_handler(lambda: 1, MAX_STEPS)
    return [[round(cell, 6) if isinstance(cell, float) else cell for cell in row] for row in database.execute(sql)]
