"""The program in an answer."""

import json
import textwrap

import pytest

from rstar2_train.rewards.answer_program import answer_program

PROGRAM = "a, b = map(int, input().split())\nprint(a + b)\n"
READ, PRINT = PROGRAM.splitlines(keepends=True)
ADD, CALL = "def add(a, b):\n    return a + b\n", f"{READ}print(add(a, b))\n"
MAIN = "def main():\n    print(sum(map(int, sys.stdin.read().split())))\n"
SHELL = f"cat > a.py << 'EOF'\n{PROGRAM}EOF\npython3 a.py << END\n3 4\nEND\n"
CELL = {"cell_type": "code", "source": [READ, PRINT], "execution_count": None}
NOTEBOOK = json.dumps({"cells": [{"cell_type": "markdown", "source": "# x = 1"}, CELL], "nbformat": 4})


LINES = list(enumerate(PROGRAM.splitlines(), 1))
INDENTED = textwrap.indent(PROGRAM, "   ")
END_TOKENS = ("<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<\uff5cend\u2581of\u2581sentence\uff5c>")
LISTINGS = (
    *("{:3} | ", "/* {} */ ", "<!-- {} --> ", "{{{}}} ", "**{}** ", "line {}: ", "LINE {} - ", "Ln {}: "),
    *("{}> ", "{} >> ", "{}, ", "{}- ", "{} || ", "{} --> ", "{} => ", "{}\u2503", "{}\u250a ", "{}\xa6 "),
)
"""Numbers before the lines of a program."""
PROSE = ("# Notes\n\nIt adds.\n", "Explanation:\n- It reads\n- It adds\n", "Time: O(1)\n", "\u2705 It works.\n")


def _listing(prefix: str) -> str:
    return "".join(f"{prefix.format(number)}{line}\n" for number, line in LINES)


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{PROGRAM}```",
        f"```python3\n{PROGRAM}```",
        f"``` python\n{PROGRAM}```",
        f"```python \n{PROGRAM}```",
        f"```Python\n{PROGRAM}```",
        f"```py\n{PROGRAM}```",
        f"```python 3.11\n{PROGRAM}```",
        f'```python title="a.py" {{1,2}}\n{PROGRAM}```',
        f"```{{.python}}\n{PROGRAM}```",
        f"```{{python}}\n{PROGRAM}```",
        f"```\n{PROGRAM}```",
        f"```python\n{PROGRAM}``` ",
        f"````python\n{PROGRAM}````",
        f"```python\n{PROGRAM}`````",
        f"~~~python\n{PROGRAM}~~~",
        f"~~~\n{PROGRAM}~~~",
        f"```python\n{PROGRAM}",
        f"```python\n{PROGRAM.rstrip()}```",
        f"The program:\n\n```python\n{PROGRAM}```\nIt adds.",
        f"```python\n{PROGRAM}```".replace("\n", "\r\n"),
        f"Input:\n```\n3 4\n```\nProgram:\n```python\n{PROGRAM}```",
        f"```text\n3 4\n```\n```python\n{PROGRAM}```\n```text\n7\n```",
        f"Program:\n```\n{PROGRAM}```\nOutput:\n```\n7\n```",
        f"```python\nprint(0)\n```\nBetter:\n```python\n{PROGRAM}```",
        f"```bash\npip install x\n```\n```\n{PROGRAM}```",
        "1. Add:\n   ```python\n" + "".join(f"   {line}\n" for line in PROGRAM.splitlines()) + "   ```",
        f"Here is my program: ```python\n{PROGRAM}```",
        f"**Program**```\n{PROGRAM}```",
        f"1. ```python\n{PROGRAM}```",
        "- ```python\n" + "".join(f"  {line}\n" for line in PROGRAM.splitlines()) + "  ```",
        "> ```python\n" + "".join(f"> {line}\n" for line in PROGRAM.splitlines()) + "> ```",
        f"```python\n{PROGRAM}```\n```\n```",
        "\t```python\n" + "".join(f"\t{line}\n" for line in PROGRAM.splitlines()) + "\t```",
        f"```python\n{PROGRAM}``` That is all.",
        f"```python\n{PROGRAM}```.",
        f'"```python\n{PROGRAM}```"',
        f"(```python\n{PROGRAM}```)",
        f"\\boxed{{```python\n{PROGRAM}```}}",
        f"```python\n{PROGRAM}```".replace("\n", "\r"),
        "```python\n" + "".join(f"    {line}\n" for line in PROGRAM.splitlines()) + "```",
        "- - ```python\n" + "".join(f"    {line}\n" for line in PROGRAM.splitlines()) + "    ```",
        "- > ```python\n" + "".join(f"  > {line}\n" for line in PROGRAM.splitlines()) + "  > ```",
        "> - ```python\n" + "".join(f">   {line}\n" for line in PROGRAM.splitlines()) + ">   ```",
        f"```\nplan\n\n```python\n{PROGRAM}```",
        f"```python\nx = 1\n\nFinal:\n```python\n{PROGRAM}```",
        f"```python\n{PROGRAM}```\nExample:\n```python\n>>> add(3, 4)\n7\n```",
        "```python " + PROGRAM + "```",
        f"```\npython\n{PROGRAM}```",
        f"```python\npython\n{PROGRAM}```",
        f"````python\n{PROGRAM}```",
        f"```python (Python 3)\n{PROGRAM}```",
        f"```python (solution)\n{PROGRAM}```",
        f"```python\n{PROGRAM}~~~",
        "```python\n" + "".join(f"    {line}\n" for line in PROGRAM.splitlines()) + "    ```",
        f"**```python**\n{PROGRAM}```",
        f"**```python**\n{PROGRAM}**```**",
        f"````markdown\nHere:\n```python\n{PROGRAM}```\n````",
        f"````text\n```python\n{PROGRAM}```\nIt adds.\n````",
        f"```{{code-block}} python\n:linenos:\n:caption: x\n\n{PROGRAM}```",
        f"'''python\n{PROGRAM}'''",
        f'"""Python3\n{PROGRAM}"""\n',
        f"```python\n{PROGRAM}```\nTests:\n```python\nassert add(3, 4) == 7\nprint('passed')\n```",
        f"```python\n{PROGRAM}```\n```python\nimport io, sys\nsys.stdin = io.StringIO('3 4')\nmain()\n```",
        f"```python\n{PROGRAM}```\nOutput:\n```python\n7\n```",
        f"```python\n{PROGRAM}```\n```python\n!pip install numpy\n```",
        f"```\n{PROGRAM}```\nInput:\n```\nn = 3\n```",
        f"```tool_code\n{PROGRAM}```\n```tool_output\n7\n```",
        f"```python\n{PROGRAM}\nThis program reads two numbers and adds them.\n",
        f"```python\n{PROGRAM}\n**Complexity:** O(1)\n- no memory\n",
        f"```python\n{PROGRAM}\nExplanation:\nIt adds.\n",
        f"```python\n{PROGRAM}\N{ZERO WIDTH SPACE}```",
        "```python\n" + "".join(f"{n}. {line}\n" for n, line in enumerate(PROGRAM.splitlines(), 1)) + "```",
        "```python\n" + "".join(f"{n}) {line}\n" for n, line in enumerate(PROGRAM.splitlines(), 1)) + "```",
        "```python\n" + "".join(f"{n:02}  {line}\n" for n, line in enumerate(PROGRAM.splitlines(), 1)) + "```",
        f"`\n{PROGRAM}`",
        f"``python\n{PROGRAM}``",
        f"```python\n{PROGRAM}```\nFaster:\n```python\nimport sys\ninput = sys.stdin.readline\n```",
        f"```\n>>> {READ}3 4\n>>> {PRINT}7\n```",
        f"```pycon\n>>> {READ}>>> {PRINT}```",
        f"```\nIn [1]: {READ}\nIn [2]: {PRINT}7\n```",
        f">>> {READ}>>> {PRINT}",
        f"```bash\n{SHELL}```",
        SHELL,
        f"```sh\ncat <<EOF > a.py\n{PROGRAM}EOF\n```",
        f"```bash\ntee a.py <<'PY' > /dev/null\n{PROGRAM}PY\n```",
        f"```bash\npython3 - <<'PY'\n{PROGRAM}PY\n```",
        f"```python\n%%writefile a.py\n{PROGRAM}```",
        f"```python\nsrc/a.py\n{PROGRAM}```",
        f"```\npythonCopy code\n{PROGRAM}```",
        f"python\nCopy code\n{PROGRAM}",
        f"```python\n!pip install numpy\n%matplotlib inline\n{PROGRAM}```",
        f"```python\n{PROGRAM}\nTime complexity: O(1)\n```",
        f"```python\n{PROGRAM}\nOutput:\n7\n```",
        f"```python\nHere is the program:\n\n{PROGRAM}```",
        f"Here is the program:\n{PROGRAM}\nIt runs in O(1).",
        f"1. Here is the program:\n\n       {READ}       {PRINT}\n2. It adds.",
        f"```diff\n@@ -1,2 +1,2 @@\n {READ}-print(a)\n+{PRINT}```",
        f"*** Add File: a.py\n+{READ}+{PRINT}*** End Patch",
        NOTEBOOK,
        f"```json\n{NOTEBOOK}\n```",
        json.dumps({"language": "python", "code": PROGRAM}),
        f"The program:\n\n\uff40\uff40\uff40python\n{PROGRAM}\uff40\uff40\uff40",
        f"\xb4\xb4\xb4python\n{PROGRAM}\xb4\xb4\xb4",
        f"\u2018\u2018\u2018python\n{PROGRAM}\u2019\u2019\u2019\nIt adds.",
        f"\\`\\`\\`python\n{PROGRAM}\\`\\`\\`",
        f"The program:\n\n'''python\n{PROGRAM}'''\nIt adds.",
        f"<script>\n{PROGRAM}</script>",
        f'<artifact type="code">\n{PROGRAM}</artifact>',
        f"<file>\n<path>\na.py\n</path>\n<content>\n{PROGRAM}</content>\n</file>",
        "```python\n" + "".join(f"{n} - {line}\n" for n, line in enumerate(PROGRAM.splitlines(), 1)) + "```",
        "```python\n" + "".join(f"[{n}] {line}\n" for n, line in enumerate(PROGRAM.splitlines(), 1)) + "```",
        "```python\n" + "".join(f"<{n}> {line}\n" for n, line in enumerate(PROGRAM.splitlines(), 1)) + "```",
        "```python\n" + "".join(f"L{n:03} {line}\n" for n, line in enumerate(PROGRAM.splitlines(), 1)) + "```",
        "```python\n" + "".join(f"{n}: {line}\n" for n, line in enumerate(PROGRAM.splitlines())) + "```",
        f"```python\n12 {READ}13 {PRINT}```",
        f"```diff\n+ {READ}+ {PRINT}```",
        f"```python\n+{READ}+{PRINT}```",
        f"```python\n<<<<<<< SEARCH\n=======\n{PROGRAM}>>>>>>> REPLACE\n```",
        f"```python\n{PROGRAM}\n- Reads two numbers\n- Adds them\n",
        f"```python\n{PROGRAM}\n1. Read two numbers\n2. Add them\n",
        f"```python\n{PROGRAM}\n---\n\nThis works.\n",
        f"```python\n{PROGRAM}\nthis reads two numbers and adds them.\n",
        f"```python\n{PROGRAM}This program reads two numbers and adds them.\n",
        f"```python\n{PROGRAM}\n\u8fd9\u4e2a\u7a0b\u5e8f\uff0c\u8bfb\u53d6\u3002\n",
        f"````\n```python\n{PROGRAM}```\n````",
        f"~~~~\n~~~python\n{PROGRAM}~~~\n~~~~",
        f"```{PROGRAM}```",
        f"{PROGRAM}```",
        f'<div><pre><span></span><code class="python">{PROGRAM}</code></pre></div>',
        f"<pre><code>\n{PROGRAM}",
        f"<think>\nprint(int(input()) + int(input()))\n</think>\n{PROGRAM}",
        f"<thinking mode='long'>\n```python\nx = input()\n```\n</thinking>\n```\n{PROGRAM}```",
        f"<reasoning>\n```python\nx = input()\n```\n</reasoning>\nFinal:\n```\n{PROGRAM}```",
        f"<think>\n```python\nx = int(input())\n</think>\n<analysis>Hm.</analysis>\n```python\n{PROGRAM}```",
        json.dumps({"python": PROGRAM}),
        f"I add.\n</think>\n\n{PROGRAM}",
        f"```python\nx = input()\n```\n</think>\n```\n{PROGRAM}```",
        f"[THINK]I add.[/THINK]\n{PROGRAM}",
        f"<tool_call>\n<function=run>\n<parameter=code>\n{PROGRAM}</parameter>\n</function>\n</tool_call>",
        f'<invoke name="run"><parameter name="code">{PROGRAM}</parameter></invoke>',
        f"<tool_call>\n{json.dumps({'name': 'run', 'arguments': {'code': PROGRAM, 'stdin': ''}})}\n</tool_call>",
        json.dumps([{"type": "function", "function": {"name": "run", "arguments": json.dumps({"code": PROGRAM})}}]),
        json.dumps({"code": PROGRAM.splitlines()}),
        json.dumps(PROGRAM),
        f"code: |\n{INDENTED}",
        f"```yaml\nlanguage: python\nsource_code: |-\n{INDENTED}```",
        f"---\nfiles:\n  - a.py: |\n{textwrap.indent(PROGRAM, '      ')}",
        *(f"{PROGRAM}{token}" for token in END_TOKENS),
        *(f"```python\n{PROGRAM.rstrip()}{token}\n```\n{token}" for token in END_TOKENS),
        f"```python\n{PROGRAM}```<|im_end|>\n<|endoftext|>\n",
        "<table>" + "".join(f"<tr><td>{n}</td><td>{line}</td></tr>" for n, line in LINES) + "</table>",
        "<table>\n" + "".join(f'<tr id="L{n}">\n<td></td>\n<td>{line}</td>\n</tr>' for n, line in LINES),
        "<pre>" + "\n".join(f'<span class="lineno">{n}</span>{line}' for n, line in LINES) + "</pre>",
        *(f"{start}{PROGRAM}\u202c" for start in ("\ufeff", "\u202a", "<|python_tag|>", "<|channel|>final<|message|>")),
        PROGRAM.replace("\n", "\u2028"),
        f"<|box_start|>{PROGRAM}<|box_end|>",
        *(f"{{'code': {json.dumps(PROGRAM)}{end}}}" for end in ("", ",")),
        *(textwrap.indent(PROGRAM, mark, lambda _: True) for mark in ("> ", ">", "| ", "\u2502 ", "\u2022 ", "// ")),
        *(f"{name}\n{PROGRAM}" for name in ("File: a.py", "**a.py**", "`src/a.py`:", "=== a.py ===", "--- a.py ---")),
        *(f"```\n{_listing(prefix)}```" for prefix in LISTINGS),
        *(f"{_listing(prefix)}\n{prose}" for prefix in LISTINGS[:2] for prose in PROSE),
        *(f"```\n{_listing(prefix)}{prose}" for prefix in LISTINGS[:2] for prose in PROSE),
        *(f"```diff\n+{READ}+{PRINT}{prose}" for prose in PROSE),
        *(f"It is:\n--- /dev/null\n+++ b/a.py\n@@ -0,0 +1,2 @@\n+{READ}+{PRINT}\n{prose}" for prose in PROSE),
        *(f"```python\n{PROGRAM}\n{prose}" for prose in PROSE[1:]),
    ],
)
def test_answer_program_reads_every_fence(answer: str) -> None:
    """All forms of a fence, with text and other blocks around it, and of a program without one."""
    program = answer_program(answer)
    assert program is not None and program.rstrip("\n") == PROGRAM.rstrip("\n")


HTML = PROGRAM.replace("print(a + b)", "print(a + b if a &lt; b else &quot;&amp;lt;&quot;)")
PLAIN = PROGRAM.replace("print(a + b)", 'print(a + b if a < b else "&lt;")')


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        (f"<code>\n{PROGRAM}</code>", PROGRAM),
        (f"<pre><code>{PROGRAM}</code></pre>", PROGRAM),
        (f'<pre>\n<code class="language-python">\n{HTML}</code>\n</pre>\nIt adds.', PLAIN),
        (f'<pre lang="python">{HTML}</pre>', PLAIN),
        (f"Program: <code>print(1)</code>\n<code>{PROGRAM}</code>", PROGRAM),
        (f"<code>pip install x</code>\n<code>\n{PROGRAM}", PROGRAM),
        ("<code>" + PROGRAM.rstrip().replace("\n", "<br>") + "</code>", PROGRAM),
        ("<code>\n" + PROGRAM.replace("\n", "<br />\n") + "</code>", PROGRAM),
        ("<code>if 1:<br>&nbsp;&nbsp;&nbsp;&nbsp;print(&#34;a&#x3c;b&#34;)</code>", 'if 1:\n    print("a<b")\n'),
        ('<pre><code><span class="nb">print</span>(<span class="mi">1</span>)</code></pre>', "print(1)\n"),
        (f"```html\n<pre><code>\n{HTML}</code></pre>\n```", PLAIN),
        (f"````latex\n\\begin{{lstlisting}}\n{PROGRAM}\\end{{lstlisting}}\n````", PROGRAM),
        (f"<solution>\n{PROGRAM}</solution>", PROGRAM),
        (f"<python_code>\n{PROGRAM}</python_code>\nIt adds.", PROGRAM),
        (f"[PYTHON]\n{PROGRAM}[/PYTHON]", PROGRAM),
        (f"[code=python]{PROGRAM}[/code]", PROGRAM),
        (f"\\begin{{lstlisting}}[language=Python]\n{PROGRAM}\\end{{lstlisting}}", PROGRAM),
        (f"\\begin{{lstlisting}}[language=Python, caption={{Add}}]\n{PROGRAM}\\end{{lstlisting}}", PROGRAM),
        (f"\\begin{{Verbatim}}[commandchars=\\\\\\{{\\}}]\n{PROGRAM}\\end{{Verbatim}}", PROGRAM),
        (f"<code><![CDATA[\n{PLAIN}]]></code>", PLAIN),
        (f"{{noformat}}\n{PROGRAM}{{noformat}}", PROGRAM),
        (f"\\begin{{verbatim}}\n{PROGRAM}\\end{{verbatim}}", PROGRAM),
        (f"\\begin{{minted}}[linenos]{{python}}\n{PROGRAM}\\end{{minted}}", PROGRAM),
        (f"\\begin{{python}}\n{PROGRAM}\\end{{python}}", PROGRAM),
        (f"<syntaxhighlight lang='python3'>\n{PROGRAM}</syntaxhighlight>", PROGRAM),
        (f"Program:\n\n.. code-block:: python\n   :linenos:\n\n{INDENTED}\nIt adds.", PROGRAM),
        (f".. code:: python\n\n{INDENTED}", PROGRAM),
        (f"The program::\n\n{INDENTED}\nIt adds.", PROGRAM),
        (f"Input::\n\n   3 4\n\n.. sourcecode:: python3\n\n{INDENTED}", PROGRAM),
        (f"* Program\n#+BEGIN_SRC python :results output\n{PROGRAM}#+END_SRC\nIt adds.", PROGRAM),
        ("#+begin_src python\nprint(2\n,* 3)\n#+end_src\n#+begin_example\n6\n#+end_example", "print(2\n* 3)\n"),
        (f"[source,python]\n----\n{PROGRAM}----\nIt adds.", PROGRAM),
        (f"{{code:python}}\n{PROGRAM}{{code}}\nIt adds.", PROGRAM),
        (
            f"The input is:\n\n    3 4\n\nThe program is:\n\n {INDENTED.replace(chr(10), chr(10) + ' ')}\nIt adds.",
            PROGRAM,
        ),
        ("It reads two, and adds.\n\n\ta = int(input())\n\tprint(a)\n", "a = int(input())\nprint(a)\n"),
        (f"```rst\n.. code:: python\n\n{INDENTED}```", PROGRAM),
        (f"<code class='lang-cpp'>if (a) print(b);</code>\n<code class='lang-py'>{PROGRAM}</code>", PROGRAM),
        (f"```python\n{PROGRAM}```\nor <code>print(0)</code>", PROGRAM),
        (f"```python\n{HTML}```", PLAIN),
        (f"```python\n{READ}```\nPrint it:\n```python\n{PRINT}```", f"{READ}\n{PRINT}"),
        ("```python\nif 1:\n\N{NO-BREAK SPACE}print(1)\n```", "if 1:\n print(1)\n"),
        (f"```python\n{ADD}```\nMain program:\n```python\n{CALL}```", f"{ADD}\n{CALL}"),
        (f"```python\n{CALL}```\nwith\n```python\n{ADD}```", f"{ADD}\n{CALL}"),
        (
            f"```python\nimport sys\n```\n```python\n{MAIN}```\n```python\nmain()\n```",
            f"import sys\n\n{MAIN}\nmain()\n",
        ),
        (f"```python\n{MAIN}```\n```python\nassert add(3, 4) == 7\n```", MAIN),
        (f"```python\n{PROGRAM}```\nBetter:\n```python\n{ADD}{CALL}```", ADD + CALL),
        (f"```python\n{CALL}```\n```diff\n@@ -9 +9 @@\n-a\n+{CALL}```", CALL),
        (f"```diff\n@@ -9 +9 @@\n a\n+{PRINT}```", f"@@ -9 +9 @@\n a\n+{PRINT}"),
        ("```python\nx = a &lt; b\n```", "x = a &lt; b\n"),
        (f"```{ADD}{CALL}```", ADD + CALL),
        ("```for i in range(2):\n    print(i)\n```", "for i in range(2):\n    print(i)\n"),
    ],
)
def test_answer_program_reads_other_markup(answer: str, program: str) -> None:
    """Blocks of HTML, LaTeX, BBCode and documents, if the answer has no fence; and programs of several fences."""
    assert answer_program(answer) == program


@pytest.mark.parametrize(
    "program",
    [
        'print("<code>a</code>")\n',
        's = """\n<pre>\nx\n</pre>\n"""\n',
        "d[code] = 1\nprint(d)\n",
        "x = [code]\nprint(x)\n",
        "s = s.replace('<code>', '')\nprint(s)\n",
        "a = 1 if x <code> y else 2\nprint(a)\n",
        '"""Adds.\n\nExample::\n\n    print(add(1, 2))\n\n.. code:: python\n\n    print(3)\n"""\nprint(1)\n',
        "def f():\n    '''Use::\n\n        print(1)\n    '''\n",
        's = """\n<a>\nx = 1\n</a>\n"""\n',
        's = """\ncat > a.py << END\nx = 1\nEND\n"""\n',
        "'''python\nx = 1\n'''\nprint(1)\n",
        's = """\n\xb4\xb4\xb4\nx = 1\n\xb4\xb4\xb4\n"""\n',
        's = """\n!pip install x\n>>> x = 1\nThis text is one.\n"""\n',
        '{"a": 1}\n',
        '"""<a>\nx = 1\n</a>"""\nprint(1)\n',
        "s = '''\n</think>\n'''\nprint(s)\n",
        "s = '''\ncode: |\n  x = 1\n'''\nprint(s)\n",
        "s = '''<tr><td>x = 1</td></tr>\n<tr><td>x = 2</td></tr>'''\nprint(s)\n",
        "print('<|im_end|>')\n",
        "x = '''\n1 | y = 1\n2 | y = 2\n'''\nprint(x)\n",
    ],
)
def test_answer_program_keeps_markup_of_a_program(program: str) -> None:
    """A program without a fence may write markup."""
    assert answer_program(program) is None


@pytest.mark.parametrize("program", ['print("<br>")', "print('<span class=\"a\">b</span>')", "print(a&lt, '&lt')"])
def test_answer_program_keeps_html_in_texts_of_a_block(program: str) -> None:
    """A tag in quotation marks and a name after `&` are parts of the program."""
    assert answer_program(f"<code>{program}</code>") == f"{program}\n"


def test_answer_program_without_fence_is_none() -> None:
    """Text that only resembles a fence is none."""
    assert answer_program(PROGRAM) is None
    assert answer_program("x = '```'\nprint(x)") is None
    for text in ("A b, " * 30_000, "\n\nA" + "b" * 100_000, "``x`" * 30_000, "`" + "x\n" * 50_000):
        answer_program(text)
        answer_program(f"```\n\n{text}")
    for text in ("'''python\nis a language'''\nprint(1)", "print('''python\n''')", "'''\nprint(1)\n'''"):
        assert answer_program(text) is None


@pytest.mark.parametrize(
    "prefix", ["{} | ", "{}| ", "{}|", "{}: ", "{}:", "{}\t", "{} \u2502 ", "{}\u2192", "L{}: ", "Line {}: "]
)
def test_answer_program_removes_line_numbers(prefix: str) -> None:
    """Numbers that count the lines from 1 are no code, with a fence or without, also before empty lines."""
    code = "if 1:\n    a = 1\n\n    print(a)\n"
    listing = "".join(f"{prefix.format(number)}{line}\n" for number, line in enumerate(code.splitlines(), 1))
    assert answer_program(f"```python\n{listing}```") == code
    assert answer_program(listing) == code


def test_answer_program_keeps_numbers_of_a_program() -> None:
    """Numbers that do not count the lines from 1 are code."""
    text = 'x = """\n\nThis text is one.\n"""\nx = 1.\n\nX = 2.\n'
    assert answer_program(f"```python\n{text}") == f"{text}\n"
    for code in ("L1 = 5\nL2 = 6\nprint(L1)\n", "5 | print(1)\n6 | print(2)\n", "+ print(1)\n+ print(2)\n"):
        assert answer_program(f"```python\n{code}```") == code


def test_answer_program_keeps_assignments_of_a_block_without_end() -> None:
    """Names with a comma between them are no prose, also in capitals."""
    for line in ("N, M = map(int, input().split())", "a, b, c = 1, 2, 3", "A, B, C = C, A, B"):
        assert answer_program(f"```python\nimport sys\n\n{line}\nprint(1)\n") == f"import sys\n\n{line}\nprint(1)\n\n"


def test_answer_program_keeps_numbers_that_do_not_count() -> None:
    """Numbers in another order, and those of a dictionary, are code."""
    code = "2 | print(1)\n1 | print(2)\n"
    assert answer_program(f"```python\n{code}```") == code
    assert answer_program("x = {\n1: 2,\n2: 3,\n}\nprint(x)\n") is None


def test_answer_program_reads_a_diff_that_only_adds() -> None:
    """A diff that removes or keeps lines and is not from line 1 stays as it is: the rest of its program is missing."""
    added = "".join(f"+{line}\n" for line in PROGRAM.splitlines())
    head = "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1,2 @@\n"
    assert answer_program(f"```diff\n{head}{added}```") == PROGRAM
    assert answer_program(f"```diff\n{added}\\ No newline at end of file\n```") == PROGRAM
    assert answer_program(f"```diff\n{added}```") == PROGRAM
    assert answer_program(f"```diff\n-x\n{added}```") == f"-x\n{added}"
    assert answer_program(f"<program>\n{PROGRAM}</program>") == PROGRAM


def test_answer_program_keeps_other_fences_in_the_code() -> None:
    """A fence of another kind, or a shorter one, is part of the program."""
    code = "print('''\n~~~\n```\n''')\n"
    assert answer_program(f"````python\n{code}````") == code


@pytest.mark.parametrize(
    "answer",
    [
        "`print(1)`", "``print(1)``", "```print(1)```", "```python print(1)```", r"\mintinline{python}{print(1)}",
        r"\mintinline[breaklines]{python}|print(1)|", r"\lstinline[language=Python]!print(1)!", r"\verb|print(1)|",
    ],
)  # fmt: skip
def test_answer_program_reads_a_span(answer: str) -> None:
    """An answer that is one code span is the program of the span; a span in a sentence is no program."""
    assert answer_program(answer) == "print(1)\n"
    assert answer_program(f"Run {answer}.") is None


def test_answer_program_keeps_fences_in_texts_of_the_code() -> None:
    """A fence that is indented like code is part of it, and lines of a text may be indented less than the code."""
    code = 'def add():\n    """\n    ```\n    add()\n    ```\n    """\n\n\nadd()\n'
    assert answer_program(f"```python\n{code}```") == code
    assert answer_program('  ```python\n  s = """\na\n"""\n  print(s)\n  ```') == 's = """\na\n"""\nprint(s)\n'
    assert answer_program("  ```python\nif 1:\n  print(1)\n  ```") == "if 1:\n  print(1)\n"
    for fence in ("```", "```python"):
        code = f"s = '''\n{fence}\nx = 1\n```\n'''\nprint(s)\n"
        assert answer_program(f"It is:\n```python\n{code}```\nIt prints.\n```\n{fence}\n```") == code
    assert answer_program(f"```python\ns = '''x\n```\n```python\n{PROGRAM}```") == PROGRAM
