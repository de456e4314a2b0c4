"""An environment of OpenEnv: find a number. Each WebSocket connection is one episode. docs/environments.md."""

import random

from fastapi import FastAPI, WebSocket

app = FastAPI()
NUMBER = {"type": "integer", "minimum": 1, "description": "Your guess."}


@app.get("/schema")
def schema() -> dict:
    """Describe an action: it becomes the tool `step` of the model."""
    return {"action": {"type": "object", "properties": {"number": NUMBER}, "required": ["number"]}}


@app.websocket("/ws")
async def episode(socket: WebSocket) -> None:
    """Play one episode. The seed of a reset is the same for all rollouts of a group."""
    await socket.accept()
    async for message in socket.iter_json():
        text, reward, done, data = "From 1 to 20.", None, False, message.get("data", {})
        if message["type"] == "reset":
            secret = data.get("number") or random.Random(data["seed"]).randint(1, 20)
        elif message["type"] == "step":
            done = data["number"] == secret
            text, reward = "right" if done else "higher" if data["number"] < secret else "lower", float(done)
        await socket.send_json(
            {"type": "observation", "data": {"observation": {"text": text}, "reward": reward, "done": done}}
        )
