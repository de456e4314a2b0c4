"""rStar2: agentic reinforcement learning with GRPO-RoC, on Kubernetes or on one machine.

    cli ──> launch ──> orchestrator ─┬─> trainer ──────> grpo_roc         weights, gradients, the algorithm
     │         ^                     ├─> inference ────> vLLM engines     tokens
     ├──> serving                    ├─> rollout ──> tools, judge         trajectories; code in sandboxes
     │                               ├─> rewards                          verdicts of answers
     └──> evaluation, analysis       └─> tracking, data                   MLflow, Parquet and JSON Lines

Packages, each of which imports only those below it:

- `cli`: the `rstar2` command; `serving`: a served model; `launch`: jobs on one machine and processes in pods.
- `orchestrator`: one attempt of one stage; `analysis`: reports on a state directory; `evaluation`: benchmarks.
- `tracking`: journal and MLflow; `rollout`: the agent loop; `data`: data sets, the generated tiny task, import.
- `trainer`: ranks, checkpoints, weight export; `inference`: engines and scheduling; `judge`: code execution.
- `rewards`: verification of answers; `tools`: tool calls and chat formats; `grpo_roc`: loss, advantages, resampling.
- `api`: the AgenticRLJob and the contracts between processes; `utils`: helpers without knowledge of rStar2.
"""

__version__ = "0.1.0"
