"""Agents as programs of the user: any program that uses OpenAI's API plays the rollouts of a stage.

    rollout.collector
      |  one episode per rollout
      v
    programs
      |
      v
    program (process or pod) --> HTTP --> endpoint --> episode --> rollout.generation --> engines
                                                   |
                                                   v
                                            conversation --> tree --> segments of the trajectory

- `programs`      plays one rollout: starts the program, waits for its end
- `program`       the program as a process of this machine
- `pods`          the program in a pod; `utils.agent_runner` is the process that starts it there
- `endpoint`      the routes, and a bearer key for each episode
- `episode`       requests, limits and reward of one episode
- `call_arguments` checks the arguments of a client's call
- `conversation`  messages as tokens: recorded tokens are used again
- `tree`          the turns as a tree by token prefix, and the sequences for training
"""
