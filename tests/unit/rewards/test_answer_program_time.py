"""The time that the search for the program in an answer takes."""

from rstar2_train.rewards.answer_program import answer_program


def test_answer_program_reads_hostile_text_in_linear_time() -> None:
    """No text takes more than linear time."""
    for text in ("`" * 100_000, "```\n" * 30_000, "~~~ " * 30_000, " " * 100_000 + "```", "```x " + "=" * 100_000):
        answer_program(text)
    for text in (
        "<code>" * 50_000,
        "<pre " * 50_000,
        "[code=" * 50_000,
        r"\begin{minted}{a}" * 20_000,
        "<pre><code>" * 30_000,
    ):
        answer_program(text)
    for text in ("::\n\n a\n" * 30_000, ".. code::\n" * 30_000, "#+begin_src\n" * 30_000, "[source]\n----\n" * 20_000):
        answer_program(text)
    for text in (r"\verb|" * 20_000, r"\mintinline{a}{" * 20_000, "{code:\n" * 30_000, "::\n" + " :a:\n" * 30_000):
        answer_program(text)
    for text in ("A b:\n\n    c\n" * 20_000, "A b:\n" * 30_000, "A" + " b" * 50_000, "A b:\n\n" + "    c\n" * 20_000):
        answer_program(text)
    for text in ("<think>" * 30_000, "<think>x</think>\n" * 9_000, "<pre><span></span>" * 20_000, "```a(b)\n" * 20_000):
        answer_program(text)
    for text in ("```python\n'''\n```\n" * 9_000, "```python\n'''\n" + "```\n" * 30_000):
        answer_program(text)
    for text in ("'''python\n" * 30_000, "'''py\n" + "''' " * 50_000 + "x", "```python " + "(" * 100_000):
        answer_program(text)
    for text in ("cat > a.py <<E\n" * 9_000, "<a>\n</a>\n" * 9_000, '{"a":' * 50_000, "```\nx = y\n```\n" * 5_000):
        answer_program(text)
    for text in (
        "[{" * 50_000,
        "</think>\n" * 20_000,
        "<|im_end|>" * 30_000,
        "<tr><td>" * 20_000,
        "<td>x</td>" * 20_000,
    ):
        answer_program(text)
    for text in ("1 x\n2 y\n" * 20_000, "+x\n y\n" * 20_000, "code: |\n  x\n" * 20_000, "<span lineno" * 20_000):
        answer_program(text)
    for text in ("> x\n" * 30_000, "<|a|>" * 30_000, "{'a':" * 30_000, "-" * 100_000 + "\nx", "a-." * 30_000 + "\nx"):
        answer_program(text)
    spaces = " " * 100_000
    for text in (f"-{spaces}x", f"```{spaces}`", "- " * 50_000, ">" * 100_000, "`x" * 50_000, "```a\n" * 30_000):
        answer_program(text)
