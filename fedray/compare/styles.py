"""How the measures of runs are called and shown, in the tables of comparisons and in those of studies."""

from __future__ import annotations

from typing import NamedTuple


class Style(NamedTuple):
    """How a metric is shown."""

    label: str
    scale: float = 1.0
    digits: int = 3
    better: int = 0  # +1: higher is better; -1: lower is better; 0: neither
    unit: bool = False  # whether it has the unit of the target, which may be any: then small ones have more decimals


STYLES = {
    "accuracy": Style("accuracy (%)", 100, 2, +1),
    "worst_decile": Style("worst tenth of clients (%)", 100, 2, +1),
    "nll": Style("NLL (nats)", better=-1),
    "ece": Style("ECE (%)", 100, 2, -1),
    "mce": Style("MCE (%)", 100, 2, -1),
    "brier": Style("Brier score", better=-1),
    "entropy": Style("entropy (nats)"),
    "mutual_information": Style("mutual information (nats)"),
    "rmse": Style("RMSE", digits=4, better=-1, unit=True),
    "worst_rmse": Style("worst tenth of clients (RMSE)", digits=4, better=-1, unit=True),
    "coverage": Style("coverage of the 90 % interval (%)", 100, 1),
    "aleatoric_sd": Style("sd of the noise", digits=4, unit=True),
    "epistemic_sd": Style("sd over posterior draws", digits=4, unit=True),
    "adaptive_ece": Style("adaptive ECE (%)", 100, 2, -1),
    "nll_scaled": Style("NLL, own temperatures (nats)", better=-1),
    "ece_scaled": Style("ECE, own temperatures (%)", 100, 2, -1),
    "aurc": Style("AURC (%)", 100, 2, -1),
    "coverage_at_risk": Style("coverage at 5 % risk (%)", 100, 1, +1),
    "risk_at_coverage": Style("risk at 80 % coverage (%)", 100, 2, -1),
    "unknown_auroc": Style("unknown-class AUROC (%)", 100, 1, +1),
    "unknown_auroc_entropy": Style("unknown-class AUROC, entropy (%)", 100, 1, +1),
    "unknown_auroc_mi": Style("unknown-class AUROC, mutual information (%)", 100, 1, +1),
    "unknown_fpr95": Style("unknown-class FPR95 (%)", 100, 1, -1),
    "far_auroc": Style("other-dataset AUROC (%)", 100, 1, +1),
    "far_fpr95": Style("other-dataset FPR95 (%)", 100, 1, -1),
    "thr_coverage": Style("coverage of 90 % sets (%)", 100, 1),
    "thr_size": Style("size of 90 % sets", digits=2, better=-1),
    "stability": Style("sd over the last 10 evaluations (%)", 100, 2, -1),
}
OTHERS = {
    "comm/bytes_up": Style("MB up", 1e-6, 1, -1),
    "comm/bytes_down": Style("MB down", 1e-6, 1, -1),
    "selection/effective": Style("effective clients", digits=1),
    "selection/chosen": Style("score of the chosen"),
    "selection/average": Style("score of all"),
}
WHOSE = {"personal": "personal", "global": "global", "novel": "newcomers'"}
WHOSE |= {f"validation/{kind}": f"{word} validation" for kind, word in WHOSE.items()}
ARROWS = {+1: " ↑", -1: " ↓", 0: ""}


def style(metric: str) -> Style:
    """How to show a metric; a metric that FedRay does not know is shown as it was logged."""
    kind, _, name = metric.rpartition("/")
    if kind in WHOSE and name in STYLES:
        return STYLES[name]._replace(label=f"{WHOSE[kind]} {STYLES[name].label}")
    return OTHERS.get(metric, Style(metric))
