"""BFCL v3: calls of functions in one turn. The template `calls` (`data/templates/calls`) checks the calls.

    layout ──> conversion        figures ──> the categories of `conversion`

- `layout`, `figures`: the plug-in.
- `conversion`: the rows of the benchmark's package as rows of this project.
"""
