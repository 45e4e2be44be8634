"""The answers of a run over HTTP, for any server that speaks ASGI: Ray Serve's, or one process alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from fedray.running.served.answers import CLIENT, Answerer, Reply, RequestError

PATHS = {"/": "GET", "/example": "GET", "/health": "GET", "/predict": "POST"}
logger = logging.getLogger(__name__)


async def respond(answers: Answerer, personal: Callable[[str], Awaitable[Any]], request: Request) -> Response:
    """The response to a request; ``personal`` gives the model of a client that the run has."""
    try:
        reply = await _reply(answers, personal, request)
    except ClientDisconnect:
        return Response(status_code=400)
    except RequestError as refused:
        reply = Reply(refused.status, json.dumps({"error": str(refused)}))
    except Exception:
        logger.exception("a request failed")
        reply = Reply(500, json.dumps({"error": "the server failed; its log says why"}))
    head = {"www-authenticate": "Bearer"} if reply.status == 401 else {}
    return Response(reply.text, reply.status, {"cache-control": "no-store", **head}, reply.kind)


async def _reply(answers: Answerer, personal: Callable[[str], Awaitable[Any]], request: Request) -> Reply:
    path, method = request.url.path, request.method
    if path == "/health":
        return Reply(200, json.dumps({"status": "ok"}))
    answers.admit(request.headers.get("authorization", ""))  # before anything is read or said
    if path not in PATHS:
        raise RequestError(404, f"{path[:40]}: there is nothing here; choose from {', '.join(PATHS)}")
    if method != PATHS[path]:
        raise RequestError(405, f"{path} takes {PATHS[path]}, not {method}")
    if path == "/example":
        return answers.example()
    if path == "/":
        return answers.about(str(request.base_url).rstrip("/"))
    header = _header(request)
    client = answers.client(header)
    body = await _body(request, answers.max_bytes)
    # Under the header's own text: by it Ray Serve looks for a replica that has the model.
    model = None if client is None or header is None else await personal(header)
    return answers.answer(client, model, body)


def _header(request: Request) -> str | None:
    """The client of a request. Names are sent in UTF-8; Starlette reads headers as Latin-1."""
    text = request.headers.get(CLIENT)
    return None if text is None else text.encode("latin-1").decode("utf-8", "replace")


async def _body(request: Request, largest: int) -> bytes:
    """The body of a request; raises RequestError (413) as soon as it is known to be too large."""
    declared = request.headers.get("content-length", "")
    body = bytearray()
    if not declared.isdigit() or int(declared) <= largest:
        async for chunk in request.stream():
            body += chunk
            if len(body) > largest:
                break
        else:
            return bytes(body)
    raise RequestError(413, f"the request has more than {largest} bytes; send fewer inputs at a time")
