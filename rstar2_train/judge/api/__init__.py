"""The judge's HTTP API: one process per replica, stateless except for the calls in flight.

    HTTP ──▶ app, code_judge_compat ──▶ admission ──▶ submitter ──▶ Redis (queue)
                     └─ schema

- `app`: the routes /v1, /ping and /metrics, the token check, and the process itself.
- `code_judge_compat`: the routes of `code-judge`, the judge of the paper's public code.
- `json_messages`: responses in JSON, which may be large.
- `schema`: request and response models, and the OpenAPI page.
- `admission`: admits or rejects calls, finds the worker of a session, keeps the metrics.
- `submitter`: adds calls to the queue, reads their results, resubmits calls that Redis lost.
"""
