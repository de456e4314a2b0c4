"""The tools of the model: their signatures in the prompt, and the calls in a turn.

    schema   <-- rollout.chat_format (system prompt), data.prepare and data.tiny (demonstrations)
      ^
    parser   <-- rollout.agent (calls of a turn, tool responses), data.tiny, analysis (spans of calls)
      |
      v
    types    the status of a call

Modules:

- `schema`  the signatures of the Python tools, and the prompt section that describes tools
- `parser`  reads the calls of a turn, and renders the text that answers each of them
- `types`   the statuses of a tool call

The texts are training inputs: rollouts and demonstrations must use the same strings.
"""
