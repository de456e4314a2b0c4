"""Converts and cleans public datasets for training, and reports each removed row (`rstar2 data`, paper §4.1 and §4.2).

    cli/data ──> files: data files of a name
       │
       ├──> inspect ──────┐
       │                  v
       └──> pipeline ──> layouts ──> conversations ──> call_syntax
       │       │            ├──────> benchmarks
       │       │            └──────> records (rows, rules)
       │       ├──> answer_rules
       │       ├──> decontaminate ────┐
       │       ├──> near_duplicates ──┴──> normalize
       │       └──> report: counts and examples of removed rows
       └──> cli: the tables of the terminal

Modules:

- `pipeline`: the two passes over the rows, the cache of converted files, and the output folder.
- `inspect`: columns and statistics of a data file.
- `files`: finds the data files of a name on the command line.
- `layouts`, `conversations`: convert a row of a known dataset to a row of this project.
- `call_syntax`: parses the tool calls and tool signatures of those datasets.
- `answer_rules`, `decontaminate`, `near_duplicates`: the rules that remove rows.
- `normalize`: the words of a text, for comparisons.
- `records`: the shared types, and the names of the rules.
- `config`: the thresholds of the rules.
- `report`: counts removed rows per rule.
"""
