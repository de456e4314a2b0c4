"""The engines: vLLM servers that sample turns, and the client side that keeps them at the wanted weights.

    client side (orchestrator, rstar2 eval, rstar2 serve)        engine side (one vLLM process per engine)

    rollout.generation                                           server            builds the command line, starts vLLM
      |  slot             |  request                               |
      v                   v                                        v
    admission <-------- pool -----> client --------- HTTP ------> auth_middleware   checks the token
    scheduler           all engines  one engine                    |        |
                                                                   v        v
                                    openai_client -- HTTP --> generate_route  vLLM's own routes
                                    any vLLM server           token ids         |  /collective_rpc
                                                                                v
                                                                          worker_extension  loads weights

Modules:

- `admission`         slots of trajectories, which follow the scheduler
- `scheduler`         decides which trajectory runs in which engine, and when
- `policies`          the rules of that decision: Static, Reserve, Graded
- `length_model`      lengths of the job's finished trajectories, for Graded
- `engine_load`       live figures of an engine, and the engines that lag
- `engine_statistics` metrics of the engines over a step
- `pool`              keeps every engine at the current weight version, and out of use until it is
- `engine_protocols`  what the pool and the rollouts need of the client of an engine
- `engine_http`       requests to a vLLM server, with the errors of the pool
- `client`            HTTP client of one engine
- `sampled_turn`      a turn as its parts arrive; at its end the whole turn
- `engine_errors`     the errors of an engine
- `engine_session`    the connections of the clients of one process
- `openai_client`     HTTP client of a vLLM server that another operator runs
- `scripted_client`   client of an engine that does not exist: the turns of a script
- `server`            command line of an engine, and its start
- `auth_middleware`   bearer-token check in front of the engine's routes
- `generate_route`    the engine's route for rollouts
- `engine_adapters`   the adapters of an engine: loaded, served, in use
- `adapter_buffers`   compares vLLM's buffers of an adapter with its file
- `bucket_cache`      model and weights of an engine without a common disk with the trainer
- `turn_wire`         binary bodies of that route
- `worker_extension`  loads weights inside a vLLM worker
- `tool_call_args`    vLLM arguments for the clients' own tools
"""
