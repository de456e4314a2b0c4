"""The program of examples/agent.yaml: it plays one rollout through the endpoint, and posts its reward.

`rstar2 run` starts it once per rollout, with a row of data on standard input, and OPENAI_BASE_URL and OPENAI_API_KEY in
the environment. The endpoint ignores the name of the model and all sampling parameters.
"""

import json
import re
import sys

import openai

HINTS = 1


def distance(text: str, answer: str) -> float:
    """Return how far the last number of a text is from the answer; infinite without a number."""
    numbers = re.findall(r"-?\d{1,9}", text)
    return abs(int(numbers[-1]) - int(answer)) if numbers else float("inf")


def main() -> None:
    """Ask, give a hint after a wrong answer, and reward the last answer."""
    row = json.load(sys.stdin)
    client = openai.OpenAI()
    messages = [{"role": "user", "content": row["problem"]}]
    for _ in range(1 + HINTS):
        reply = client.chat.completions.create(model="policy", messages=messages, max_tokens=32)
        text = reply.choices[0].message.content or ""
        error = distance(text, row["answer"])
        if error == 0:
            break
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Wrong. Try again."}]
    client.post("/reward", body={"reward": 1 / (1 + error)}, cast_to=object)


if __name__ == "__main__":
    main()
