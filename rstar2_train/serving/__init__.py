"""`rstar2 serve` and `rstar2 chat`: a model with its tool behind an OpenAI-compatible endpoint.

    cli/serve.py -> model.find -> stack.run -> Supervisor: engine, judge, Redis (or launch/running_services.py)
                                     |
    client -> app -> request.ChatRequest -> completion.Completion -> rollout.Agent -> engine_client -> engine
                                                                        `-> judge_timeout -> judge

- `model`: the model to serve and its job's settings.
- `stack`: starts and stops the services; `server`: the endpoint's settings, socket and lifetime.
- `app`: HTTP routes, streaming, errors (`utils/api_error`).
- `request`: checks a request and renders its messages; `text`: the text form of calls and outputs.
- `completion`: the agent loop for one answer; `engine_client`: streams turns from the engine.
- `judge_timeout`: fails a tool call if its judge is unreachable.
- `chat`: the terminal client.
"""
