"""The game: find a number. Edit this file for a game of your own."""

import random

MAX_STEPS = 6
ACTION = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 1, "description": "Your guess."}},
    "required": ["number"],
    "additionalProperties": False,
}


class Game:
    """One episode. A method returns what the model reads, the reward or None, and whether the episode is over."""

    def __init__(self):
        self.steps, self.number = 0, 0

    def reset(self, seed=0, episode_id="", largest=20, number=None):
        """Start an episode. `seed` is the same for all rollouts of a group; `data` of the row has the other fields."""
        self.steps = 0
        self.number = number or random.Random(seed).randint(1, largest)
        return f"I think of a number from 1 to {largest}. You have {MAX_STEPS} guesses.", None, False

    def step(self, number):
        """Answer a guess. The reward is 1 for the right number, and 0 after the last guess."""
        self.steps += 1
        if number == self.number:
            return "right", 1.0, True
        return "higher" if number < self.number else "lower", 0.0, self.steps == MAX_STEPS
