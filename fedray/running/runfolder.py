"""The folder of a run from its first moment: what it takes to go on with it, and who may.

    run.json       the experiment, where it is tracked, how it was executed
    status.json    how far it is
    log.txt        what was said of it, its rounds and failures, what its processes printed
    failures.csv   its failures so far, if there are any
    checkpoints/   the federation after the last few rounds, unless --checkpoint.url says elsewhere
    (the result)   see writer.py; config.json comes last and says that the run is finished
"""  # fmt: skip

from __future__ import annotations

import contextlib
import json
import os
import shlex
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedray import registry
from fedray.config import Execution, Experiment, decisive, differences, flatten, from_dict, to_dict
from fedray.config.decode import decode, fits, refuse_damage
from fedray.data.digests import EXAMPLES
from fedray.federate.plan import PLUG_IN, Plan
from fedray.federate.planning import changed, plug_ins_of
from fedray.federate.storage import checkpoint
from fedray.federate.storage.checkpoint import STATES, CheckpointStore, rounds
from fedray.federate.storage.checkpoint_files import CheckpointError
from fedray.federate.storage.places import located
from fedray.running.files import write_json
from fedray.running.mlflow_store import shown
from fedray.types import FedRayError, first_line, require

PATIENCE = 0.5  # seconds for the lock: its file may be going just then, and has to be opened again
NOTE, FINISHED = "run.json", "config.json"
# What only the federation can answer, as long as its clients have their states.
SETTLED = ("uncertainty", "ood", "loss_deviation", "figures")


class Note(NamedTuple):
    """What a run was asked to do."""

    name: str
    experiment: Experiment  # resolved
    execution: Execution
    run_id: str | None  # in the tracking store
    package: str = ""  # key of the compiled step that it trains with; empty: none
    digests: Mapping[str, str] = {}  # of what is the user's own; older versions noted none


def write(folder: Path, note: Note) -> None:
    """Make the folder with its note."""
    write_json(folder / NOTE, _content(note))


def claim(store: CheckpointStore, note: Note, plan: Plan, before: str) -> None:
    """Leave the note beside checkpoints that are kept elsewhere, so that the run survives the loss of its folder.

    ``before`` is where a run that goes on has kept them so far, and empty for a new one. Raises FedRayError where
    nothing can be written there, or where another run is, or its result.
    """
    try:
        taken = "" if before and _ours(store, note, plan, before) else _held(store, note if before else None)
        if not taken:
            fs, path = located(store.url)
            fs.makedirs(path, exist_ok=True)
            fs.pipe_file(f"{path}/{NOTE}", json.dumps(_content(note), indent=2).encode())
    except Exception as error:  # any of a storage library's
        raise FedRayError(
            f"--checkpoint.url {store.url}: cannot be written ({first_line(error)}); check the address and your "
            "rights there"
        ) from None
    if taken:
        raise FedRayError(f"--checkpoint.url {store.url}: holds the {taken}")


def _ours(store: CheckpointStore, note: Note, plan: Plan, before: str) -> bool:
    """Whether what lies at a place is of the run that goes on: by its note, or else by the checkpoints themselves."""
    if found := _noted(store.url):
        return _same(found, note)
    if store.url == before and NOTE in checkpoint.names(store.url):  # a torn note keeps nobody from his own
        return True
    with contextlib.suppress(CheckpointError):
        return checkpoint.newest(store, plan, lambda _: None) is not None
    return False


def _held(store: CheckpointStore, own: Note | None) -> str:
    """What of another run lies at a place, and what to do; empty where nothing does.

    It may be going on, and not have a checkpoint yet. ``own`` is the note of a run that goes on, which may move its
    checkpoints.
    """
    remedy = "give an empty place" if own else f"go on with it by --resume {store.url}, or give an empty place"
    if numbers := rounds(store):
        return f"checkpoints of another run, up to round {numbers[-1]}; {remedy}"
    there = checkpoint.names(store.url)
    if FINISHED in there:
        return f"result of another run; {remedy}"
    if found := _noted(store.url):
        return f"note of another run, {found.name}, which may be going on; {remedy}"
    above = "" if "://" in store.url else os.path.dirname(store.url)  # a run's folder, of which this may be a part
    owner = _noted(above) if above else None
    if owner and _kept(above, owner) == store.url and not (own and _same(owner, own)):
        return f"checkpoints of {owner.name}, which may be going on; give an empty place"
    return "clients' states of another run; give an empty place" if STATES in there else ""


def _noted(place: str) -> Note | None:
    """The note at a place; None where there is none that can be read."""
    try:
        return read(place)
    except FedRayError:
        return None


def _same(one: Note, other: Note) -> bool:
    """Whether two notes are of one run, which may have been asked for more rounds."""
    differ = differences(flatten(decisive(one.experiment)), flatten(decisive(other.experiment)))
    return one.name == other.name and set(differ) <= {"rounds"}


def _kept(folder: str, note: Note) -> str:
    """Where the run of a folder keeps its checkpoints."""
    return store(Path(folder), note.execution).url


def clear(folder: Path, store: CheckpointStore) -> None:
    """Remove the checkpoints of a finished run, and its note beside them; what cannot be removed stays, and what
    another run has put in their place."""
    if not elsewhere(folder, store):
        checkpoint.clear(store)
        return
    own, there = _noted(str(folder)), _noted(store.url)
    if own and there and _same(own, there):
        checkpoint.clear(store)
        with contextlib.suppress(Exception):
            fs, path = located(store.url)
            fs.rm_file(f"{path}/{NOTE}")
            if not fs.ls(path, detail=False):
                fs.rmdir(path)


def elsewhere(folder: Path, store: CheckpointStore) -> bool:
    """Whether the checkpoints of a run are kept outside of its folder."""
    here = Path(os.path.realpath(folder))
    return "://" in store.url or here not in (place := Path(os.path.realpath(store.url)), place.parent)


def read(place: str) -> Note:
    """The note of a run's folder, or of the URL of its checkpoints; raises FedRayError where there is none."""
    with refuse_damage(f"--resume {place}: holds no run to go on with", "give the folder of an interrupted run"):
        fs, path = located(place if "://" in place else str(Path(place).absolute()))
        with fs.open(f"{path}/{NOTE}", "rb") as file:
            found = decode(file.read())
        registry.plug_in_again(found.get("plug_ins", ()), f"--resume {place}")
        settings = dict(found["execution"])
        # Older versions kept the failure policy among the settings of the execution.
        moved = {"on_failure": settings.pop("on_failure")} if "on_failure" in settings else {}
        experiment = experiment_of(found["algorithm"], found["experiment"] | moved)
        execution = from_dict(Execution, settings)
        if "://" in place:  # it may have moved
            execution = replace(execution, checkpoint=replace(execution.checkpoint, url=place))
        name = found["name"]
        run_id = found["run_id"]
        package, digests = found.get("package", ""), found.get("digests", {})  # older versions had none
        if (
            not isinstance(name, str)
            or Path(name).name != name
            or not fits(run_id, str | None)
            or not fits(package, str)
            or not fits(digests, dict[str, str])
        ):
            raise ValueError("its name, its run_id, its package or its digests are not one")
        return Note(name, experiment, execution, run_id, package, digests)


def _content(note: Note) -> dict[str, Any]:
    """What run.json holds."""
    return {
        "name": note.name,
        "algorithm": registry.algorithm_name(note.experiment.algorithm),
        "plug_ins": plug_ins_of(note.experiment),
        "experiment": to_dict(note.experiment),
        "execution": to_dict(note.execution),
        "run_id": note.run_id,
        "package": note.package,
        "digests": dict(note.digests),
    }


def finished_rounds(folder: Path) -> int:
    """The rounds of the result in a folder, which a run that goes on for more keeps until its end; 0 without one."""
    if not (folder / FINISHED).exists():
        return 0
    with refuse_damage(f"{folder}: the result cannot be read", "run it again in a new folder"):
        return int(decode((folder / FINISHED).read_bytes())["experiment"]["rounds"])


def holds(folder: Path, note: Note) -> bool:
    """Whether a folder is that of the noted run."""
    found = _noted(str(folder))
    return found is not None and (found.name, found.experiment, found.run_id) == (
        note.name,
        note.experiment,
        note.run_id,
    )


def experiment_of(algorithm: str, values: Mapping[str, Any]) -> Experiment:
    """The experiment of :func:`to_dict`'s values and the algorithm's name."""
    record = registry.pick(registry.algorithms(), "algorithm", algorithm)
    return from_dict(Experiment, dict(values) | {"algorithm": from_dict(record.config, values["algorithm"])})


def check_same(place: str, note: Note, asked: Experiment, execution: Execution) -> None:
    """Raise FedRayError where the options beside --resume ask for another experiment (data may have moved, and rounds
    may be added) or another place, for more than a finished run can give, or leave out the store's password."""
    ours, theirs = (registry.algorithm_name(each.algorithm) for each in (note.experiment, asked))
    if ours != theirs:
        raise FedRayError(
            f"--resume {place}: is a run of {ours}; leave {theirs} out, or start a new run without --resume"
        )
    names = differences(flatten(decisive(note.experiment)), flatten(decisive(asked)))
    if names == ["rounds"]:
        reason = f"the run began with {note.experiment.rounds}, and rounds can only be added"
        require(asked.rounds > note.experiment.rounds, "rounds", asked.rounds, reason, "give more, or leave it out")
        names = []
    if names == ["on_failure"]:
        raise FedRayError(
            f"--on-failure {asked.on_failure}: the run began with {note.experiment.on_failure}, and skip changes the "
            "numbers; leave the option out, or start a new run without --resume"
        )
    if names:
        raise FedRayError(
            f"--resume {place}: is another experiment (it differs in {', '.join(names)}); leave these options out, or "
            "start a new run without --resume"
        )
    _check_place(place, note, execution)
    if finished_rounds(Path(place)) >= asked.rounds:
        before, now = (flatten(to_dict(each)) for each in (note.execution, execution))
        for name in SETTLED:
            reason = f"{place} is finished, and its clients' states are gone"
            require(now[name] == before[name], name, now[name], reason, "leave it out, or play a new run with it")
    uri = execution.tracking.uri
    if uri != "none" and uri == note.execution.tracking.uri and "***" in uri:
        raise FedRayError(
            f"--resume {place}: the password of its store was not kept; add --tracking.uri {uri} with the password"
        )


def check_examples(place: str, note: Note, data: str, examples: str) -> None:
    """Raise FedRayError where the user's own examples, by their digest, are not those with which the run began."""
    if note.digests.get(EXAMPLES, examples) != examples:
        raise FedRayError(
            f"--resume {place}: {data} holds other examples than when the run began, and a test example "
            "may be one of training by now; bring the data of then back, or start a new run without --resume"
        )


def mended(note: Note, plan: Plan) -> dict[str, str]:
    """The digests, joined by +, of plug-ins that have changed since a run began."""
    names = [f"{PLUG_IN}{module}" for module in changed(note.digests, plan.digests)]
    return {name: f"{note.digests[name]}+{plan.digests[name]}" for name in names}


def _check_place(resume: str, note: Note, execution: Execution) -> None:
    """Raise FedRayError where a resumed run is to have another name or folder: it goes on where it is."""
    kept = note.execution
    reason, remedy = f"--resume {resume} goes on with {note.name}", "leave it out, or start a new run without --resume"
    require(execution.name in (kept.name, note.name), "name", execution.name, reason, remedy)
    if "://" not in resume:
        asked, here = execution.output, (kept.output, place(resume, None, note.name))
        same = asked in here or (asked is not None and Path(os.path.abspath(asked)) == here[1])
        require(same, "output", asked, f"{reason} where it is", remedy)


def store(folder: Path, execution: Execution) -> CheckpointStore:
    """Where the checkpoints of a run go; raises FedRayError for an address with a password."""
    cfg = execution.checkpoint
    if shown(cfg.url) != cfg.url:
        raise FedRayError(
            f"--checkpoint.url {shown(cfg.url)}: its password would end up in files; give it to fsspec in the "
            "environment of all machines (FSSPEC_<PROTOCOL>_PASSWORD)"
        )
    url = cfg.url.rstrip("/") if "://" in cfg.url else os.path.abspath(cfg.url or folder / "checkpoints")
    # Files cannot be linked into a remote store: there the states lie in a folder of each machine.
    local = f"{tempfile.gettempdir()}/{STATES}-{os.getuid()}-{zlib.crc32(url.encode()):08x}"
    states = local if "://" in url else f"{url}/{STATES}"
    states = states if execution.client_states == "disk" else ""
    return CheckpointStore(url, cfg.every, cfg.keep, cfg.on_error == "stop", states)


def absolute(execution: Execution, uri: str) -> Execution:
    """The execution without what belongs to the first start or is secret, with addresses that hold in any folder."""
    url = execution.checkpoint.url
    cfg = replace(execution.checkpoint, url=url if not url or "://" in url else os.path.abspath(url))
    tracking = replace(execution.tracking, uri=shown(uri))
    return replace(execution, name=None, output=None, checkpoint=cfg, tracking=tracking)


@contextlib.contextmanager
def locked(folder: Path, option: str = "--output") -> Iterator[None]:
    """Keep others out of the folder of a run that goes on; raises FedRayError where somebody has it."""
    from filelock import FileLock, Timeout

    real = Path(os.path.realpath(folder))  # a link to it is the same folder
    lock = FileLock(real.parent / f".{real.name}.lock")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=PATIENCE)
    except OSError as error:
        if isinstance(error, Timeout) and Path(lock.lock_file).exists():
            raise FedRayError(
                f"{option} {folder}: what is there is going on in another process; wait for it or stop it"
            ) from None
        reason = error.strerror or "permission denied"
        raise FedRayError(
            f"{option} {folder}: cannot be written ({reason}); choose a folder that you may write to"
        ) from None
    try:
        yield
    finally:
        # Before the release: who has opened the file and waits then finds that it has no name any more, and opens it
        # anew. After it, that lock and one on the next file of this name would both hold.
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def place_locked(folder: Path, store: CheckpointStore) -> contextlib.AbstractContextManager[None]:
    """Keep others out of where the checkpoints of the run of a folder are kept, if that is another folder here.

    Not where the file of the lock cannot lie beside it, as beside a volume: whether the place itself can be written
    is said by :func:`claim`.
    """
    here = "://" not in store.url and elsewhere(folder, store)
    beside = os.path.dirname(os.path.realpath(store.url))
    lockable = here and os.access(beside, os.W_OK | os.X_OK)
    return locked(Path(store.url), "--checkpoint.url") if lockable else contextlib.nullcontext()


def place(resume: str, output: str | Path | None, name: str) -> Path:
    """Where a result goes: the folder that is resumed, or a new one."""
    here = resume and "://" not in resume
    return Path(os.path.abspath(resume if here else output or Path("runs") / name))


def command(folder: Path) -> str:
    """What to type to go on with the run of a folder."""
    return f"python -m fedray.launch --resume {shlex.quote(str(folder))}"


def given_name(execution: Execution) -> str:
    """The user's name for what is played, or the empty one; raises FedRayError for one that is a path."""
    given = execution.name or ""
    if given and (given == ".." or Path(given).name != given or not given.isprintable()):
        shown_name = given if given.isprintable() else repr(given)
        raise FedRayError(f"--name {shown_name}: is not a plain name; use --output for a folder elsewhere")
    return given


def name(plan: Plan, execution: Execution) -> str:
    """A run's name, the user's or algorithm-dataset-s<seed>-<time>; raises FedRayError for one that is a path."""
    if given := given_name(execution):
        return given
    dataset = Path(plan.cfg.data.name).stem
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return f"{registry.algorithm_name(plan.cfg.algorithm)}-{dataset}-s{plan.cfg.seed}-{stamp}"
