"""The policy: what a job should have now, as a pure function of the job, the observed objects and the time.

    reconcile.py ──> decide.py ──Plan──> builders/ ──> apply.py
         │              │
         │              ├─ suspend.py             spec.suspend
         │              ├─ active_deadline.py     spec.activeDeadlineSeconds
         │              ├─ pending_deadline.py    spec.pendingDeadlineSeconds
         │              ├─ failure_policy.py      spec.failurePolicy: restarts and backoff
         │              ├─ disruption.py          evictions and drains, which do not count
         │              ├─ node_loss.py           spec.nodeLoss: pods of nodes that do not report
         │              ├─ ttl_after_finished.py  spec.ttlSecondsAfterFinished
         │              ├─ shared_secret.py       loss of the job's Secret
         │              ├─ finalize.py            the report Job before the end
         │              ├─ pod_termination.py     pods of at most one attempt at any time
         │              └─ stage_progress.py      current stage and attempt
         ├──> pruning.py: objects to delete
         └──> status.py ──> conditions.py ──> diagnostics.py: problems and advice
                  └───────> events.py: Events from two statuses (called by status_writer.py)

`plan.py` has the result type. Nothing here calls the API server, reads a clock or keeps state between two calls.
"""
