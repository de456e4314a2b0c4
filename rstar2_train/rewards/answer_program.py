"""Finds the program in an answer: the content of a code fence, or the whole answer. Pure.

Used by the reward `Tests`. The fences are those of CommonMark, also those that models write besides: unclosed ones,
those that start after other text (a sentence, list markers, quotation marks), those whose code starts on the line of
the fence, and those whose end is on the line of the code, before other text, or of other marks or indentation. Without
a fence, blocks of other markup count (`markup_blocks`, `document_blocks`). An answer that is one code span, of Markdown
or LaTeX, or one text in triple quotation marks after which the word Python follows, is the program of the span or text.
Line numbers before each line, the signs of a diff that has the whole program, and tokens at the end are no code.
"""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from rstar2_train.rewards.clean_code import SESSION, clean_code, is_python, without_end_tokens
from rstar2_train.rewards.document_blocks import before_prose, document_blocks
from rstar2_train.rewards.line_prefixes import (
    diff_part,
    is_diff,
    new_lines,
    numbered_parts,
    without_marked_numbers,
    without_marks,
    without_numbers,
)
from rstar2_train.rewards.markup_blocks import markup_blocks, table_program, tagged_blocks
from rstar2_train.rewards.program_files import written_programs
from rstar2_train.rewards.program_parts import joined_program, read_part

_OPEN = re.compile(r"(?P<before>[ \t]*+)(?P<fence>`{3,}|~{3,})[ \t]*+(?P<label>[^`]*+)")
_OPEN_AFTER_TEXT = re.compile(r"(?P<before>[^`]*+)(?P<fence>`{3,})[ \t]*+(?P<label>\{?\.?[\w+#-]*+\}?)[*_]*+")
_CONTAINER = re.compile(r"(?:[ \t]*+(?:[-*+]|\d++[.)])[ \t]++)*+(?:[ \t]*+>[ \t]?)++")
_QUOTED = re.compile(r"(?:[ \t]*+>[ \t]?)++")
_LIST_MARKERS = re.compile(r"(?:[ \t]*+(?:[-*+]|\d++[.)])[ \t]++)++")
_LANGUAGE = re.compile(r"[\s{.]*([\w+#-]*)")
_NEW_BLOCK = re.compile(r"[ \t]*\{?\.?[A-Za-z][\w+#-]*\}?")
"""The label after the marks of a fence that starts a block, inside a block without an end."""
_PROSE = ("markdown", "md", "text", "txt")
_DIFF = ("diff", "patch", "udiff")
_MARKUP = ("html", "xml", "latex", "tex", "rst", "rest", "org", "asciidoc", "adoc", "yaml", "yml")
_PYTHON = re.compile(r"(i|c)?py(thon|py)?[\d.]*")
_LIKE_CODE = re.compile(
    r"(?m)^[ \t]*(?:import|from|def|class|for|while|if|with|try|[\w, ]+=)|\b(?:print|input)[ \t]*\("
)
_READS_INPUT = re.compile(r"\binput[ \t]*\(|\bstdin\b(?![ \t]*=(?!=))|\bopen[ \t]*\([ \t]*0\b|\bfileinput\b")
"""A program on standard input: tests, examples and outputs after it read none, or assign to `stdin`."""
_DIRECTIVE, _OPTION = re.compile(r"\{[a-z-]+\}"), re.compile(r"[ \t]*:[\w-]+:.*")
"""Label of a directive of MyST, and an option of it on a line of its own."""
_END = re.compile(r"[ \t]*+(?:`{3,}|~{3,})[ \t]*+")
_STATEMENT = re.compile(r"(?:import|from)[ \t]|[^\"'{}(]+\(")
"""Start of code after the language of a fence, which is no option of the fence."""
_HEADER = re.compile(r"(?:async[ \t]+)?(?:def|class|for|while|if|with)[ \t(].*:[ \t]*")
_QUOTED_PROGRAM = re.compile(
    r"\s*(?P<marks>\"{3}|'{3})(?:python|py)[\d.]*[ \t]*\n(?P<code>.*?)(?P=marks)\s*", re.DOTALL | re.IGNORECASE
)
_OTHER_MARKS = re.compile(r"(?m)^(?P<before>[ \t]*+)(?:[\uff40\xb4\u2018\u2019\u02cb\u2032\u2035]{3}|(?:\\`){3})")
"""Full-width and other quotation marks in place of the marks of a fence, or marks that are escaped."""
_THOUGHTS = re.compile(
    r"(?:\s*+<(?P<name>think(?:ing)?|thoughts?|reason(?:ing)?|analysis|scratchpad)(?:\s[^<>]*+)?>.*?</(?P=name)>)++",
    re.DOTALL | re.IGNORECASE,
)
"""The thoughts before an answer, with drafts of the program."""
_THOUGHTS_END = re.compile(
    r"(?mi)(?:</(?:think(?:ing)?|thoughts?|reason(?:ing)?|analysis|scratchpad)>|\[/THINK\]|\u25c1/think\u25b7)[ \t]*$"
)
_FENCE_LINE = re.compile(r"(?m)^[ \t]*(?:```|~~~)")
_NO_PYTHON = ("{", "[", '"', "cat ", "tee ")
"""Starts of JSON and of a shell's script that may be expressions of Python, which no program starts with."""
_QUOTED_START = re.compile(r"(?mi)^(?P<marks>\"{3}|'{3})(?:python|py)[\d.]*[ \t]*\n")
_SPAN = re.compile(r"(`+)(?!`)(?P<code>(?:(?!\1).)++)\1", re.DOTALL)
_LATEX_SPAN = re.compile(
    r"\\(?:mintinline(?:\[[^\[\]]*\])?\{\w+\}|lstinline(?:\[[^\[\]]*\])?|verb\*?)"
    r"(?:\{(?P<braced>.+)\}|(?P<mark>[^\w\s{])(?P<code>.+)(?P=mark))",
    re.DOTALL,
)
_SPAN_LANGUAGE = re.compile(r"(?:i|c)?py(?:thon|py)?[\d.]*\s+")
_INVISIBLE = "\N{ZERO WIDTH SPACE}\N{ZERO WIDTH NO-BREAK SPACE}"
_MOST_INDENTED = 3
"""Columns by which the end of a block may be indented more than its start."""
_MOST_ENDS = 8
"""Marks after the first end of a block that are tried as its end."""


class _Block(NamedTuple):
    language: str
    code: str


def answer_program(answer: str) -> str | None:
    """Return the program in an answer; None if it has no code block.

    Of several code blocks it is one in Python; without such a label one without a label that looks like code, else any.
    Of those it is the last one that reads standard input; else the last one that looks like code, else the last one,
    with the blocks that define its names. A session at a prompt is taken only if there is no other block.
    """
    lines = answer.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    text = "\n".join(lines)
    rest = _after_thoughts(without_end_tokens(text))
    if rest.strip() and rest != text:
        return answer_program(rest) or f"{rest.rstrip()}\n"
    blocks = _blocks(lines) or _markup_blocks(text) or _quoted_blocks(text) or _written_blocks(text)
    if not blocks:
        return _span_program(answer.strip()) or _plain_program(lines)
    blocks = [inner for block in blocks for inner in _inner_blocks(block)]
    blocks = [block for block in blocks if not SESSION.match(block.code)] or blocks
    python = [block for block in blocks if _PYTHON.fullmatch(block.language)]
    unlabelled = [block for block in blocks if not block.language and _LIKE_CODE.search(block.code)]
    chosen = python or unlabelled or blocks
    return joined_program([read_part(_without_prefixes(block)) for block in chosen], _by_likelihood(chosen))


def _after_thoughts(text: str) -> str:
    """Return the text after the thoughts before an answer; empty: nothing follows.

    A template may have opened them, so that the text has only their end.
    """
    if thoughts := _THOUGHTS.match(text):
        return text[thoughts.end() :].strip("\n")
    end = next(reversed(list(_THOUGHTS_END.finditer(text))), None)
    if end is None or len(_FENCE_LINE.findall(text, 0, end.start())) % 2 or is_python(text):
        return text
    return text[end.end() :].strip("\n") or text


def _by_likelihood(blocks: list[_Block]) -> list[int]:
    """Return the positions of the blocks that read standard input, the last one first; else of the likeliest block."""
    positions = range(len(blocks) - 1, -1, -1)
    reading = [at for at in positions if _READS_INPUT.search(blocks[at].code)]
    return reading or [next((at for at in positions if _LIKE_CODE.search(blocks[at].code)), positions[0])]


def _without_prefixes(block: _Block) -> str:
    """Return the code of a block without line numbers, of a diff the new lines, and without what is no Python."""
    lines = block.code.split("\n")
    if written := _diff_program(lines, is_labelled=block.language in _DIFF):
        return written
    code = clean_code(_listed_program(lines, is_block=True) or block.code)
    return code if is_python(code) else _prefixed_part(lines) or code


def _prefixed_part(lines: list[str]) -> str | None:
    """Return the program of the numbered lines, or of the diff, in a text that is no Python; None if it has none."""
    parts = [without_marks(lines), *numbered_parts(lines), new_lines(diff_part(lines)) or []]
    programs = [_whole_program(part) for part in parts]
    return next(
        (program for program in programs if program and _LIKE_CODE.search(program) and is_python(program)), None
    )


def _diff_program(lines: list[str], *, is_labelled: bool = False) -> str | None:
    """Return the program that a diff writes; None if the lines are no diff, or not a whole one."""
    text = "\n".join(lines)
    written = new_lines(lines) if is_labelled or is_diff(text) or _only_adds(text) else None
    return _whole_program(written or [])


def _only_adds(text: str) -> bool:
    """Return whether a text starts with the sign of a new line and is no Python, in which the sign may start a line."""
    return text.lstrip().startswith("+") and not is_python(text)


def _listed_program(lines: list[str], *, is_block: bool = False) -> str | None:
    """Return the program of numbered lines; None if they are not numbered, or all empty."""
    text = "\n".join(lines).rstrip()
    numbered = text.split("\n")
    listed = _whole_program(without_numbers(numbered, is_block=is_block) or [])
    if is_python(listed or text):
        return listed
    marked = _whole_program(without_marked_numbers(numbered) or [])
    if marked and (is_python(marked) or (is_block and listed is None)):
        return marked
    return listed


def _whole_program(lines: list[str]) -> str | None:
    """Return lines without their common indentation; None if all are empty."""
    return _dedented(lines, 0) if any(map(str.strip, lines)) else None


def _plain_program(lines: list[str]) -> str | None:
    """Return the program of an answer without a block; None if it is the answer as it is, or there is none."""
    text = "\n".join(lines)
    if program := _diff_program(lines) or _listed_program(lines):
        return program
    program = clean_code(text)
    if is_python(program) and (program == text or _LIKE_CODE.search(program)):
        return None if program == text else f"{program.rstrip()}\n"
    return _prefixed_part(lines)


def _span_program(answer: str) -> str | None:
    """Return the program of an answer that is one code span; None if it is not."""
    if span := _LATEX_SPAN.fullmatch(answer):
        return f"{(span['braced'] or span['code']).strip()}\n"
    span = _SPAN.fullmatch(answer)
    return f"{_SPAN_LANGUAGE.sub('', span['code'].strip(), count=1)}\n" if span else None


def _inner_blocks(block: _Block) -> list[_Block]:
    """Return the blocks in a block of prose, such as a whole answer in Markdown or HTML; else the block itself."""
    if block.language in _MARKUP:
        return _markup_blocks(block.code) or [block]
    if block.language in _PROSE or (not block.language and not is_python(block.code)):
        return _blocks(block.code.split("\n")) or [block]
    return _written_blocks(block.code) or [block]


def _blocks(lines: list[str]) -> list[_Block]:
    blocks: list[_Block] = []
    at = 0
    while at < len(lines):
        container = _CONTAINER.match(lines[at])
        first = lines[at][container.end() :].rstrip() if container else lines[at].rstrip()
        at += 1
        start = _OPEN.fullmatch(first) or _OPEN_AFTER_TEXT.fullmatch(first)
        if start is None:
            continue
        fence, language, code = start["fence"], *_language_and_code(start["label"])
        before = start["before"]
        columns = len(before) if _LIST_MARKERS.fullmatch(before) else _indent(before)
        has_end = False
        while at < len(lines) and not has_end:
            line, at = lines[at], at + 1
            if container and (mark := _QUOTED.match(line)):
                line = line[mark.end() :]
            after = _after_marks(line, fence, columns)
            has_end = after is not None or _ends_with_marks(line, fence)
            if after is None:
                code.append(line.rstrip().removesuffix(fence) if has_end else line)
            elif not container and (whole := _past_text(lines, at, code, fence, columns)):
                at, code = whole
            elif _NEW_BLOCK.fullmatch(after):
                at -= 1  # the block has no end, and another one starts
        if _DIRECTIVE.match(start["label"]):
            code = list(itertools.dropwhile(lambda line: not line.strip() or _OPTION.fullmatch(line), code))
        if not has_end:
            code = before_prose(code)
        filled = [index for index, line in enumerate(code) if line.strip()]
        if filled and not has_end and _END.fullmatch(code[filled[-1]]):
            del code[filled.pop() :]
        named = code[filled[0]].strip().lower() if len(filled) > 1 else ""
        if named and (named == language or (not language and _PYTHON.fullmatch(named))):  # on the line after the fence
            language = named
            del code[filled[0]]
        if any(line.strip() for line in code):
            blocks.append(_Block(language, _dedented(code, columns)))
    return blocks


def _past_text(lines: list[str], at: int, code: list[str], fence: str, columns: int) -> tuple[int, list[str]] | None:
    """Return the line after a block, and its code, if the end so far is in a text in triple quotation marks.

    `at`: the line after that end. A later end is taken only if the code is Python with it.
    """
    text = "\n".join(code)
    if not any(text.count(marks) % 2 for marks in ('"""', "'''")):
        return None
    longer, ends = [*code, lines[at - 1]], 0
    for later in range(at, len(lines)):
        if _after_marks(lines[later], fence, columns) is not None:
            if is_python(_dedented(longer, columns)):
                return later + 1, longer
            ends += 1
            if ends == _MOST_ENDS:
                break
        longer.append(lines[later])
    return None


def _language_and_code(label: str) -> tuple[str, list[str]]:
    """Return the language after the marks of a fence, and the code of that line, if it has code."""
    named = _LANGUAGE.match(label)
    language = named[1].lower() if named else ""
    rest = label[named.end() :].strip() if named else ""
    if _PYTHON.fullmatch(language):
        return language, [rest] if _STATEMENT.match(rest) else []
    is_call = _STATEMENT.match(label) and _LIKE_CODE.search(label) and is_python(label)
    is_header = _HEADER.fullmatch(label) and is_python(f"{label}\n    pass")
    return ("", [label]) if is_call or is_header else (language, [])


def _markup_blocks(text: str) -> list[_Block]:
    """Return the blocks of other markup that look like code: a program may write markup."""
    if (table := table_program(text)) and is_python(table):
        return [_Block("", table)]
    blocks = [_Block(language, code.strip("\n")) for language, code in markup_blocks(text) or document_blocks(text)]
    return [
        block._replace(code=_dedented(block.code.rstrip().split("\n"), 0))
        for block in blocks
        if _LIKE_CODE.search(block.code)
    ]


def _quoted_blocks(text: str) -> list[_Block]:
    """Return the blocks between other quotation marks; inside of a Python program there is none."""
    if quoted := _QUOTED_PROGRAM.fullmatch(text):
        return [_Block("python", f"{quoted['code'].rstrip()}\n")]
    start, marked = _QUOTED_START.search(text), _OTHER_MARKS.sub(r"\g<before>```", text)
    if (start is None and marked == text) or is_python(text):
        return []
    if start is None:
        return _blocks(marked.split("\n"))
    return [_Block("python", text[start.end() :].partition(f"\n{start['marks']}")[0] + "\n")]


def _written_blocks(text: str) -> list[_Block]:
    """Return the programs that an answer writes to files, or in JSON; other Python programs write none."""
    programs = written_programs(text)
    if not (programs and text.lstrip().startswith(_NO_PYTHON)):
        programs = programs or tagged_blocks(text)
        if programs and is_python(text):
            return []
    return [_Block("", program.strip("\n") + "\n") for program in programs if _LIKE_CODE.search(program)]


def _after_marks(line: str, fence: str, columns: int) -> str | None:
    """Return the text after the marks of a line that ends a block, or starts the next one; None for a line of code.

    The end has at least as many marks as the start, and is not indented like code. `columns`: of the start.
    """
    text = line.strip().strip(f"*_{_INVISIBLE}")
    marks = len(text) - len(text.lstrip(fence[0]))
    if marks < len(fence) or _indent(line) > columns + _MOST_INDENTED:
        return None
    return text[marks:]


def _ends_with_marks(line: str, fence: str) -> bool:
    """Return whether a line of code has the end of the block after it."""
    return line.rstrip().endswith(fence) and bool(line.strip().strip(fence[0]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _dedented(code: list[str], columns: int) -> str:
    """Return the code without the `columns` of its fence, and without further columns that all of its lines have."""
    first = next(line for line in code if line.strip())
    if _indent(first) >= columns:
        code = [line[min(columns, _indent(line)) :] for line in code]
    common = min(_indent(line) for line in code if line.strip())
    return "\n".join([*(line[common:] for line in code), ""])
