"""pFedBayes' Tables 1, 2 and 3, and its rivals with as many steps."""

from __future__ import annotations

from typing import Literal

from fedray.studies.results.data import LATE
from fedray.studies.results.table import Table, asked, claimed

ACCURACY = ("personal/accuracy", "global/accuracy")
READINGS = """

**Six readings were chosen on test data**, because seed 0 came nearer to printed figures of MNIST or, for the first, of
FMNIST:

1. pFedBayes takes one step of its posterior per minibatch; our default and public code take five.
2. Its models are tested by one draw of their weights. Large fits ten draws better, and some rows of Table 2 may.
3. Per-FedAvg is tested after two steps. This takes it further from its figures on small.
4. pFedMe and Per-FedAvg have minibatches of 100, too; in pFedMe's code they have 20.
5. BNFed has inputs in [0, 1], and the variances of its authors' code.
6. HeurFedAMP's clients start from the average that they are sent, without a further pull to it, and are tested by it,
   as pFedMe's code tests FedAvg's model: before it is trained. The paper calls α a regularization weight of 5 in its
   section 5.2, and the share of a client's own model in B.1, with which our ξ agrees. With α = 0.1 its figures are
   within 2.1 points of FedAvg's. They were read so in Table 3, before Table 1 was played. Until then our clients had
   the pull of public codes (λ = 1, α = 10⁴) and their own models, and trained alone for all that one can tell.

Readings that came out further away were dropped, pFedMe's own start of its proximal steps among them. In pFedMe's code
Per-FedAvg takes the steps before its test on test examples; ours are training examples, and this explains none of the
gaps of its figures ([why.md](why.md)). pFedGP's features first came after the ReLU. They are now those of a linear
layer, as in its public code, because units can die there, and long runs collapsed: this is further from the printed
figure on MNIST small, and nearer on FMNIST small."""
TABLE1 = (
    "The paper reports the highest accuracy over 700 to 800 rounds, and public code evaluates every round. We take the"
    " best of the last eighth, every round of it: an unsteady model's best of 101 evaluations is well above that of "
    "six. Settings are those of its section 5.2, but HeurFedAMP's share is the 0.5 of its appendix B.1, for 5 is none."
    " pFedBayes takes the steps of its Algorithm 1, with Adam. Where the paper is silent, numbers of steps and "
    "examples are those of public code: pFedMe's, on which its experiments are built, or that of the method. So a "
    "round has 20 local steps, on minibatches of 100 examples for every method that the paper has. On each, pFedBayes "
    "takes one step of its posterior and one of its copy of the global distribution, pFedMe five, and the others one; "
    "a step of Per-FedAvg draws two minibatches. pFedGP alone has five steps: its public code takes one on a whole "
    "shard, whose matrices are too large here. With 20 its figures on large are the same (see there). Methods that the"
    " paper lacks have our defaults: minibatches of 50, five steps on each, and ten draws for BPFed, and minibatches "
    "of 20 with five proximal steps for pFedBreD. The settings of FedAMP, FedEM and FedPop were first chosen by "
    "accuracies on test data of MNIST small, then checked on validation examples ([methods](../methods/README.md)). "
    "Where three seeds leave a verdict within a tenth of a point of its border, on either side, six are planned: the "
    "rule was written down before these were played. Not planned, for their cost, are CIFAR-10 medium and large and, "
    "on CIFAR-10 small, the five methods that the paper has beside pFedBayes, FedAvg and pFedMe."
    f"{READINGS}"
)
AS_TABLE1 = "The protocol is that of [Table 1, MNIST small](#pfedbayes-table-1-mnist-small)."
CIFAR10 = (
    f"{AS_TABLE1} Ten of twenty clients train in a round. Algorithm 1 of the paper, and pFedMe's code, train all and "
    "average ten: so posteriors and personal models here have had half of their steps. pFedBayes was played before a "
    "client that is first drawn late began with the global distribution."
)
QUARTER = (
    "No paper has these figures: pFedBayes' prints none after a quarter of its rounds. Methods that it lacks stand "
    "beside its own. The protocol is otherwise that of [Table 1, MNIST small](#pfedbayes-table-1-mnist-small)."
)
TUNING = f"{AS_TABLE1} The rows are the paper's: no rate is chosen here, but the readings of that protocol were."
NOISE = (
    f"{AS_TABLE1} One thing differs. By the paper's equation 26 a draw of the weights is μ + σε, with ε from N(0, 1). "
    "In public code ε has a standard deviation of 0.001, in training and in tests. The paper does not say so. Such a "
    "model is all but its mean weights, and σ is no posterior: the divergence alone shapes it."
)
NOISE_QUESTION = (
    "*Question*: are the printed figures of pFedBayes those of its public code's noise? The gaps of Tables 1 and 2 "
    "raised it. Six runs with this noise were played for single rows of Table 2, on MNIST medium with seed 0: that of "
    "the base, whose settings are Table 1's, and that of ρ = -1 were near in both models, and the global models of the "
    "other four were not. *Runs*: all columns of MNIST and FMNIST in Table 1, three seeds, nothing else changed. "
    "*Statistic*: how many of the twelve printed figures are near, by the rule for verdicts. With equation 26 ten are, "
    "as was known when this was written; MNIST large and FMNIST small have global models that are apart. *Decision*: "
    "the twelve are counted beside those of equation 26, whatever comes out, and the equation stays the default."
)
CODE = (
    f"{AS_TABLE1} Here pFedBayes trains as its public code does (preset `a_parity`). Five things differ. The posterior "
    "takes five steps per minibatch, as in our default. Its loss has the NLL of the minibatch alone, and a divergence "
    "that is divided by the round's 20 steps. Noise has an sd of 0.001. The global copy w_i keeps its moments of Adam."
)
CODE_QUESTION = (
    "*Question*: are the printed figures of pFedBayes those of its public code? Noise alone is no answer (see the "
    "table above). One run with all but the five steps was played before, on FMNIST large with seed 0: 93.27 and "
    "81.71, where 93.01 and 83.30 are printed. *Runs*: all columns of MNIST and FMNIST in Table 1, three seeds, "
    "nothing else changed. *Statistic*: how many of the twelve printed figures are near, by the rule for verdicts. "
    "With equation 26 and one step ten are, with the noise alone eight. *Decision*: the twelve are counted beside "
    "those of equation 26, whatever comes out, and neither our default nor the reading of Table 1 changes."
)
GP = (
    f"{AS_TABLE1} Here pFedGP trains as its public code does (preset `public_code`). Two things differ. Its loss is "
    "the sum of the mean NLLs in the nodes of the class tree, where ours is the mean NLL of an example along its path. "
    "And SGD has a momentum of 0.9, from 0 in every round, and a weight decay of 0.001. The five steps on minibatches "
    "stay."
)
GP_QUESTION = (
    "*Question*: are the printed figures of pFedGP those of its public code's training? Two runs were played before, "
    "on FMNIST large with seed 0, to round 200 alone: 90.35 with the loss, 90.66 with the optimizer, too, where ours "
    "had 90.00, and 92.22 is printed. *Runs*: pFedGP's columns of MNIST and FMNIST in Table 1, three seeds, nothing "
    "else changed. *Statistic*: how many of the six printed figures are near, by the rule for verdicts. With our loss "
    "three are: MNIST large, FMNIST small and medium. *Decision*: the six are counted beside those of our loss, "
    "whatever comes out, and neither our default nor the reading of Table 1 changes."
)
EQUAL_STEPS = (
    "No paper has this table. In Table 1 of pFedBayes a client's model takes five times as many steps in some methods "
    "as in others. Here it takes 100 gradient steps per round in every method, on minibatches of 100. So steps are "
    "equal, and examples are not: pFedBayes and pFedMe take five steps on each of 20 minibatches, Per-FedAvg 50 of two "
    "gradients, each on its own minibatch, and the others one on each of 100. The rates are the same, but BNFed has "
    "our 0.1, with our inputs and variances. Posteriors predict by the mean of ten draws, and Per-FedAvg's model after "
    "one step."
)

PERSONAL_RIVALS = ("pfedme", "per_fedavg", "heurfedamp")
GLOBAL_RIVALS = ("pfedme", "fedavg", "fedprox", "bnfed")
RIVALS = ("pfedbayes", *dict.fromkeys((*PERSONAL_RIVALS, *GLOBAL_RIVALS)))
PRINTED = (*RIVALS, "pfedgp")  # the columns of Table 1
PERSONALIZED = ("bpfed", "fedper", "fedrep", "lg_fedavg", "fedem", "fedpop", "fedamp", "pfedbred")
CONTROLS = ("local", "pooled")
ZETA = (  # "increasing ζ can improve the test accuracy of the global model and weaken ... the personalized model"
    *claimed("pFedBayes, B.1", "global/accuracy", "zeta=20", "zeta=0.5"),
    *claimed("pFedBayes, B.1", "personal/accuracy", "zeta=0.5", "zeta=20"),
)
OPEN = {
    ("FMNIST", "small"): ("pfedbayes", "per_fedavg", "fedprox", "fedavg", "pfedme", "pfedgp"),
    ("FMNIST", "medium"): ("pfedbayes", "fedprox", "pfedme", "per_fedavg", "fedavg"),
    ("FMNIST", "large"): ("pfedbayes", "fedavg"),
    ("MNIST", "large"): ("pfedbayes", "fedavg", "fedprox"),
}
BORDER = {  # verdicts on a printed ± that three seeds left within a tenth of a point of the border, on either side
    ("MNIST", "small"): ("heurfedamp",),
    ("MNIST", "large"): ("pfedme",),  # and pfedbayes on FMNIST medium, which is among the above
    ("FMNIST", "large"): ("pfedgp",),
}


def _table1(dataset: str, size: Literal["small", "medium", "large"]) -> Table:
    return Table(
        f"table1-{dataset.lower()}",
        f"pFedBayes, Table 1: {dataset} {size}",
        TABLE1 if (dataset, size) == ("MNIST", "small") else AS_TABLE1,
        800,
        20,
        3,
        sources=("pFedBayes, Table 1",),
        best=LATE,
        eval_last=100,
        bold=ACCURACY,
        only=PRINTED if size == "large" else (*PRINTED, *PERSONALIZED, *CONTROLS),
        size=size,
        more=OPEN.get((dataset, size), ()),
        border=BORDER.get((dataset, size), ()),
        fitted=True,
    )


def _reread(study: str, title: str, protocol: str, registered: str, reading: str) -> Table:
    """A method's columns of Table 1 where a paper is read in another way."""
    return Table(
        study,
        f"pFedBayes, Table 1: {title}",
        protocol,
        800,
        20,
        3,
        sources=("pFedBayes, Table 1",),
        best=LATE,
        eval_last=100,
        registered=registered,
        reading=reading,
        fitted=True,
    )


def _equal_steps(dataset: str) -> Table:
    """Is pFedBayes still better than the rivals that its paper has?"""
    question = "with as many steps"
    claims = (
        *asked(question, "personal/accuracy", *(f"{name}-small" for name in ("pfedbayes", *PERSONAL_RIVALS))),
        *asked(question, "global/accuracy", *(f"{name}-small" for name in ("pfedbayes", *GLOBAL_RIVALS))),
    )
    title = f"Equal steps: {dataset} small"
    return Table(f"equal-steps-{dataset.lower()}", title, EQUAL_STEPS, 200, 5, 3, claims, only=RIVALS, size="small")


TABLES = (
    _table1("MNIST", "small"),
    _table1("FMNIST", "small"),
    _table1("MNIST", "medium"),
    _table1("FMNIST", "medium"),
    _table1("MNIST", "large"),
    _table1("FMNIST", "large"),
    _table1("CIFAR10", "small")._replace(
        title="pFedBayes, Table 1: CIFAR-10 small",
        protocol=CIFAR10,
        only=("pfedbayes", "fedavg", "pfedme"),
        fitted=False,
    ),
    _reread("table1-noise", "with the noise of public code", NOISE, NOISE_QUESTION, "the noise of public code"),
    _reread("table1-code", "trained as by public code", CODE, CODE_QUESTION, "the training of public code"),
    _reread("table1-gp", "pFedGP as in its public code", GP, GP_QUESTION, "the training of pFedGP's public code"),
    Table(
        "table1-cifar10",
        "CIFAR-10 small at 200 rounds",
        QUARTER,
        200,
        5,
        3,
        best=LATE,
        eval_last=25,
        only=("pfedbayes", "bpfed", "fedavg", "fedper", "pfedme"),
        size="small",
    ),
    _equal_steps("MNIST"),
    _equal_steps("FMNIST"),
    Table(
        "table2",
        "pFedBayes, Table 2: ζ, ρ and learning rates",
        TUNING,
        800,
        20,
        3,
        ZETA,
        sources=("pFedBayes, Table 2",),
        best=LATE,
        eval_last=100,
        bold=("global/accuracy",),
        more=("base", "zeta=0.5", "zeta=1", "zeta=20", "rho_init=-2,lr_personal=0.005,lr_global=0.001"),
        fitted=True,
    ),
    Table(
        "table3",
        "pFedBayes, Table 3: learning rates of the rivals",
        TUNING,
        800,
        20,
        3,
        sources=("pFedBayes, Table 3",),
        best=LATE,
        eval_last=100,
        bold=ACCURACY,
        within_rows=True,
        more=("per_fedavg,alpha=0.01", "per_fedavg,alpha=0.1"),
        fitted=True,
    ),
)
