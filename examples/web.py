"""A web shop without Ray: a request becomes a message, a consumer beside it counts what was sold.

    pip install rmq_ray starlette uvicorn
    export RMQ_NAME_SERVERS=10.0.0.5:9876 RMQ_SECRET=5f0c...
    uvicorn --factory examples.web:from_environment

    POST /orders?sku=apple   202 and the message's id once it is stored, 503 where it is not now
    GET /sold                what the consumer has counted
    GET /health              for load balancers: 200 while the cluster answers, else 503 and why

The secret in hex is ``mq.discovery.lookup().secret.hex()`` where the cluster runs; an account's
keys do as well (docs/clients.md).
"""

from __future__ import annotations

import os
import threading
from asyncio import to_thread
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import rmq_ray as rmq


def app(
    name_servers: str, secret: bytes, cluster: str = "default", topic: str = "web-orders"
) -> Starlette:
    """The shop; its clients live as long as the server."""
    sold: Counter[str] = Counter()
    lock = threading.Lock()

    @asynccontextmanager
    async def lifespan(shop: Starlette) -> AsyncIterator[None]:
        mq = await to_thread(rmq.connect, cluster, name_servers=name_servers, secret=secret)
        shop.state.mq = mq

        def count(messages: list[rmq.MessageExt], _ctx: rmq.ConsumeContext) -> None:
            with lock:
                sold.update(message.body.decode() for message in messages)

        consumer = mq.push_consumer(
            "stock", listener=count, subscriptions={topic: "*"}, start_from="first"
        )
        with consumer:
            async with mq.async_producer() as producer:
                shop.state.producer = producer
                yield
        mq.admin.close()

    async def order(request: Request) -> JSONResponse:
        sku = request.query_params["sku"]
        try:
            stored = await request.app.state.producer.send(topic, sku.encode(), timeout=3)
        except rmq.MessageIllegal as error:
            return JSONResponse({"error": str(error)}, 400)
        except rmq.SendError as error:
            return JSONResponse({"error": str(error)}, 503)
        return JSONResponse({"message": stored.message_id}, 202)

    async def counted(_request: Request) -> JSONResponse:
        with lock:
            return JSONResponse(dict(sold))

    async def health(request: Request) -> JSONResponse:
        found = await to_thread(request.app.state.mq.admin.health, timeout=1)
        if not found:
            return JSONResponse({"error": found.problem}, 503)
        return JSONResponse({"broker": found.broker})

    routes = [
        Route("/orders", order, methods=["POST"]),
        Route("/sold", counted),
        Route("/health", health),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def from_environment() -> Starlette:
    """The shop of the cluster that the environment names."""
    return app(os.environ["RMQ_NAME_SERVERS"], bytes.fromhex(os.environ["RMQ_SECRET"]))
