"""The `rstar2` command: one file per subcommand, each with `add_arguments(commands)` and `main(args) -> exit code`.

    main.py -> validate  run  report  track  analyse  eval  filter  env  serve  chat  data  judge
                  |        |     |      |       |        `--+-----+---'   `-+-'    |     |     |
                  api  launch evaluation tracking analysis launch           serving data  judge

- `main`: assembles the parser and calls the subcommand.
- `common`: what all subcommands share: parsers, error messages, tables.
- `guard`: the end of a command: its output, and errors that no command handles.
- `evaluation_options`: options and exit codes of `eval` and `filter`.
- `run_view`: the output of `run`, `eval` and `filter`; `terminal_view`: the progress in it, as a panel or as lines.
- `report_tables`, `evaluation_tables`, `data_tables`, `check_view`: the output of `report`, `eval`, `filter`, `data`
  and `env check`; `tables`: tables that fit any terminal.

Modules import heavy libraries only in `main`, so that `rstar2 --help` starts fast.
"""
