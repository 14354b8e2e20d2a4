class FastAPI:
    def __init__(self):
        self.routes = {}

    def get(self, path):
        return lambda function: self.routes.setdefault(path, function)

    def websocket(self, path):
        return lambda function: self.routes.setdefault("ws " + path, function)


class WebSocketDisconnect(Exception):
    pass


class WebSocket:
    """A client that sends these messages and goes."""

    def __init__(self, *messages):
        self.messages, self.seen = list(messages), []

    async def accept(self):
        self.seen.append(("accept",))

    async def receive_bytes(self):
        if not self.messages:
            raise WebSocketDisconnect
        return self.messages.pop(0)

    async def send_bytes(self, data):
        self.seen.append(("bytes", data))

    async def send_text(self, text):
        self.seen.append(("text", text))

    async def close(self, code, reason):
        self.seen.append(("close", code))
