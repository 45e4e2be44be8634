"""python -m fedray.serve RUN: the models of a finished run over HTTP, each client's own, behind Ray Serve.

Answers have probabilities, entropy and mutual information of each input. docs/serving.md shows requests and replies.

  python -m fedray.serve runs/NAME                                 on 127.0.0.1:8000, with a new token
  python -m fedray.serve runs/NAME --abstain 1.0                   advises to abstain above an entropy of 1 nat
  python -m fedray.serve runs/NAME --unknown-client global         strangers get the global model

It needs the extra, installed in the checkout: uv sync --extra serve, or pip install -e '.[serve]'.
"""

from __future__ import annotations

from fedray.cli import enter

if __name__ == "__main__":
    enter("serve")

import functools
import os
import secrets
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fedray import cli
from fedray.config import from_dict
from fedray.config.decode import refuse_damage
from fedray.running.served import answers
from fedray.running.served.answers import CLIENT, Answerer, Limits
from fedray.terminal import check_packages, say
from fedray.types import FedRayError, require

if TYPE_CHECKING:
    from ray.serve import Application

TOKEN = "FEDRAY_SERVE_TOKEN"
SHORTEST_TOKEN = 16
LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What is served."""

    run: tyro.conf.Positional[Path]
    """Folder of a finished run, at a path that every machine with a replica sees."""
    terms: Annotated[Limits, tyro.conf.arg(name="")] = field(default_factory=Limits)
    loaded: int = 16
    """Personal models that a replica keeps in memory: those last asked for. Others are read when they are needed."""
    replicas: int = 1
    """Processes that answer, of one CPU each."""


@dataclass(frozen=True, kw_only=True)
class Options(Serving):
    """Serve the models of a finished run."""

    host: str = "127.0.0.1"
    """Address to listen on; by default only this machine can ask."""
    port: int = 8000
    """Port to listen on."""
    address: str | None = None
    """Address of a Ray cluster; by default the running one, or one of this machine's own."""


def opened(service: Serving, digest: bytes) -> Answerer:
    """The answers of a service, checked; raises FedRayError."""
    for name in ("loaded", "replicas"):
        require(getattr(service, name) >= 1, name, getattr(service, name), "at least one is needed", "leave it out")
    return answers.opened(service.run.expanduser().absolute(), service.terms, digest)


def deployment(service: Serving, digest: bytes) -> Application:
    """The application of a service for Ray Serve; raises FedRayError where Ray Serve is not installed."""
    try:
        from actors import serving
    except ModuleNotFoundError as error:
        raise FedRayError(
            f"Ray Serve is not installed ({error.name} is missing); in the checkout: uv sync --extra serve, or pip "
            "install -e '.[serve]'"
        ) from None
    from fedray.running.served import web

    folder = service.run.expanduser().absolute()
    opened = functools.partial(answers.opened, folder, service.terms, digest)
    return serving.application(opened, web.respond, service.loaded, service.replicas)


def application(args: Mapping[str, Any]) -> Application:
    """The application of a config file for ``serve deploy`` (cluster/serve.yaml); the token is in $FEDRAY_SERVE_TOKEN.

    Raises FedRayError for a run that cannot be served, and without a token.
    """
    with refuse_damage("args: are not those of a service", "correct them in the file for serve deploy"):
        service = from_dict(Serving, args)
    token = given_token()
    require(token is not None, TOKEN, "", "there is no token", "set it where Ray is started on the head")
    digest = answers.digest_of(token or "")
    opened(service, digest)
    return deployment(service, digest)


def given_token() -> str | None:
    """The token in the environment; raises FedRayError for one that could be guessed."""
    token = os.environ.get(TOKEN)
    long = token is None or len(token) >= SHORTEST_TOKEN
    require(long, TOKEN, "***", f"has fewer than {SHORTEST_TOKEN} characters", "take: openssl rand -hex 32")
    return token


def greeting(served: Answerer, options: Options, new_token: str | None) -> str:
    """What is said once the server is up: what it serves and a request that works when it is pasted."""
    host = f"[{options.host}]" if ":" in options.host else options.host  # of IPv6
    url = f"http://{host}:{options.port}"
    who = f'curl -s -H "authorization: Bearer ${TOKEN}"'
    client = f" -H '{CLIENT}: 0'" if served.run.plan.personal else ""
    token = f"  export {TOKEN}={new_token}\n" if new_token else ""
    far = (
        "" if options.host in LOCAL else "Other machines can reach it. Token and data cross the network unencrypted.\n"
    )
    return (
        f"serving {options.run} on {url}\n{served.run!r}\n{far}\n"
        f"Ask it from another terminal, here about one input of zeros:\n\n{token}"
        f"  {who} {url}/example | {who}{client} -d @- {url}/predict\n"
        f"  {who} {url}/        # what is served and how to ask\n\n"
        "Ctrl-C stops it."
    )


def play(options: Options) -> None:
    """Serve until it is interrupted; raises FedRayError."""
    remedy = f"leave it out for {Options.port}"
    require(0 < options.port < 2**16, "port", options.port, "it is not between 1 and 65535", remedy)
    token = given_token()
    new = secrets.token_urlsafe(32) if token is None else None
    digest = answers.digest_of(token or new or "")
    served = opened(options, digest)
    app = deployment(options, digest)
    from actors import serving

    say(f"starting to serve {options.run}: Ray, then {options.replicas} replica{'s'[: options.replicas > 1]}")
    try:
        with serving.running(app, options.replicas, options.address, options.host, options.port):
            say(greeting(served, options, new))
            threading.Event().wait()
    except KeyboardInterrupt:
        say("stopped")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 stopped by a signal, 2 the request was at fault."""

    def body() -> int:
        check_packages()
        given = sys.argv[1:] if argv is None else argv
        play(cli.read_options(Options, given, "python -m fedray.serve", __doc__ or ""))
        return cli.DONE

    return cli.run_command(body)
