"""Equality of two answers: a LaTeX parser and a comparison. The package runs in the judge's sandbox.

    main (check) ---> compare ---> notations     one notation for both texts
                         |------> latex ---> commands, events ---> tokens   text -> tree of nodes
                         |------> shapes         one shape for both trees
                         |------> expressions ---> values ---> exact, evaluator   values of trees
                         '------> real_sets      intervals and inequalities

Modules:

- `check`        the entry point: CPU limit, verdict of the pairs
- `compare`      the rules of equality, on trees
- `notations`    rewrites texts: unit vectors, integer parameters
- `shapes`       rewrites trees: vectors, matrices, plus-minus signs
- `expressions`  equal values, rounded decimals, factors of equations
- `real_sets`    unions of intervals
- `labels`       removes `x =` and `f(x) =`
- `constants`    arbitrary constants
- `integer_families`  infinite sets with an integer parameter, congruences
- `values`       equality of two values
- `exact`        values as fractions
- `evaluator`    values with many digits at sample points
- `latex`        the parser: sums, products, brackets, relations
- `commands`     the parser of LaTeX commands
- `events`       events of a probability: `P(A|B)`
- `tokens`       the tokens of a text, and the nodes of a tree

It imports the standard library and mpmath; math_verify only for an operator that its parser does not read (an
integral, a limit). `rewards.equality_program` puts its files into the program that the judge runs, or installs them in
a sandbox ahead of the calls. The modules import each other relatively, because a sandbox has the package under another
name. `check.main` is the only entry point.
"""
