"""The `rstar2` command: one file per subcommand, each with `add_arguments(commands)` and `main(args) -> exit code`.

    main.py -> validate  run  report  track  analyse  eval  filter  env  serve  chat  data  judge
                  |        |     |      |       |        `--+-----+---'   `-+-'    |     |     |
                  api  launch evaluation tracking analysis launch           serving data  judge

- `main`: assembles the parser and calls the subcommand.
- `common`: what all subcommands share: parsers, error messages, tables.
- `evaluation_options`: options and exit codes of `eval` and `filter`.
- `evaluation_tables`, `data_tables`, `check_view`: what `eval`, `filter`, `data` and `env check` print.

Modules import heavy libraries only in `main`, so that `rstar2 --help` starts fast.
"""
