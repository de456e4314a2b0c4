"""`rstar2 run`: a whole job on this machine.

- `preflight`: checks before anything starts; the job's state folder and its lock.
- `upload`: the state of a run in a bucket (`launch/state_upload.py`), with errors before anything starts.
- `services`: command lines and probes of the child processes.
- `run`: the stages, their attempts, suspend and resume, the report.
- `run_view`: the interface of the output of a run (`cli/run_view.py` has the terminal's).

    cli/run.py -> run -> preflight
                   |---> upload -> storage
                   |---> services -> Supervisor -> judge, engines, orchestrator, tracking
                   `---> run_view <- cli/run_view.py
"""
