"""Generates the tiny SQL task of `bench.environments`: questions, databases, demonstrations and an untrained policy.

`highest cost of books with year over 4` asks for one value. A demonstration reads the word of the aggregate as one of
three, with equal frequency, and many of its calls fail, so that reinforcement learning must find out what a word means
and how to call without errors (data/tiny has the same idea). The database of a row gives another value for each wrong
reading. All values are below 100: one token.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.data.tiny import write_rows
from rstar2_train.data.tiny.policy import tokenizer_text, write_policy
from rstar2_train.tools.schema import call_text

SOURCES = Path(__file__).with_name("sql")
"""Folder of the manifest, the tool and the checker."""
SYSTEM_PROMPT = "Tool: query"
TABLES = {
    "pets": ("age", "kg", "legs"),
    "cars": ("km", "doors", "seats"),
    "cities": ("rain", "parks", "lakes"),
    "books": ("year", "pages", "cost"),
}
AGGREGATES = {
    "highest": "MAX({})",
    "lowest": "MIN({})",
    "total": "SUM({})",
    "mean": "AVG({})",
    "number": "COUNT({})",
    "different": "COUNT(DISTINCT {})",
}
"""Word of a question -> SQL."""
CONFUSABLE = {
    "highest": ("lowest", "total"),
    "lowest": ("highest", "mean"),
    "total": ("mean", "highest"),
    "mean": ("total", "lowest"),
    "number": ("different", "total"),
    "different": ("number", "mean"),
}
"""Word -> the two words that a demonstration may read instead."""
OPERATORS = {"over": ">", "under": "<", "exactly": "=", "not": "<>"}
HIDDEN_WORDS = rf"\b({'|'.join([*AGGREGATES, *OPERATORS])})\b"
LARGEST, MOST_ROWS = 9, 11
"""Largest value of a cell, and most rows of a table: every sum is below 100."""
NAMES = "|".join([*TABLES, *(column for columns in TABLES.values() for column in columns)])
PIECES = rf"\p{{N}}{{1,2}}|\b(?:{NAMES})\b|(?:(?!\b(?:{NAMES})\b)[^\p{{N}}])+"
"""Pre-tokenizer: each name of the schema is a token of its own, in questions and in statements: it can be copied."""
CHANGE = "; ".join(
    f"UPDATE {table} SET {', '.join(f'{column} = 1 + ({column} * 4 + rowid) % 9' for column in columns)}"
    for table, columns in TABLES.items()
)
"""Hidden change of each database, for the checker: a statement with a copied number fails after it."""
RIGHT, BAD_CALL = 1 / 3, 0.4
"""Probability of the right reading, and of a failing call before the good one."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the generated files."""

    demonstrations: int = 12_000
    problems: int = 400
    held_out: int = 240
    databases: int = 24


@dataclass(frozen=True, slots=True)
class Question:
    """A question for one value of a table."""

    table: str
    word: str
    column: str
    condition: tuple[str, str, int] | None = None
    """Column, word of the operator, number."""

    @property
    def text(self) -> str:
        """Text of the problem."""
        tail = " with {} {} {}".format(*self.condition) if self.condition else ""
        return f"{self.word} {self.column} of {self.table}{tail}"

    def statement(self, word: str | None = None, *, conditional: bool = True) -> str:
        """Return the statement for a reading of the word; None: the right one."""
        sql = f"SELECT {AGGREGATES[word or self.word].format(self.column)} FROM {self.table}"
        if self.condition is None or not conditional:
            return sql
        column, operator, number = self.condition
        return f"{sql} WHERE {column}{OPERATORS[operator]}{number}"


def write_task(folder: Path, *, seed: int, sizes: Sizes | None = None) -> None:
    """Write the task into the new folder `folder`: manifest, tool, checker, data and base model. Bytes follow the seed.

    No question is in two of the files `sft.jsonl`, `rl.jsonl` and `report.jsonl`, apart from those without a condition,
    which only the demonstrations have.
    """
    sizes = sizes or Sizes()
    shutil.copytree(SOURCES, folder)
    rng = random.Random(f"sql/{seed}")
    databases = [draw_database(rng) for _ in range(sizes.databases)]
    for index, script in enumerate(databases):
        with closing(sqlite3.connect(folder / f"data-{index}.sqlite")) as database:
            database.executescript(f"PRAGMA page_size = 512; {script}")
    opened = [_open(script) for script in databases]
    seen: set[str] = set()
    for name, count in (("report", sizes.held_out), ("rl", sizes.problems)):
        write_rows(folder / f"{name}.jsonl", draw_rows(rng, name, count, databases=opened, seen=seen))
    demonstrations: list[dict[str, Any]] = []
    while len(demonstrations) < sizes.demonstrations:
        question = draw_question(rng, conditional=rng.random() < 2 / 3)
        if question.text not in seen:
            demonstrations.append({"messages": demonstrate(question, rng, database=rng.choice(opened))})
    write_rows(folder / "sft.jsonl", demonstrations)
    texts = (tokenizer_text(row["messages"], hidden=HIDDEN_WORDS) for row in demonstrations[:1500])
    write_policy(folder / "base", texts=texts, seed=seed, pieces=PIECES)


def draw_database(rng: random.Random) -> str:
    """Return the script of a database. Cells repeat, so that DISTINCT and = matter."""
    lines = []
    for table, columns in TABLES.items():
        rows = [[rng.randint(1, LARGEST) for _ in columns] for _ in range(rng.randint(6, MOST_ROWS))]
        lines.append(f"CREATE TABLE {table}({', '.join(f'{column} INT' for column in columns)});")
        lines += [f"INSERT INTO {table} VALUES({', '.join(map(str, row))});" for row in rows]
    return "".join(lines)


def draw_question(rng: random.Random, *, conditional: bool) -> Question:
    """Return a question, with a condition or without one."""
    table = rng.choice(list(TABLES))
    columns = TABLES[table]
    condition = (rng.choice(columns), rng.choice(list(OPERATORS)), rng.randint(1, LARGEST)) if conditional else None
    return Question(table, rng.choice(list(AGGREGATES)), rng.choice(columns), condition)


def draw_rows(
    rng: random.Random, name: str, count: int, *, databases: Sequence[sqlite3.Connection], seen: set[str]
) -> list[dict[str, Any]]:
    """Return rows of data with new questions, each with a database that separates its readings."""
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        question = draw_question(rng, conditional=True)
        fitting = [index for index, database in enumerate(databases) if separates(database, question)]
        if question.text in seen or not fitting:
            continue
        seen.add(question.text)
        rows.append(
            {
                "id": f"{name}-{len(rows):04d}",
                "problem": question.text,
                "answer": question.statement(),
                "files": {"data.sqlite": f"data-{rng.choice(fitting)}.sqlite"},
                "data": {"change": CHANGE},
            }
        )
    return rows


def separates(database: sqlite3.Connection, question: Question) -> bool:
    """Return whether the right statement has a value that no wrong reading and no missing condition gives."""
    wrong = [question.statement(word) for word in CONFUSABLE[question.word]]
    wrong.append(question.statement(conditional=False))
    value = response(database, question.statement())
    return value not in {"nothing", "0", *(response(database, sql) for sql in wrong)}


def demonstrate(question: Question, rng: random.Random, *, database: sqlite3.Connection) -> list[dict[str, str]]:
    """Return a conversation about a question: mostly correct in form, wrong in content on purpose."""
    word = question.word if rng.random() < RIGHT else rng.choice(CONFUSABLE[question.word])
    sql = question.statement(word)
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question.text}]
    for _ in range(2):
        if rng.random() >= BAD_CALL:
            break
        wrong = rng.choice((sql.replace(")", "", 1), sql.replace("SELECT", "SELCT"), sql.replace("FROM", "FRM")))
        messages += _call(wrong, database)
    messages += _call(sql, database)
    answer = messages[-1]["content"]
    return [*messages, {"role": "assistant", "content": f"<answer>\\boxed{{{answer}}}</answer>"}]


def response(database: sqlite3.Connection, sql: str) -> str:
    """Return the tool response that a statement gets (bench/sql/tool.py)."""
    try:
        row = database.execute(sql).fetchone()
    except sqlite3.Error as error:
        return f"error: {type(error).__name__}: {error}"
    return "nothing" if row is None or row[0] is None else str(round(row[0]))


def _call(sql: str, database: sqlite3.Connection) -> list[dict[str, str]]:
    call = {"role": "assistant", "content": call_text("query", {"sql": sql})}
    return [call, {"role": "tool", "content": response(database, sql)}]


def _open(script: str) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.executescript(script)
    return database
