"""A visitor of a dashboard, who requests what pages request."""

import json
from contextlib import asynccontextmanager

import httpx


class Visitor:
    """A browser's requests: with the Host, the cookie and the token that a page would send."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.csrf = ""

    async def hello(self) -> dict:
        session = (await self.http.get("/api/session")).json()
        self.csrf = session["csrf"] or ""
        return session

    async def login(self, access_key: str, secret_key: str) -> httpx.Response:
        answer = await self.http.post("/api/login", json={"access_key": access_key, "secret_key": secret_key})
        if answer.is_success:
            self.csrf = answer.json()["csrf"]
        return answer

    async def get(self, path: str, **query) -> httpx.Response:
        return await self.http.get(path, params=query)

    async def post(self, path: str, **body) -> httpx.Response:
        return await self.http.post(path, json=body, headers={"X-CSRF-Token": self.csrf})

    @asynccontextmanager
    async def events(self, path: str, **query):
        """Yield an iterator of the (name, data) of a stream's events."""
        async with self.http.stream("GET", path, params=query) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield _events(answer)


async def _events(answer: httpx.Response):
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
