"""Rewards: the verdict on a finished response, from the text that the model wrote.

    rollout.scoring
      |
      v                     checkers and tests in the sandbox
    task_rewards -----------> tools.sandbox_program
      |       '-------------> quantity
      |                           known answer
      v                     .---> verify ----> extract     the answer in the response
    grade ------------------|       '--- equality_program ---> rstar2_verify    comparison by type, in the sandbox
                            |
                            '---> answer_forms ---> benchmarks with another form of answers (IFEval)

Modules:

- `task_rewards`          the rewards of a job (`spec.rewards`), among them users' checkers
- `answer_program`        the program in an answer, for `Tests`
- `markup_blocks`         code blocks of HTML, LaTeX and BBCode
- `document_blocks`       code blocks of reStructuredText, Org, AsciiDoc and Jira
- `program_files`         programs in here documents, notebooks and JSON
- `program_parts`         programs of several blocks
- `line_prefixes`         line numbers and signs of diffs
- `clean_code`            what surrounds a program in its block: file names, prompts, magics, prose
- `quantity`              numbers with units
- `grade`                 selects the verifier of a problem
- `verify`                compares an answer with the gold answer
- `extract`               finds the answer block and the box
- `equality_program`      the program for the sandbox that compares two answers
- `answer_forms`          gold answers that a benchmark brings in its own form
- `verdict`               the possible verdicts, and the grade of a response
"""
