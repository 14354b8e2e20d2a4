"""Ray Serve: replicas that speak openpi's WebSocket protocol.

    serve run openpi_c.ray:app checkpoint=pi05_droid config=pi05_droid device=cuda:0 gpus=1 replicas=2

The arguments are those of openpi_c.Policy, and: gpus (of a replica), replicas, batch (requests in one call of the model).
"""

import asyncio
import json
from typing import Any

from fastapi import FastAPI
from fastapi import WebSocket
from fastapi import WebSocketDisconnect
from fastapi.responses import PlainTextResponse
import msgpack
import numpy as np
from ray import serve

from openpi_c.policy import Policy

web = FastAPI()


def pack(value: Any) -> bytes:
    """msgpack with numpy arrays, as openpi's client reads it."""

    def array(found: np.ndarray[Any, Any]) -> dict[bytes, Any]:
        return {b"__ndarray__": True, b"data": found.tobytes(), b"dtype": found.dtype.str, b"shape": found.shape}

    return bytes(msgpack.packb(value, default=array))


@serve.ingress(web)
class Server:
    def __init__(self, batch: int, arguments: dict[str, Any]):
        self.policy = Policy(batch=batch, progress=None, **arguments)
        self.infer.set_max_batch_size(batch)

    @serve.batch(max_batch_size=1, batch_wait_timeout_s=0.002)
    async def infer(self, messages: list[bytes]) -> list[dict[str, Any] | str]:
        return await asyncio.to_thread(self.answers, messages)  # the loop goes on answering: the call holds no GIL

    def answers(self, messages: list[bytes]) -> list[dict[str, Any] | str]:
        """Actions, or the sentence of what is wrong with a message; the others of its batch are answered."""
        try:
            return list(self.policy.infer_batch(messages))
        except Exception as error:
            return [str(error)] if len(messages) == 1 else [self.answers([message])[0] for message in messages]

    @web.get("/healthz")
    async def health(self) -> PlainTextResponse:
        return PlainTextResponse("OK\n")

    @web.websocket("/")
    async def session(self, socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_bytes(pack(self.policy.metadata))
        try:
            while True:
                answer = await self.infer(await socket.receive_bytes())
                if isinstance(answer, str):
                    await socket.send_text(answer)
                    await socket.close(1011, "the error is in the text before")
                    return
                await socket.send_bytes(pack(answer))
        except WebSocketDisconnect:
            return


def app(given: dict[str, str]) -> serve.Application:
    """The application of `serve run`'s arguments: numbers are numbers, all else is text."""
    arguments: dict[str, Any] = {key: json.loads(value) if value.isdecimal() else value for key, value in given.items()}
    gpus, replicas, batch = (arguments.pop(key, other) for key, other in (("gpus", 0), ("replicas", 1), ("batch", 1)))
    deployment = serve.deployment(Server).options(
        num_replicas=replicas, max_ongoing_requests=64, ray_actor_options={"num_gpus": gpus}
    )
    return deployment.bind(batch, arguments)
