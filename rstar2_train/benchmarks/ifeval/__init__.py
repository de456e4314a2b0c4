"""IFEval: requests with instructions that programs check (arXiv 2311.07911), in place of a known answer.

    layout ──> rows with `instructions`        answers ──> instructions ──> instruction_checkers ──> sentences, language
    figures ──> instructions                      └──> visible_text

- `answers`, `layout`, `figures`: the plug-in.
- `instructions`: the instructions of a row, and the outcome of each.
- `instruction_checkers`: one program per kind of instruction; `sentences`, `language`: the properties that they count.
- `visible_text`: the part of a response that is checked.
"""
