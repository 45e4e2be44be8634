"""python docs/figures/table2.py RESULTS: the first table and figure of docs/results.md.

RESULTS is the folder of the study ``table2``, with its runs over ζ. Prints the table and writes table2.png beside this
file.
"""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np

import fedray
from fedray.data import loading
from fedray.running.drawing.figure_style import COLOURS, GREY

matplotlib.use("Agg")
from matplotlib import pyplot as plt

MODELS = ("personal", "global")
PAPER = {  # Zhang et al., ICML 2022, Table 2: rho = -2.5, both learning rates 0.001
    0.5: (97.13, 89.88),
    1.0: (97.41, 91.24),
    5.0: (97.38, 93.03),
    10.0: (97.18, 93.22),
    20.0: (97.04, 92.77),
}


def mean_weights(folder: Path) -> tuple[float, ...]:
    """Accuracies in % of the personal models and the global model after the last round, with mean weights."""
    run = fedray.load(folder)
    dataset = loading.load(run.plan.cfg.data)
    test = run.plan.partition.test
    right = np.zeros(2)
    for client, indices in enumerate(test):
        for model, name in enumerate((client, None)):
            probs = run.predict(dataset.x[indices], client=name, samples=0).probs
            right[model] += (probs.argmax(-1).numpy() == dataset.y[indices]).sum()
    return tuple(100 * right / sum(map(len, test)))


def collect(results: Path) -> dict[float, np.ndarray]:
    """ζ -> accuracies in % [seeds, 2, 2]: with the run's own posterior draws or with mean weights; personal, global."""
    found: dict[float, list] = {}
    for folder in sorted(results.glob("[!.]*")):
        config = json.loads((folder / "config.json").read_text())
        summary = json.loads((folder / "summary.json").read_text())
        draws = [100 * summary[model]["accuracy"] for model in MODELS]
        zeta = config["experiment"]["algorithm"]["zeta"]
        found.setdefault(zeta, []).append([draws, mean_weights(folder)])
    return {zeta: np.array(found[zeta]) for zeta in sorted(found)}


def draw(ours: dict[float, np.ndarray], path: Path) -> None:
    """Plot the accuracy with posterior draws against ζ, with error bars (one sd), beside the paper's."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), constrained_layout=True)
    for m, (axis, model) in enumerate(zip(axes, MODELS, strict=True)):
        mean, sd = (np.array([of(runs[:, 0, m]) for runs in ours.values()]) for of in (_mean, _sd))
        axis.errorbar(list(ours), mean, sd, fmt="o-", color=COLOURS[model], capsize=4, label="FedRay, mean ± sd")
        best = [row[m] for row in PAPER.values()]
        axis.plot(list(PAPER), best, "s--", color=GREY, label="paper, Table 2, best round of 700-800")
        axis.set_xscale("log")
        axis.set_xticks(list(PAPER), [f"{zeta:g}" for zeta in PAPER])
        axis.minorticks_off()
        axis.set(xlabel="weight of the KL divergence, ζ", ylabel="accuracy (%)")
        axis.set_title(f"{model} model", pad=26)
        axis.legend(fontsize=8, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.savefig(path, dpi=150)


def _mean(values: np.ndarray) -> np.ndarray:
    return values.mean(0)


def _sd(values: np.ndarray) -> np.ndarray:
    return values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])


def main() -> None:
    ours = collect(Path(sys.argv[1]))
    print("| ζ | personal | global | personal, mean weights | global, mean weights | paper, personal | paper, global |")
    print("|" + "---:|" * 7)
    for zeta, runs in ours.items():
        mean, sd = _mean(runs).ravel(), _sd(runs).ravel()
        cells = [f"{a:.2f} ± {b:.2f}" for a, b in zip(mean, sd, strict=True)] + [f"{v:.2f}" for v in PAPER[zeta]]
        print(f"| {zeta:g} | " + " | ".join(cells) + " |")
    draw(ours, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
