"""The tool of the model. It runs in the sandbox, in a process per call, next to the files of the row."""

import sqlite3


def query(sql: str, limit: int = 20) -> str:
    """Runs a statement on the database of the shop and returns the first rows.

    Args:
        sql: One SELECT statement.
        limit: Maximum rows.
    """
    with sqlite3.connect("file:shop.sqlite?mode=ro", uri=True) as database:
        cursor = database.execute(sql)
        names = ", ".join(column[0] for column in cursor.description or ())
        return "\n".join([names, *(str(row) for row in cursor.fetchmany(limit))])
