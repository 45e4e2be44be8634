"""``fedray.run``: one federation from Python, played round by round or to its end, and what it found."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedray import registry
from fedray.config import Execution, override
from fedray.federate import report
from fedray.federate.measures import loss_deviation
from fedray.federate.messages import RoundMetrics, Saved
from fedray.federate.plan import Plan
from fedray.federate.rounds import Snapshot
from fedray.federate.uncertainty import questions
from fedray.library import html
from fedray.library.arguments import asked
from fedray.library.drawing import drawn, having_data
from fedray.library.errors import naming_arguments, translated
from fedray.running import session, stages
from fedray.running.drawing import all_figures
from fedray.running.finished import thresholds
from fedray.running.folder import checkpoint_place, lock, naming
from fedray.running.log import Log
from fedray.running.predictor import Predictor
from fedray.running.stages import Request, RunResult
from fedray.running.writer import PERSONAL, Writer
from fedray.terminal import check_packages, headlines, quiet, say
from fedray.types import FedRayError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from fedray.running.predictor import Prediction, RealPrediction


class Round(NamedTuple):
    """One round that was played."""

    number: int
    measures: Mapping[str, float]  # such as personal/accuracy; those of an evaluation only where it was evaluated
    plan: Plan
    evaluated: RoundMetrics | None  # the last round with an evaluation

    @property
    def clients(self) -> DataFrame:
        """The measures of every client at the last evaluation so far, a row for each."""
        import pandas

        rows = list(report.client_rows(self.evaluated, self.plan)) if self.evaluated else []
        frame = pandas.DataFrame(rows).replace("", float("nan")).infer_objects()
        return frame.set_index("client") if rows else frame

    def __repr__(self) -> str:
        return "  ".join([f"round {self.number}", *headlines(self.measures)])


Callback = Callable[[Round], object]


class Outcome(NamedTuple):
    """What a finished run leaves."""

    result: RunResult
    snapshot: Snapshot


class Run:
    """A federation: iterate over its rounds, stop it early, and look at what it found.

    Iterating goes through all rounds from the first one. A round that was not played yet is played when it is reached.
    """

    def __init__(self, plan: Plan, execution: Execution, callbacks: Sequence[Callback]):
        self._kept = None if execution.output else tempfile.TemporaryDirectory(prefix="fedray-")
        if self._kept:
            execution = dataclasses.replace(execution, output=Path(self._kept.name) / "run")
        self._rounds: list[Round] = []
        self._playing = _play(plan, execution)
        self._callbacks = callbacks
        self._outcome: Outcome | None = None
        self._plan = plan

    def __iter__(self) -> Iterator[Round]:
        place = 0
        while place < len(self._rounds) or self._advance():
            yield self._rounds[place]
            place += 1

    def __len__(self) -> int:
        """The rounds played so far."""
        return len(self._rounds)

    def _advance(self) -> bool:
        """Play a round; False where there is none left."""
        if self._outcome:
            return False
        with naming_arguments(), quiet():
            try:
                self._rounds.append(next(self._playing))
            except StopIteration as end:
                self._ended(end)
                return False
        if [callback for callback in self._callbacks if callback(self._rounds[-1])]:
            self.stop()
        return True

    def _ended(self, end: StopIteration) -> None:
        outcome: Outcome | None = end.value
        if outcome is None:
            raise FedRayError("this run failed or was interrupted; start another one")
        self._outcome, self._plan = outcome, outcome.result.plan

    def play(self) -> Run:
        """Play all rounds that are left."""
        while self._advance():
            pass
        return self

    def stop(self) -> Run:
        """End the run after the last round that was played.

        Its models are those of a run of so many rounds; its measures those of the last round that was evaluated.
        """
        if not self._rounds:
            raise FedRayError("stop: no round was played yet, so there is no result")
        if self._outcome is None:
            with naming_arguments(), quiet():
                try:
                    self._playing.send(True)
                except StopIteration as end:
                    self._ended(end)
        return self

    @property
    def finished(self) -> bool:
        """Whether it has ended, at its last round or early."""
        return self._outcome is not None

    def _result(self) -> Outcome:
        if self._outcome is None:
            raise FedRayError(
                f"this run is after round {len(self)} of {self._plan.rounds}; end it by .play() or .stop() first"
            )
        return self._outcome

    @property
    def plan(self) -> Plan:
        """What is fixed before the first round: settings, network, partition."""
        return self._plan

    @property
    def rounds(self) -> DataFrame:
        """The measures of the rounds so far: a row per round, a column per measure."""
        import pandas

        frame = pandas.DataFrame([{"round": each.number, **each.measures} for each in self._rounds])
        return frame.set_index("round") if len(frame) else frame

    @property
    def clients(self) -> DataFrame:
        """The measures of every client at the last evaluation: a row per client, a column per model and measure."""
        if not self._rounds:
            raise FedRayError("clients: no round was played yet")
        return self._rounds[-1].clients

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers of the result and what they mean, as in summary.json."""
        return self._result().result.summary

    @property
    def folder(self) -> Path:
        """The result's files; without ``output`` they are removed together with this object."""
        return self._result().result.folder

    @property
    def models(self) -> Predictor:
        """The global and the personal models."""
        plan, snapshot = self._plan, self._result().snapshot
        return Predictor(plan, snapshot, thresholds(self.folder))

    def predict(
        self, x: Any, client: int | str | None = None, samples: int | None = None, seed: int = 0
    ) -> Prediction | RealPrediction:
        """Predict inputs x [B, ...], in the data's own units, with a client's model or the global one (None).

        ``samples`` posterior draws are averaged (by default as in the run). Raises FedRayError for a model that the
        method lacks, an unknown client, or inputs of another shape.
        """
        return self.models.predict(x, client, samples, seed)

    @functools.cached_property
    def figures(self) -> tuple[str, ...]:
        """The names of the figures that the run has data for."""
        return having_data(all_figures.builders(self.folder))

    def plot(self, figure: str = "") -> Figure:
        """A figure of the result, by default the accuracy (or RMSE) by round.

        Raises FedRayError for an unknown name, and for a figure that the run measured nothing for.
        """
        builders = all_figures.builders(self.folder)
        return drawn(builders, figure or next(iter(builders)))

    def __repr__(self) -> str:
        cfg = self._plan.cfg
        name = registry.algorithm_name(cfg.algorithm)
        found = headlines(self._rounds[-1].measures) if self._rounds else []
        return f"{name} on {cfg.data.name}: {', '.join([f'round {len(self)} of {self._plan.rounds}', *found])}"

    def _repr_html_(self) -> str:
        return html.run(self._plan, self.summary, repr(self)) if self._outcome else html.text(repr(self))


def run(
    algorithm: Any = "pfedbayes",
    data: Any = "digits",
    *,
    partition: Any = None,
    model: Any = None,
    metrics: Mapping[str, Callable[..., float]] | None = None,
    callbacks: Sequence[Callback] = (),
    play: bool = True,
    **settings: Any,
) -> Run:
    """Run a federation, in this process unless ``runtime="ray"``; the numbers are those of the command line.

    algorithm: a name, or its settings, such as ``PFedBayes(zeta=5)``.
    data: a dataset's name, the path of a file, a DataConfig, arrays (x, y) or (x, y, client), a DataFrame, or a
        Dataset of PyTorch or Hugging Face.
    partition: a name such as ``"dirichlet"``, or {client: indices}, or {client: (training indices, test indices)}.
    model: a network's name, a ModelConfig, or an nn.Module; of a module the layers count, not its weights.
    metrics: {name: function of probabilities [n, C] and labels [n]}; measured on every client's test examples.
    callbacks: functions of a :class:`Round`, called after it; one that returns something true ends the run.
    play: False returns before the first round: iterate over the run to play it.
    settings: all others by name: of the algorithm (``lr=0.1``), the experiment (``rounds=5, seed=1``), the data
        (``alpha=0.3``), the network (``hidden=(50,)``) and the execution (``output="runs/mine", uncertainty=True``).
        ``tracking`` is the address of an MLflow store; by default nothing is tracked.

    Raises FedRayError, which names the argument, before anything starts.
    """
    with naming_arguments():
        check_packages()
        wanted = asked(algorithm, data, partition, model, metrics or {}, settings)
        if wanted.execution.loss_deviation:
            loss_deviation.check(wanted.plan)
        questions.check(wanted.plan, wanted.execution)
        session.check_gpu(wanted.execution)
        started = Run(wanted.plan, wanted.execution, _callable(callbacks))
    for note in wanted.plan.notes:
        say(f"data     {translated(note)}")
    for remark in wanted.plan.remarks:
        say(f"warning: {translated(remark)}")
    return started.play() if play else started


def _callable(callbacks: Sequence[Callback]) -> Sequence[Callback]:
    """The caller's functions; raises FedRayError for anything else."""
    functions = tuple(callbacks) if isinstance(callbacks, Iterable) else ()
    if not isinstance(callbacks, Iterable) or not all(map(callable, functions)):
        raise FedRayError(f"callbacks={callbacks!r}: are not functions of a Round; give a list of them")
    return functions


def _play(plan: Plan, execution: Execution) -> Generator[Round, bool | None, Outcome]:
    """Play a plan as a launch does; what is sent after a round says whether to stop there."""
    name = naming.name(plan, execution)
    folder = naming.place("", execution.output, name)
    store = checkpoint_place.store(folder, execution)
    with lock.locked(folder), checkpoint_place.locked_place(folder, store):
        writer = Writer(folder)
        try:
            tracker = session.open_tracker(plan, execution, name, {})
            current = stages.ActiveRun(plan, Request(plan.cfg, execution), name, writer, tracker, store, Log(), None)
            with stages.guarded(current):
                return (yield from _rounds(current))
        finally:
            writer.discard()


def _rounds(current: stages.ActiveRun) -> Generator[Round, bool | None, Outcome]:
    current, _ = stages.ready(current, session.on_gpus(current.request.execution))
    execution, store, package = current.request.execution, current.store, current.package
    opened = session.open_federation(current.plan, execution, current.name, store, None, package, ahead=False)
    with opened as federation, session.watched(current, federation):
        current = current._replace(plan=federation.plan)
        tally = stages.begin(current, None)
        for metrics in federation:
            tally = stages.account(current, tally, metrics)
            stopped = yield Round(metrics.round, report.measures(metrics), current.plan, tally.evaluated)
            if stopped and metrics.round < current.plan.rounds:
                current = current._replace(plan=_shortened(current.plan, metrics.round))
                break
        played = stages.collect(current, federation, tally)
    result = stages.conclude(current, played)
    return Outcome(result, _kept(played.snapshot, result.folder))


def _shortened(plan: Plan, played: int) -> Plan:
    """The plan of a run that ended after so many rounds, those in which newcomers adapt included; where there were none
    of these, ``adapt_rounds`` is as it was asked for."""
    rounds = min(played, plan.cfg.rounds)
    adapted = {"adapt_rounds": played - rounds} if played > rounds else {}
    return plan._replace(cfg=override(plan.cfg, {"rounds": rounds, **adapted}))


def _kept(snapshot: Snapshot, folder: Path) -> Snapshot:
    """The models of a result that has been moved to its folder: those in files went along."""
    if not isinstance(snapshot.clients, Saved):
        return snapshot
    return snapshot._replace(clients=snapshot.clients._replace(folder=str(folder / PERSONAL)))
