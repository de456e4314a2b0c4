"""Agents as programs of the user: any program that uses OpenAI's API plays the rollouts of a stage.

- `conversation`  messages as tokens: recorded tokens are used again
- `tree`          the turns as a tree by token prefix, and the sequences for training
"""
