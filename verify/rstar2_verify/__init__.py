"""Decides whether two answers of mathematics and science are equal.

`verify(known, answer)` reads both texts into typed values (`grammar`), and compares them by type (`compare`). Modules,
from below: `tree`, `lexicon`, `units`, `signs`, `extract`, `dates`, `numerals`, `scanner`, `tokens`, `words`, `events`,
`cursor`, `unit_grammar`, `names`, `functions`, `commands`, `expression_grammar`, `grammar` read a text; `exact`,
`evaluator`, `values`, `expressions` compute; `real_sets`, `pieces`, `families`, `constants`, `shapes`, `labels`,
`amounts`, `declarations`, `texts`, `sentences`, `chemistry`, `alike`, `compare` compare; `preparation` and `verifier`
decide. `limited` is the entry point in a sandbox, `measures` reads one number for a comparison with tolerances, `known`
checks known answers, `cli` and `math_verify` are for programs and people.
"""

from .measures import read_measure
from .units import written
from .verifier import Verdict, is_choice, verify

__all__ = ["Verdict", "is_choice", "read_measure", "verify", "written"]
