"""An experiment: every setting that the numbers depend on. It fully determines the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fedray.config.data import DataConfig, ModelConfig
from fedray.types import added, check_types, require


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that the numbers depend on."""

    algorithm: Any = None
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rounds: int = 20
    """Communication rounds."""
    clients: int | None = None
    """Number of clients; by default the paper's for the dataset (10; 20 for cifar10; 198 for femnist; 30 for covertype;
    5 for uci; with lognormal sizes 100 and 20; with shards 27), or every user of a LEAF file."""
    clients_per_round: int | None = None
    """Clients that train in a round and are averaged; by default the paper's for the dataset (all; 10 of 20 for
    cifar10; 4 of 10 for sent140; 20 of 198 for femnist; 1 of 30 for covertype; with lognormal sizes 20 of 100 and 4 of
    20; with shards 1 of 27)."""
    train_all: bool = False
    """Train every client in every round; only the uploads of those selected are averaged. For methods that keep
    something on the client (pFedBreD's tables); for others it changes nothing but the time, and those whose server sums
    sites or deals chains refuse it."""
    novel_clients: int = 0
    """Clients held out of the federation, the last ones; after its rounds they adapt their personal factors alone."""
    adapt_rounds: int = 10
    """Rounds of local training of the clients that were held out."""
    selection: str = "uniform"
    """Policy that picks the clients of a round."""
    selection_epsilon: float = 0.05
    """Share ε of the uniform distribution in the probabilities of a policy that draws clients by their scores (ksd,
    hip, hip_two_phase): no client is drawn with less than ε/N. 0: the paper's probabilities."""
    seed: int = 0
    """Seed of every random stream of the run."""
    batch_size: int = 100
    """Examples per minibatch."""
    local_steps: int = 20
    """Minibatches per client and round."""
    eval_every: int = 1
    """Evaluate after every k-th round (and after the last)."""
    eval_last: int = added(0)
    """Evaluate after each of the last so many rounds, too: papers that report the best of them looked at every one."""
    eval_clients: int | None = added(None)
    """Clients that an evaluation draws anew, without replacement; by default all of them are evaluated."""
    predict_samples: int = 10
    """Posterior draws averaged at prediction; 0 predicts with the mean weights."""
    noise_generator: Literal["auto", "sfc64", "philox"] = "auto"
    """Generator of the normals that clients are given: sfc64, the fastest on CPUs; philox, whose draws are the same on
    CPUs and GPUs; auto takes sfc64 on CPUs and philox on GPUs."""
    precision: Literal["float32", "tf32"] = added("float32")
    """Matrix products on GPUs: in float32, or faster in tf32, which keeps 10 of the 23 bits of each factor. CPUs always
    use float32."""
    on_failure: Literal["retry", "skip", "abort"] = "retry"
    """What to do about a client that raises, hangs or loses its process. retry: ask again, in a new process, and stop
    the run if it keeps failing; skip: ask again, then leave the client out of the round, which changes the numbers,
    and where a process hangs, all of its clients at once; abort: stop at once."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in (
            "rounds",
            "clients",
            "clients_per_round",
            "batch_size",
            "local_steps",
            "eval_every",
            "eval_clients",
        ):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least one is needed", "give a positive whole number")
        reason, remedy = "a number of rounds is not negative", "use 0 for none"
        require(self.eval_last >= 0, "eval_last", self.eval_last, reason, remedy)
        reason, remedy = "newcomers take a round or more to adapt", "give a positive whole number"
        require(self.adapt_rounds >= 1, "adapt_rounds", self.adapt_rounds, reason, remedy)
        require(self.novel_clients >= 0, "novel_clients", self.novel_clients, "a number of clients", "use 0 for none")
        share = self.selection_epsilon
        require(0 <= share <= 1, "selection_epsilon", share, "a share lies in [0, 1]", "use 0 for the paper's draws")
        draws = self.predict_samples
        require(draws >= 0, "predict_samples", draws, "a number of draws is not negative", "use 0 for the mean weights")
        require(0 <= self.seed < 2**63, "seed", self.seed, "a seed lies in [0, 2^63)", "use 0")

    def evaluates(self, round_number: int) -> bool:
        """Whether a round of the federation ends with an evaluation, apart from those that a figure asks for."""
        return round_number % self.eval_every == 0 or round_number > self.rounds - self.eval_last
