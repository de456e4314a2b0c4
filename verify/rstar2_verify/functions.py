"""Parses functions with their arguments: roots, sums, integrals, matrices, calls of SymPy. Standard library only."""

from __future__ import annotations

import functools

from .lexicon import FUNCTIONS
from .names import NameParser
from .tree import MINUS_ONE, Node, ParseError, integer, matrix

BINDERS = {"sum": "sum", "prod": "prod", "lim": "lim", "int": "int", "oint": "int", "iint": "int", "max": "max"}
_ENDING = frozenset(["x", "y", "z", "t", "s", "r", "u", "v"])
_ENDING_GREEK = frozenset(["theta", "phi", "alpha", "beta", "gamma", "psi", "epsilon"])
"""Variables that end the argument of a function before a thin space."""
PYTHON = {
    "Rational": "div", "Interval": "interval", "Union": "union", "FiniteSet": "set", "Eq": "=", "Ne": "!=", "Le": "<=",
    "Lt": "<", "Ge": ">=", "Gt": ">", "Pow": "pow", "Mul": "mul", "Add": "add",
}  # fmt: skip
"""Functions of SymPy -> kind of the node."""


_ALIGNED = ("aligned", "align", "gathered", "split")
_RELATIONS = frozenset(["=", "<", ">", "<=", ">=", "!=", "\\in", "~"])


class FunctionParser(NameParser):
    """A position in a list of tokens, and the functions that can be at it."""

    def function(self, name: str) -> Node:
        """Parse the exponent, the base and the argument of a known function."""
        exponent: Node | None = None
        base: Node | None = None
        if name in ("sqrt", "cbrt"):
            return self._root(integer(2 if name == "sqrt" else 3))
        if name == "log" and self.token.kind == "number" and not self.token.gap and self.ahead().text == "(":
            base = self.take().node  # `log2(5)`
        while self.is_sign("^", "_"):
            if self.take().text == "^":
                exponent = self.argument(whole_number=True)
            else:
                base = self.argument(whole_number=self._starts_operand(self.at + 1))  # `\\log_10 5`, but `\\log_23`
        if not (self.is_sign("(", "[", "{", "|", "-", "+") or self.starts_factor()):
            return Node("text", text=name)  # the word `max`
        if self.is_sign("(", "[", "{", "|"):
            inner = self.operand()
        elif self.is_sign("-", "+"):
            inner = Node("neg", (self._implicit_product(),)) if self.take().text == "-" else self._implicit_product()
        else:
            inner = self._implicit_product()
        parts: tuple[Node, ...] = inner.parts if inner.kind in ("tuple", "set", "interval") else (inner,)
        if name == "lg":
            name, base = "log", integer(10)
        if name == "log" and len(parts) == 2 and base is None:
            base, parts = parts[-1], parts[:1]
        inverse = next((prefix + name for prefix in ("arc", "ar") if prefix + name in FUNCTIONS), "")
        if exponent == MINUS_ONE and inverse:
            return Node("call", parts, inverse)
        node = Node("call", (*parts, base) if base is not None else parts, name)
        return node if exponent is None else Node("pow", (node, exponent))

    def _starts_operand(self, at: int) -> bool:
        """Return whether the token at a position starts the argument of a function."""
        token = self.tokens[min(at, len(self.tokens) - 1)]
        return token.kind not in ("sign", "end") or token.text in ("(", "[", "{", "|", "^")

    def _implicit_product(self) -> Node:
        """Parse the argument of a function without parentheses, up to a sign, another function or a thin space."""
        node = self.mixed_number()[0]
        while self.starts_factor() and not (self.token.kind == "command" and self.token.text in FUNCTIONS):
            if self.is_sign("(", "[", "|") or (self.token.gap == 2 and self._ended_by_variable()):
                break
            node = Node("mul", (node, self.mixed_number()[0]))
        return node

    def _ended_by_variable(self) -> bool:
        """Return whether the last token is a variable, or its exponent."""
        at = self.at - 1
        while at > 0 and (self.tokens[at].text in ("}", "{", "^") or self.tokens[at].kind == "number"):
            at -= 1
        token = self.tokens[at]
        return (token.kind == "letter" and token.text in _ENDING) or (token.text in _ENDING_GREEK)

    def _root(self, index: Node) -> Node:
        if self.skip("["):
            index = self.sum()
            self.expect("]")
        plain = self.token.kind == "number"
        inner = self.operand() if self.is_sign("(") else self.argument(whole_number=plain)
        return Node("root", (inner, index))

    def _binder(self, kind: str) -> Node:
        """Parse a sum, a product, a limit or an integral with its variable and its bounds."""
        if not self.is_sign("_", "^") and kind != "int":
            return self.name(kind)
        low = high = variable = None
        while self.is_sign("_", "^"):
            if self.take().text == "^":
                high = self.argument(whole_number=True)
            else:
                low = self.argument(whole_number=True)
        if kind == "int":
            self.integrals += 1
            body = integer(1) if self.token.text == "d" else self.sum()
            self.integrals -= 1
            if self.token.text != "d":
                raise ParseError("an integral without its variable")
            self.take()
            variable = self.operand()
            bounds = (low, high) if low is not None and high is not None else ()
            return Node("bind", (body, variable, *bounds), "int")
        if low is not None and low.kind == "relation" and low.parts[0].kind in ("name", "constant"):
            variable, low = low.parts[0], low.parts[1]
        if variable is None:
            raise ParseError("a sum without its variable")
        body = self._bound_body()
        return Node("bind", (body, Node("name", text=variable.text), low or integer(0), high or integer(0)), kind)

    def _bound_body(self) -> Node:
        node = self.mixed_number()[0]
        while self.is_sign("*", "\\times", "/") or self.starts_factor():
            kind = "div" if self.skip("/") else "mul"
            self.skip("*", "\\times")
            node = Node(kind, (node, self.mixed_number()[0]))
        return node

    def _environment(self, name: str) -> Node:
        """Parse a matrix, cases, or an aligned list of statements."""
        rows: list[Node] = []
        cells: list[Node] = []
        self.rows += 1
        self._align(name)
        while True:
            if self.token.kind == "command" and self.token.text == f"\\end {name}":
                self.take()
                if cells:
                    rows.append(Node("row", tuple(cells)))
                break
            if self.skip("\\\\"):
                rows.append(Node("row", tuple(cells)))
                cells = []
            elif self.is_sign("=") and rows and not cells:
                chain = rows.pop().parts[-1]
                step, chained = self.statement(), chain.kind == "relation"
                cells = [Node("relation", (*(chain.parts if chained else (chain,)), step), f"{chain.text * chained} =")]
            elif not self.skip("&", ",", "\\quad"):
                if name == "cases" and self.token.kind == "word" and self.token.text.lower() in ("if", "for", "when"):
                    self.take()
                cells.append(self.statement())
        self.rows -= 1
        if not rows or not all(row.parts for row in rows):
            raise ParseError("an empty matrix")
        if name == "vmatrix":
            return Node("call", (Node("matrix", tuple(rows), "matrix"),), "det")
        if name.endswith("matrix") or (name == "array" and not all(row.parts[0].kind == "relation" for row in rows)):
            return Node("matrix", tuple(rows), "matrix")
        if name in ("cases", "array", *_ALIGNED):
            if len(rows) == 1 and rows[0].parts[0].kind == "relation":
                return rows[0].parts[0]
            statements = [row.parts[0] for row in rows if len(row.parts) == 1 and row.parts[0].kind == "relation"]
            if 1 < len(statements) == len(rows):
                return Node("list", tuple(statements), " ".join(["and"] * (len(rows) - 1)))
            return Node("matrix", tuple(rows), "cases")
        raise ParseError(f"unknown environment {name}")

    def _align(self, name: str) -> None:
        """Drop the marks that align relations: `x &= 1`."""
        end = next((at for at in range(self.at, len(self.tokens)) if self.tokens[at].text == f"\\end {name}"), self.at)
        if name in _ALIGNED:
            self.tokens[self.at : end] = [
                token
                for at, token in enumerate(self.tokens[self.at : end], self.at)
                if token.text != "&" or not {self.tokens[at - 1].text, self.tokens[at + 1].text} & _RELATIONS
            ]

    def _python(self, name: str) -> Node:
        """Parse a call of Python or SymPy by its arguments."""
        mode = ""
        while self.token.kind in ("word", "letter"):
            mode += self.take().text
        self.expect("(")
        self.skip("[")
        inner = self.sequence()
        while self.skip("]", ","):
            if self.is_sign(")"):
                break
        self.expect(")")
        parts = inner.parts if inner.kind in ("list", "tuple") else (inner,)
        if name == "Matrix":
            rows = [row.parts if row.kind in ("tuple", "interval", "list") else (row,) for row in parts]
            return matrix(rows)
        if name == "diag":
            places = range(len(parts))
            return matrix(tuple(parts[at] if at == place else integer(0) for at in places) for place in places)
        if name == "Piecewise":
            rows = [row.parts for row in (parts if parts[0].kind == "tuple" else (inner,))]
            last = Node("text", text="otherwise")
            return matrix(((row[0], last if row[-1].text.lower() == "true" else row[-1]) for row in rows), "cases")
        if name in ("factorial", "permutations", "binomial"):
            return Node("call", parts, {"binomial": "binom"}.get(name, name))
        if name == "FiniteSet":
            return Node("set", parts)
        if name == "Interval":
            flags = [part.text for part in parts[2:]]
            opened = [len(flags) > at and "T" in flags[at] for at in range(2)]
            left, right = opened[0] or mode in ("open", "Lopen"), opened[1] or mode in ("open", "Ropen")
            return Node("interval", parts[:2], ("(" if left else "[") + (")" if right else "]"))
        if name in ("Union", "Add", "Mul"):
            return functools.reduce(lambda node, part: Node(PYTHON[name], (node, part)), parts)
        if name == "sympyroot":
            return Node("root", parts)
        if len(parts) < 2 or name in ("Poly", "Integer"):
            return parts[0]
        kind = PYTHON[name]
        return Node(kind, parts) if kind in ("div", "pow") else Node("relation", parts[:2], kind)
