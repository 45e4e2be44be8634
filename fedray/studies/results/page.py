"""The page of results, made of the data and of the paragraphs in why.md: nobody types a figure of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedray.compare.groups import of_runs
from fedray.compare.styles import style
from fedray.studies.results import data, figures, judgement, missing, printed, why
from fedray.studies.results.data import WORDS
from fedray.studies.results.rows import KINDS, Row, Verdict
from fedray.studies.results.sections import Judged, Section, sections_of
from fedray.studies.results.table import Table

PAGE = "README.md"
COLUMNS = (
    "cell",
    "model",
    "seeds",
    "accuracy, mean of last ten (%)",
    "best (%)",
    "paper (%)",
    "best - paper",
    "verdict",
    "NLL",
    "ECE (%)",
    "MCE (%)",
    "Brier",
    "unknown AUROC (%)",
    "CPU min per run",
)
OVERVIEW = ("table", "runs in the data", "planned", "near the paper", "orderings: hold", "refuted", "open", "CPU hours")
MORE_SEEDS = "So more are planned, after a look at the first, which makes their intervals a little too narrow."
CLAIMS = (
    "better",
    "than",
    "measure",
    "by",
    "95 % interval",
    "paper",
    "seeds",
    "answer",
    "by mean of last ten",
    "claimed in",
)
HEAD = """# Results as data

This page is made of the files beside it by `python -m fedray.studies page`. A test compares the two, so no figure in
its tables is typed by hand. Those in the paragraphs below the tables are: they come from single runs of the commands
beside them. A line of a CSV file is one run: study, cell, seed, rounds, protocol, commit, command, machine, CPU
seconds, digest of the states, and every metric.

- *Model*: each client's personal model, tested on its own test data; the global one, tested on those of all clients;
  or that of newcomers.
- *Mean of last ten*: the mean over the last ten evaluations, at most half of them, then the mean over seeds ± their
  sample standard deviation. NLL, ECE and the like are such means, too.
- *Best*: the same of each run's best evaluation. It selects on test data, as the papers do; so this column is compared
  with theirs. Where a paper takes the best of its last rounds, as of 700 to 800, so do we: *best of last eighth*. Then
  every one of these rounds is evaluated for the best, but every 20th for the means, as before.
- *Verdict*: within the paper's ±; within 1 point; within twice the ±; or apart. All but the last are *near the paper*.
  Our split of the data is new for each seed. Each cell that is apart has a paragraph, from [why.md](why.md).
- *NLL*, *ECE*, *MCE*, *Brier*: the negative log-likelihood in nats, mean and largest calibration error in ten bins, and
  the Brier score, 0 to 2. *Unknown AUROC*: how well the models' doubt tells classes that a client lacks; 50 is chance.
- *Claims* are those of the papers' words, and their bold face: the best figure of a column is better than every other.
  They are answered by what the paper prints, the best, and again by the mean of the last ten. Claims about plots, and
  questions of our own, have the mean of the last ten alone. Claims about the speed of convergence are left out.
  Questions of ours are counted apart, and marked *ours*.
- *By*: the mean difference over the same seeds, hence the same partition, with Student's 95 % interval. It is above
  zero where the first cell is better: more accurate, or with a smaller NLL, ECE or deviation. A claim *holds* if the
  interval is above zero, is *refuted* if it is below or no seed differs, and stays *open* otherwise: *within a point*
  where the whole interval is that near zero. The intervals are not corrected for their number.
- *Paper*, beside the interval: the difference of the two figures that the paper prints. Where the whole interval is
  below it, the first cell is better by *less than printed*, if at all; where it is above, by *more than printed*.
  Printed deviations are left out of this. The figure below a table's claims has all of it.
- Methods, policies and symbols are those of the pages of [methods](../methods/README.md) and the
  [glossary](../glossary.md). MCLR is logistic regression, DNN a network with a hidden layer of 100.

`python -m fedray.studies verify STUDY/CELL --seed S` plays a line again and compares; `--rounds R` where the study has
tables of several lengths. `python -m fedray.studies all` plays what is missing, cheapest first. Both, and the commands
below, find the data by `$FEDRAY_DATA_ROOT` or `--data.root`. A study writes its lines here with `--runtime local
--record docs/results`. FOLDER in a paragraph is the result folder of the run that it is about.
"""
AGREEMENT = """Every accuracy that a paper prints, or logs of BPFed's code have, and that we have played: ours minus
theirs. Bars are the printed ±. Beyond one point the scale is logarithmic.
"""


def make(folder: Path) -> str:
    """The text of the page; raises FedRayError for damaged data."""
    sections = sections_of(folder)
    paragraphs = why.paragraphs(folder)
    shown = [each for each in sections if each.rows or each.table.registered]
    parts = [
        HEAD,
        *_summary(sections),
        *_unplanned(folder, sections),
        missing.total(missing.missing(folder)) + ".\n",
        *_overview(sections),
    ]
    if any(each.verdicts for each in sections):
        parts += [AGREEMENT, figures.LINK_AGREEMENT, ""]
    return "\n".join([*parts, *(_text(each, paragraphs) for each in shown)]).rstrip() + "\n"


def draw(folder: Path) -> None:
    """Write the figures that the page shows; raises FedRayError for damaged data."""
    figures.draw_all(folder, sections_of(folder))


def gaps(folder: Path) -> list[str]:
    """The paragraphs that why.md lacks, or has without need; raises FedRayError for damaged data."""
    cells = (cell for each in sections_of(folder) for cell in each.cells.items())
    apart = {name: len(row.lines) for name, row in cells if row.apart}
    return list(why.gaps(why.paragraphs(folder), apart))


def _summary(sections: Sequence[Section]) -> Iterator[str]:
    """How much is played, what it cost, and how much of it agrees."""
    lines = [line for each in sections for line in each.lines]
    filled = sum(bool(each.rows) for each in sections)
    yield (
        f"**{len(lines)} runs** of {filled} of {len(sections)} tables are in the data; they took "
        f"{sum(line.cpu_seconds for line in lines) / 3600:.2f} CPU hours.\n"
    )
    first = [each for each in sections if not each.table.reading]
    verdicts = [verdict for each in first for verdict in each.verdicts]
    with_sd = [each for each in verdicts if each.paper.sd is not None]
    without = [each for each in verdicts if each.paper.sd is None and each.paper.printed]
    logged = [each for each in verdicts if not each.paper.printed]
    yield _share(with_sd, "accuracies that a paper prints with a ±", "within the larger of 1 point and twice the ±")
    yield _share(without, "accuracies that a paper prints without a ±", "within 1 point")
    if logged:
        yield _share(logged, "accuracies that are in logs of a paper's code", "within 1 point")
    for each in sections:
        if each.table.reading and each.verdicts:
            yield _reread(each, verdicts)
    fitted = sum(len(each.verdicts) for each in first if each.table.fitted)
    yield (
        f"{fitted} of these {len(verdicts)} figures are of pFedBayes' tables: readings of their protocol were chosen "
        "by some of the same figures, as that of MNIST small says. A figure that stands in two tables counts twice."
    )
    if old := sum(not row.current for each in sections for row in each.rows):
        yield f"{old} cells were played with settings that the study no longer has (†): they count in neither share."
    claims = [claim for each in sections for claim in printed.claims(each.table)]
    found = [each for section in sections for each in section.claims]
    papers = [each for each in found if not each.claim.ours]
    yield _tally([each.said for each in papers], sum(not claim.ours for claim in claims), "claims of papers")
    if inferred := [each.said for each in papers if each.claim.inferred]:
        yield (
            f"{len(inferred)} of these are our reading, of figures that have no mark in our copy of the paper "
            f"(*largest*) or of what its text says in other words (*inferred*): {_count(inferred)}."
        )
    if alike := sum(each.alike for each in papers):
        yield (
            f"The intervals of {alike} of the open claims lie within a point of zero: whichever cell is better "
            "there, it is not by more than that."
        )
    if with_size := [each for each in papers if each.paper is not None]:
        yield _sizes(with_size)
    if any(each.last for each in papers):
        yield f"By the mean of the last ten evaluations alone, {_count([each.last or each.said for each in papers])}."
    ours = [each.said for each in found if each.claim.ours]
    yield _tally(ours, sum(claim.ours for claim in claims), "questions of ours") + "\n"


def _unplanned(folder: Path, sections: Sequence[Section]) -> Iterator[str]:
    """Which runs of the files no table shows."""
    shown = {(line.study, line.key) for each in sections for line in each.lines}
    studies = dict.fromkeys(each.table.study for each in sections)
    lines = (line for study in studies for line in data.read(folder, study))
    others = [
        f"{line.study}/{line.cell} with seed {line.seed}" for line in lines if (line.study, line.key) not in shown
    ]
    if others:
        yield f"{len(others)} more runs are in the files, but no table plans their seeds: {', '.join(others)}.\n"


def _overview(sections: Sequence[Section]) -> Iterator[str]:
    """A line for every table, those without data included."""
    yield from _header(OVERVIEW, "l" + "r" * (len(OVERVIEW) - 1))
    for each in sections:
        cost = sum(line.cpu_seconds for line in each.lines) / 3600
        near = f"{_near(each.verdicts)} of {len(each.verdicts)}" if each.verdicts else ""
        count = Counter(judged.said.answer for judged in each.claims)
        tally = [str(count[word]) if count else "" for word in ("holds", "refuted", "open")]
        planned = str(len(each.table.runs()))
        yield _line([each.table.title, str(len(each.lines)), planned, near, *tally, f"{cost:.2f}"])
    yield ""


def _share(verdicts: Sequence[Verdict], which: str, near: str) -> str:
    """How many of the figures of a kind agree with their papers."""
    if not verdicts:
        return f"Of {which} none is in the data."
    close = _near(verdicts)
    share = f"{close} ({100 * close / len(verdicts):.0f} %)"
    return f"Of {len(verdicts)} {which}, {share} are {near}."


def _reread(section: Section, verdicts: Sequence[Verdict]) -> str:
    """How many figures agree where a paper is read in another way, in the table and with all others of their kind."""
    again = section.verdicts
    papers = {each.paper for each in again}
    before = [each for each in verdicts if each.paper in papers]
    others = [each for each in verdicts if each.paper not in papers and each.paper.sd is not None]
    near, of = _near(others) + _near(again), len(others) + len(again)
    planned = section.table.seeds
    early = sum(len(list(row.verdicts())) for row in section.rows if len(row.lines) < planned)
    so_far = f" {early} of the {len(again)} have fewer than the {planned} seeds that are planned." if early else ""
    return (
        f"{len(again)} of those with a ± were played in another reading, too: with {section.table.reading} "
        f"{_near(again)} of them are near, and without it {_near(before)}. "
        f"In that reading {near} of all {of} are near ({100 * near / of:.0f} %).{so_far}"
    )


def _tally(orderings: Sequence[judgement.Ordering], of: int, which: str) -> str:
    """What is said of orderings of a kind, of which there are more in the tables than there are data for."""
    return f"Of {of} {which}, {len(orderings)} have two seeds or more: {_count(orderings)}."


def _count(orderings: Sequence[judgement.Ordering]) -> str:
    count = Counter(each.answer for each in orderings)
    return f"{count['holds']} hold, {count['refuted']} are refuted, and {count['open']} are open"


def _sizes(judged: Sequence[Judged]) -> str:
    """What is said of the size of the advantages that papers print, and what it adds to the claims that are open."""
    count = Counter(each.size for each in judged)
    too_large = sum(each.said.answer == "open" and each.size == "less than printed" for each in judged)
    return (
        f"For {len(judged)} of them a paper, or the logs of its code, have both figures. Their difference is in our "
        f"interval for {count['']}, above it for {count['less than printed']}, and below it for "
        f"{count['more than printed']}. It is above the interval of {too_large} of the open claims: whether the first "
        "cell is better is open there, but it is not better by as much as printed."
    )


def _near(verdicts: Sequence[Verdict]) -> int:
    """How many figures are not apart from their papers'."""
    return sum(each.nearness != "apart" for each in verdicts)


def _text(section: Section, paragraphs: Mapping[tuple[str, ...], str]) -> str:
    table, found = section.table, section.rows
    every = {1: "round", 2: "second round"}.get(table.eval_every, f"{table.eval_every}th round")
    parts = [f"## {table.title}\n"]
    played = f"{table.rounds} rounds, evaluated every {every}"
    played += f" and in each of the last {table.eval_last}" if table.eval_last else ""
    parts.append(f"`{_command(table, table.seeds, table.only)}`: {played}. {table.protocol}\n")
    if table.extended:
        parts.append(f"`{_command(table, table.more_seeds, table.extended)}`: {extension(section)}\n")
    if table.registered:
        parts.append(f"**Registered.** {table.registered}\n")
    if not found:
        parts.append("No run is in the data yet.\n")
        return "\n".join(parts)
    names = [name.replace("best", WORDS[table.best]) for name in COLUMNS]
    parts += _filled(names, [line for row in found for line in _figures(row)], left=2)
    parts += ["", figures.link(table)]
    if claims := section.claims:
        parts += ["", *_filled(CLAIMS, [_claim(each) for each in claims], left=3), "", figures.link_claims(table)]
    parts += _remarks(section, paragraphs)
    return "\n".join(parts) + "\n"


def extension(section: Section) -> str:
    """What is said of the rows that have more seeds than their table."""
    table = section.table
    left = [f"claims about {', '.join(table.more) if table.border else 'these rows'} open"] if table.more else []
    if table.border:
        left.append(f"verdicts on {', '.join(table.border)} within a tenth of a point of their border")
    further = {(run.cell, run.experiment.seed) for run in section.table.further().values()}
    played = sum((line.cell, line.seed) in further for line in section.lines)
    interim = " Until all are, answers about these rows are interim." if played < len(further) else ""
    why_more = f"the first seeds left {', and '.join(left)}. {MORE_SEEDS}"
    return f"{why_more} {played} of these {len(further)} runs are in the data.{interim}"


def _header(names: Sequence[str], sides: str) -> list[str]:
    """The first two lines of a table, whose columns are aligned left or right."""
    return [_line(names), _line([":--" if side == "l" else "--:" for side in sides])]


def _filled(names: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> list[str]:
    """A table without the columns that are empty in every line; the first columns are aligned left."""
    kept = [k for k in range(len(names)) if any(line[k] for line in lines)]
    header = _header([names[k] for k in kept], "".join("l" if k < left else "r" for k in kept))
    return [*header, *(_line([line[k] for k in kept]) for line in lines)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _figures(row: Row) -> Iterator[list[str]]:
    """What stands in a line for each kind of model that the method has."""
    verdicts = {verdict.kind: verdict for verdict in row.verdicts()}
    for kind in KINDS:
        last, best = row.values(f"{kind}/accuracy"), row.best(kind)
        if not last or best is None:
            continue
        verdict, calibration = verdicts.get(kind), row.paper(f"{kind}/ece") if row.current else None
        printed_ece = f"; paper {100 * calibration.mean:.2f}" if calibration else ""
        yield [
            f"{row.cell}{' †' if not row.current else ' ‡' if row.sparse else ''}",
            kind,
            str(len(last)),
            _estimate(last, 100, 2),
            _estimate(row.values(f"{row.chosen}{kind}/accuracy"), 100, 2),
            _number(verdict.paper.mean, verdict.paper.sd) if verdict else "",
            f"{100 * (best - verdict.paper.mean):+.2f}" if verdict else "",
            verdict.nearness if verdict else "",
            _estimate(row.values(f"{kind}/nll"), 1, 3),
            _estimate(row.values(f"{kind}/ece"), 100, 2) + printed_ece,
            _estimate(row.values(f"{kind}/mce"), 100, 1),
            _estimate(row.values(f"{kind}/brier"), 1, 3),
            _estimate(row.values(f"{kind}/unknown_auroc"), 100, 1),
            f"{sum(line.cpu_seconds for line in row.lines) / len(row.lines) / 60:.1f}",
        ]


def _command(table: Table, seeds: int, only: Sequence[str]) -> str:
    """What plays some cells of a table, all where none is named."""
    chosen = [f"--only {' '.join(only)}"] * bool(only) + [f"--size {table.size}"] * (table.size != "all")
    words = [table.study, *chosen, f"--seeds {seeds} --rounds {table.rounds} --eval-every {table.eval_every}"]
    words += [f"--eval-last {table.eval_last}"] * bool(table.eval_last)
    return f"python -m fedray.studies {' '.join(words)}"


def _claim(judged: Judged) -> list[str]:
    claim, said = judged.claim, judged.said
    shown = style(claim.metric)
    mean, low, high = (f"{shown.scale * value:+.{shown.digits}f}" for value in (said.by.mean, said.low, said.high))
    paper = "" if judged.paper is None else f"{shown.scale * judged.paper:+.{shown.digits}f}"
    words = (said.answer, judged.size if said.answer != "refuted" else "", "within a point" if judged.alike else "")
    answer = "; ".join(word for word in words if word)
    again = f"{judged.last.answer} ({shown.scale * judged.last.by.mean:+.{shown.digits}f})" if judged.last else ""
    source = f"ours: {claim.source}" if claim.ours else claim.source
    return [
        claim.better,
        claim.worse,
        judged.measure,
        mean,
        f"{low} to {high}",
        paper,
        str(said.by.n),
        answer,
        again,
        source,
    ]


def _remarks(section: Section, paragraphs: Mapping[tuple[str, ...], str]) -> Iterator[str]:
    """Why figures are apart, what was left behind by the study, and where the runs were played."""
    cells = section.cells
    for names, text in paragraphs.items():
        if own := [cells[name].cell for name in names if name in cells and cells[name].apart]:
            yield f"\n**{', '.join(own)}**: {text}"
    named = {name for names in paragraphs for name in names}
    for name, row in cells.items():
        if row.apart and name not in named:
            yield f"\n**{row.cell}** ({' and '.join(row.apart)}) is apart; nobody has written why."
    if not all(row.current for row in section.rows):
        yield "\n† Played with settings that the study no longer has; not compared. To verify it, check out its commit."
    if any(row.sparse for row in section.rows):
        yield (
            "\n‡ Played before each of the last rounds was evaluated: the best of every "
            f"{section.table.eval_every}th. Claims about these rows compare the best of the same rounds on both sides. "
            "They will be played again."
        )
    machines, commits = (sorted({getattr(line, name) for line in section.lines}) for name in ("machine", "commit"))
    yield f"\nPlayed on {'; and on '.join(machines)}. Commits: {', '.join(commits)}."


def _estimate(values: Mapping[int, float], scale: float, digits: int) -> str:
    if not values:
        return ""
    found = of_runs([scale * value for value in values.values()])
    return f"{found.mean:.{digits}f}" + ("" if found.sd is None else f" ± {found.sd:.{digits}f}")


def _number(mean: float, sd: float | None) -> str:
    return f"{100 * mean:.2f}" + ("" if sd is None else f" ± {100 * sd:.2f}")
