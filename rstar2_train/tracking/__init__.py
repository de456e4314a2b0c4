"""Tracking: the metrics, traces and artifacts of a job, written to a journal and sent to MLflow.

    orchestrator, launch ──> tracker ──> journal (journal.jsonl in the state directory)
           │                   │              │ read from the last sent offset
           ├──> metrics        └──> traces    v
           │    (of a step)              shipper ──> mlflow_sink ──> MLflow
           └──> traces                   (a process of its own)
                (selection)

A writer never waits for MLflow and never fails because of it.

Modules:

- `tracker`: writes runs, parameters, metrics, traces and artifacts as events.
- `journal`: the append-only file of events.
- `metrics`: computes the metrics of a GRPO step.
- `traces`: converts trajectories to traces, and selects those to send.
- `shipper`: the process that sends the journal, with retries.
- `mlflow_sink`: applies events to an MLflow server.
"""
