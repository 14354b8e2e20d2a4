"""Ray Serve's names that openpi_c.ray uses. batch gathers what waits in one turn of the loop, as Ray does in its time."""

import asyncio
import functools


class Application:
    def __init__(self, made, options):
        self.made, self.options = made, options


class Deployment:
    def __init__(self, kind, **options):
        self.kind, self.given = kind, options

    def options(self, **options):
        return Deployment(self.kind, **options)

    def bind(self, *arguments):
        return Application(self.kind(*arguments), self.given)


deployment = Deployment


def ingress(web):
    return lambda kind: kind


class Batch:
    def __init__(self, function, owner):
        self.function, self.owner = function, owner
        self.waiting, self.largest, self.sizes = [], 1, []

    def set_max_batch_size(self, largest):
        self.largest = largest

    async def __call__(self, item):
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append((item, answer))
        if len(self.waiting) == 1:
            await asyncio.sleep(0.01)
            while self.waiting:
                part, self.waiting = self.waiting[: self.largest], self.waiting[self.largest :]
                self.sizes.append(len(part))
                found = await self.function(self.owner, [one for one, _ in part])
                for (_, waiting), result in zip(part, found, strict=True):
                    waiting.set_result(result)
        return await answer


def batch(max_batch_size, batch_wait_timeout_s):
    return lambda function: functools.cached_property(lambda self: Batch(function, self))
