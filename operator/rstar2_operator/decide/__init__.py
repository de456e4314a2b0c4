"""The policies: what a job should have now, as a pure function of the job, the observed objects and the time.

    reconcile.py ──> decide.py ──Decision──> builders/ ──> apply.py
         │              │  POLICIES, one file each, named after the field of the spec:
         │              ├─ ttl_after_finished.py, active_deadline.py, suspend.py, pending_deadline.py, storage.py
         │              ├─ repeated_preparation.py  preparations whose Job was deleted, or whose pods are rejected
         │              ├─ deletion.py            ordered deletion, held by a finalizer
         │              ├─ deletion_blocked.py    pods of objects that a finalizer of others keeps
         │              ├─ kueue.py               quota of a queue, eviction, assigned nodes
         │              ├─ node_loss.py           pods of nodes that do not report, or are faulty and closed
         │              ├─ failure_policy.py      restarts and backoff; disruption.py: evictions and drains
         │              ├─ deleted_attempt.py     attempts whose Job another client has deleted
         │              ├─ orchestrator_exit.py   attempts that have ended, and whose pods do not exit
         │              ├─ stuck.py               attempts without progress
         │              ├─ shared_secret.py       loss of the job's Secret
         │              ├─ pod_termination.py     pods of at most one attempt at any time
         │              ├─ finalize.py            the report Job before the end
         │              └─ attempt.py             the attempt that runs, or the next one
         ├──> pruning.py: objects to delete; invalid_spec.py: those of a job with an invalid spec
         └──> status.py ──> conditions.py ──> diagnostics.py: problems; advice.py: what to do
                  └───────> events.py: Events from two statuses (called by status_writer.py)

A policy is a function `(facts) -> Decision | Defer | None`. To add one, write its file and enter it in `POLICIES`.
`facts.py` has its argument, `decision.py` its result; `stage_progress.py` and `restarts.py` read position and restarts.
Nothing here calls the API server, reads a clock or keeps state between two calls.
"""
