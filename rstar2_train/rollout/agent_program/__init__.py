"""Agents as programs of the user: any program that uses OpenAI's API plays the rollouts of a stage.

    rollout.collector
      |  one episode per rollout
      v
    program (a process) --> HTTP --> endpoint --> episode --> rollout.generation --> engines
                                                   |
                                                   v
                                            conversation --> tree --> segments of the trajectory

- `program`       the process of an episode, its row and its end
- `endpoint`      the routes, and a bearer key for each episode
- `episode`       requests, limits and reward of one episode
- `conversation`  messages as tokens: recorded tokens are used again
- `tree`          the turns as a tree by token prefix, and the sequences for training
"""
