"""Decides whether two answers of mathematics and science are equal.

`verify(known, answer)` reads both texts into typed values (`grammar`), and compares them by type (`compare`). Modules,
from below: `tree`, `lexicon`, `units`, `tokens`, `words`, `events`, `cursor`, `commands`, `grammar` read a text;
`exact`, `evaluator`, `values`, `expressions` compute; `real_sets`, `families`, `constants`, `shapes`, `labels`,
`amounts`, `declarations`, `texts`, `chemistry`, `alike`, `compare` compare; `verifier` decides.
"""

from .verifier import Verdict, is_choice, verify

__all__ = ["Verdict", "is_choice", "verify"]
