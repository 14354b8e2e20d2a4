"""openpi_c.ray against stubs of ray, fastapi and msgpack: run by test_ray.py in a process of its own."""

import asyncio

from fastapi import WebSocket

import golden
import openpi_c
from openpi_c.ray import app
from openpi_c.ray import web


async def main():
    arguments, data, _ = golden.policy_case("libero_pi0")
    given = {key: str(value) for key, value in arguments.items() if key != "prompt_state"}
    application = app({**given, "gpus": "1", "replicas": "3", "batch": "4"})
    server = application.made
    assert application.options["num_replicas"] == 3 and application.options["ray_actor_options"] == {"num_gpus": 1}
    assert (await web.routes["/healthz"](server)).text == "OK\n"
    session = web.routes["ws /"]

    one = WebSocket(data, data)
    await session(server, one)
    assert [kind for kind, *_ in one.seen] == ["accept", "bytes", "bytes", "bytes"]
    assert golden.message(one.seen[1][1])["robot"] == server.policy.metadata["robot"]
    answers = [golden.message(frame) for _, frame in one.seen[2:]]
    with openpi_c.Policy(**{**arguments, "prompt_state": None}) as plain:
        for answer in answers:  # drawn noise: the same numbers in the same order of calls
            assert (answer["actions"] == plain.infer(data)["actions"]).all()
    assert answers[0]["policy_timing"]["infer_ms"] > 0

    clients = [WebSocket(data) for _ in range(3)] + [WebSocket(b"\xc1 broken")]
    await asyncio.gather(*(session(server, client) for client in clients))
    assert server.infer.sizes[-1] == 4  # one batch, of which one message is wrong
    for client in clients[:3]:
        assert golden.message(client.seen[2][1])["actions"].shape == answers[0]["actions"].shape
    assert [kind for kind, *_ in clients[3].seen] == ["accept", "bytes", "text", "close"]
    assert "request" in clients[3].seen[2][1] and clients[3].seen[3][1] == 1011


if __name__ == "__main__":
    asyncio.run(main())
