"""One module per stage type; each has `run(ctx, sessions)`, which runs the stage to its end and returns the outcome.

    orchestrator/__main__ --> sft        demonstrations -> supervised updates -> model
                          --> grpo       rollouts -> Resample-on-Correct -> update -> weights to the engines, per step
                          --> filter     samples of every problem -> the problems that are not always solved
                          --> evaluate   samples of named benchmarks -> evaluation.json

All of them use the sessions of the package above; none of them imports another stage.
"""
