"""The tool of the tiny SQL task: it runs in the sandbox, next to the database of the row."""

import sqlite3


def query(sql: str) -> str:
    """Returns the first value of a SELECT statement, as an integer."""
    with sqlite3.connect("file:data.sqlite?mode=ro", uri=True) as database:
        row = database.execute(sql).fetchone()
    return "nothing" if row is None or row[0] is None else str(round(row[0]))
