"""What a served run answers: from the text of a request to the text of the reply. It knows no network and no Ray."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedray import registry
from fedray.arrays import trees
from fedray.config.decode import decode, fits
from fedray.data.own import listed
from fedray.running import finished
from fedray.running.predictor import Prediction, Predictor, RealPrediction
from fedray.types import FedRayError, require

CLIENT = "serve-multiplexed-model-id"  # the header by which Ray Serve finds a replica that has the model
BYTES_PER_NUMBER = 32  # of JSON: a double of 17 digits with its exponent, comma and blanks
BYTES_BESIDES = 4096
MAX_SEED = 2**31


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is answered, and what is refused."""

    unknown_client: Literal["404", "global"] = "404"
    """Reply to a client that the run does not know: status 404, or what the global model predicts."""
    abstain: float | None = None
    """Advise to abstain from inputs that are more uncertain than so many nats."""
    abstain_by: Literal["entropy", "mutual_information"] = "entropy"
    """The uncertainty that counts for it: the total (entropy), or that of the model (mutual_information)."""
    samples: int | None = None
    """Posterior draws per prediction; by default as in the run, 0 for the mean weights."""
    max_inputs: int = 256
    """Largest number of inputs in one request; the request may have 32 bytes for each of their numbers."""


class Reply(NamedTuple):
    """A status of HTTP, and a text."""

    status: int
    text: str
    kind: str = "application/json"


class RequestError(FedRayError):
    """A request that is not answered. ``status`` is HTTP's."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


class Answerer:
    """The models of a run, what is granted to whoever asks, and to whom."""

    def __init__(self, run: Predictor, terms: Limits, digest: bytes):
        """``digest`` is :func:`digest_of` the token. Raises FedRayError for terms that the run cannot keep."""
        _check(run, terms)
        if run.plan.personal and run.plan.algorithm.trains_to_predict:
            _ = run.dataset  # other examples than the run's are refused before anybody asks
        if run.plan.texts:
            run.words.of(["the"])  # a file of vectors that is gone is said now, and not to who asks
        self.run, self.terms, self._digest = run, terms, digest
        self.shared = run.model() if run.plan.algorithm.predict_global else None
        self.max_bytes = BYTES_BESIDES + BYTES_PER_NUMBER * terms.max_inputs * math.prod(run.plan.model.input_shape)

    def admit(self, authorization: str) -> None:
        """Raise RequestError (401) unless the header is ``Bearer TOKEN``; the time it takes tells nothing of it."""
        scheme, _, token = authorization.partition(" ")
        right = hmac.compare_digest(digest_of(token), self._digest)
        if scheme.lower() != "bearer" or not right:  # HTTP's schemes have no case
            raise RequestError(401, "the token is missing or wrong; send the header 'authorization: Bearer TOKEN'")

    def client(self, header: str | None) -> int | None:
        """The client whose model answers; None: the global model. Raises RequestError (404, 422)."""
        plan = self.run.plan
        name = registry.algorithm_name(plan.cfg.algorithm)
        if header is None:
            if self.shared is None:
                raise RequestError(422, f"the header {CLIENT} is missing; {name} has no global model, so name a client")
            return None
        if plan.personal and (found := self.run.meant(header)) is not None:
            return found
        if self.terms.unknown_client == "global":
            return None
        named = " and their names" if plan.names.users else ""  # which are nobody's business who does not know them
        known = (
            f"this run has clients 0 to {plan.clients - 1}{named}"
            if plan.personal
            else f"{name} has no personal models"
        )
        remedy = "leave the header out to ask the global model" if self.shared is not None else "name one of them"
        raise RequestError(404, f"client {header[:40]!r}: {known}; {remedy}")

    def model(self, client: int) -> Any:
        """A client's model, read from the run's files into memory of its own."""
        return trees.tree_map(lambda leaf: leaf.clone(), self.run.model(self.run.called(client)))

    def answer(self, client: int | None, model: Any, body: bytes) -> Reply:
        """What the model of :meth:`client` predicts for the inputs of a request; raises RequestError (422, 500)."""
        x, seed = self._question(body)
        with_model = self.shared if client is None else model
        try:
            asked = None if client is None else self.run.called(client)
            found = self.run.predict(x, asked, self.terms.samples, seed, with_model)
        except FedRayError as error:
            raise RequestError(422, str(error)) from None
        said = {"model": "global" if client is None else "personal", "client": client, "seed": seed}
        said |= self._fields(found)
        try:
            return Reply(200, json.dumps(said, allow_nan=False))
        except ValueError:
            raise RequestError(500, "the model predicts NaN or infinity: it has diverged; serve another run") from None

    def example(self) -> Reply:
        """A request of the right shape: one input of zeros, or a text."""
        shape = (1, *self.run.plan.model.input_shape)
        return Reply(200, json.dumps({"x": ["a text"] if self.run.plan.texts else np.zeros(shape).tolist()}))

    def about(self, url: str) -> Reply:
        """What is served, and how to ask."""
        plan = self.run.plan
        shape = ", ".join(map(str, ("B", *plan.model.input_shape)))
        texts = "x [B] of texts, or " if plan.texts else ""
        columns = f"the numbers of an input: {listed(list(plan.names.features))}\n" if plan.names.features else ""
        targets = f"{plan.model.classes} classes" if plan.target is None else "a real number"
        who = plan.names.users[0] if plan.names.users else "0"
        curl = "curl -s -H 'authorization: Bearer '$FEDRAY_SERVE_TOKEN"
        if not plan.personal:
            header, asks = "", "The global model answers.\n\n"
        else:
            header = f" -H {shlex.quote(f'{CLIENT}: {who}')}"
            without = "without it the global model answers" if self.shared is not None else "it is needed"
            asks = f"The header '{CLIENT}: {who}' asks the model of client {who}; {without}.\n\n"
        about = (
            f"{self.run!r}\n"
            f"{texts}x [{shape}], at most {self.terms.max_inputs} inputs -> {targets}\n"
            f"{columns}\n"
            f"GET  {url}/example   a body for the next request, of the right shape\n"
            f'POST {url}/predict   {{"x": [...]}} -> the prediction; beside x, "seed": 0 may choose the draws\n'
            f"GET  {url}/health    whether it is up; asks for no token\n\n"
            f"{asks}"
            f"  {curl} {url}/example > input.json\n"
            f"  {curl}{header} -d @input.json {url}/predict\n"
        )
        return Reply(200, about, "text/plain; charset=utf-8")

    def _question(self, body: bytes) -> tuple[np.ndarray, int]:
        """Inputs [B, ...] and seed of a request; raises RequestError (422)."""
        try:
            asked = decode(body)
        except ValueError as error:
            raise RequestError(422, f"the body is not JSON in UTF-8 ({error})") from None
        if not isinstance(asked, dict) or "x" not in asked or not asked.keys() <= {"x", "seed"}:
            raise RequestError(422, 'the body must be {"x": [...]}, beside it at most "seed"')
        seed = asked.get("seed", 0)
        if not fits(seed, int) or not 0 <= seed < MAX_SEED:
            raise RequestError(422, f"seed {str(seed)[:40]}: it must be a whole number from 0 to {MAX_SEED - 1}")
        return self._inputs(asked["x"]), seed

    def _inputs(self, x: Any) -> np.ndarray:
        if self.run.plan.texts and isinstance(x, list) and x and all(isinstance(each, str) for each in x):
            self._check_count(len(x))
            return np.array(x)
        shape = self.run.plan.model.input_shape
        wanted = ", ".join(map(str, ("B", *shape)))
        given = np.array(x, dtype=object)  # not as text, which numbers beside one long word would become
        if given.shape == shape:
            raise RequestError(
                422, f"x is one input without a list around it; it must have the shape [{wanted}]: send [x]"
            )
        deep = given.ndim > 1 + len(shape)  # NumPy walks through no more than 32 dimensions
        kinds = set() if deep else set(map(type, given.flat))
        if list in kinds:
            raise RequestError(422, f"x has lists of unequal length; it must have the shape [{wanted}]")
        if given.shape[1:] != shape or not len(given):
            raise RequestError(
                422, f"x has the shape {list(given.shape)}; it must have the shape [{wanted}], B at least 1"
            )
        self._check_count(len(given))
        if not kinds <= {int, float}:
            raise RequestError(422, "x holds something that is not a number; it must hold numbers only")
        try:
            with np.errstate(over="ignore"):
                inputs = given.astype(np.float32)
        except OverflowError:  # a whole number beyond a double
            raise RequestError(422, "x holds a number that float32 cannot hold") from None
        wrong = ~np.isfinite(inputs).reshape(len(inputs), -1).all(1)
        if wrong.any():
            raise RequestError(422, f"x[{wrong.argmax()}] holds NaN, infinity, or a number that float32 cannot hold")
        return inputs

    def _check_count(self, inputs: int) -> None:
        if inputs > self.terms.max_inputs:
            raise RequestError(422, f"x has {inputs} inputs; send at most {self.terms.max_inputs} at a time")

    def _fields(self, found: Prediction | RealPrediction) -> dict[str, Any]:
        """The fields of a prediction; null for a set that the run has not, or a doubt that nobody asked about."""
        if isinstance(found, RealPrediction):
            return found.columns()
        doubt, bound = getattr(found, self.terms.abstain_by), self.terms.abstain
        abstain = None if bound is None else (doubt > bound).tolist()
        columns = found.columns(self.run.plan.names.classes)
        return {**columns, "set": columns.get("set"), "abstain": abstain}


def digest_of(token: str) -> bytes:
    """The SHA-256 of a token, which is all that the processes that serve learn of it."""
    return hashlib.sha256(token.encode()).digest()


def opened(folder: Path, terms: Limits, digest: bytes) -> Answerer:
    """The answers of the run in a folder; raises FedRayError."""
    return Answerer(finished.load(folder), terms, digest)


def _check(run: Predictor, terms: Limits) -> None:
    """Raise FedRayError for terms that the run cannot keep."""
    name = registry.algorithm_name(run.plan.cfg.algorithm)
    able = terms.unknown_client == "404" or run.plan.algorithm.predict_global is not None
    reason = f"{name} has no global model that could answer instead"
    require(able, "unknown_client", terms.unknown_client, reason, "leave it out")
    reason, remedy = "it is compared with an uncertainty in nats, which is not negative", "give a number from 0 on"
    require(terms.abstain is None or 0 <= terms.abstain < math.inf, "abstain", terms.abstain, reason, remedy)
    reason = "the run predicts real numbers, whose uncertainty is not in nats"
    require(
        terms.abstain is None or run.plan.target is None, "abstain", terms.abstain, reason, "compare the reply's sd"
    )
    require(terms.samples is None or terms.samples >= 0, "samples", terms.samples, "is negative", "leave it out")
    require(terms.max_inputs >= 1, "max_inputs", terms.max_inputs, "no input would be answered", "leave it out")
