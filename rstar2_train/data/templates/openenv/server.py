"""The environment: a number game as an OpenEnv server, with FastAPI alone. `python server.py [PORT]`.

Each WebSocket connection is one episode. `game.py` has the game. With the package openenv, `create_fastapi_app` of
openenv.core.env_server serves a class with the same methods.
"""

import sys

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from game import ACTION, Game  # type: ignore[import-not-found]

app = FastAPI()


@app.get("/schema")
def schema():
    """Describe an action: it becomes the tool `step` of the model."""
    return {"action": ACTION, "observation": {}, "state": {}}


@app.websocket("/ws")
async def episode(socket: WebSocket):
    """Play one episode: a reset, then steps until the end of the connection."""
    await socket.accept()
    game = Game()
    try:
        while True:
            message = await socket.receive_json()
            data = message.get("data", {})
            if message["type"] == "reset":
                text, reward, done = game.reset(**data)
            elif message["type"] == "step":
                text, reward, done = game.step(data["number"])
            else:
                await socket.send_json({"type": "state", "data": {"step_count": game.steps}})
                continue
            observation = {"observation": {"text": text}, "reward": reward, "done": done}
            await socket.send_json({"type": "observation", "data": observation})
    except WebSocketDisconnect:
        pass


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8765, log_level="warning")
