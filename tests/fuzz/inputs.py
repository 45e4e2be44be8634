"""A small result and a checkpoint, and random damage to their files."""

from __future__ import annotations

import json
import random
import shutil
import signal
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedray.config import Execution
from fedray.config.decode import decode
from fedray.federate.in_process import LocalFederation
from fedray.federate.plan import Plan
from fedray.federate.storage import checkpoint, checkpoint_files
from fedray.federate.uncertainty import summary as uncertain
from fedray.running import finished, progress
from fedray.running.folder import notes
from fedray.running.progress import Status
from fedray.running.writer import Writer
from fedray.types import FedRayError
from tests.helpers import small_plan

PATIENCE = 20  # seconds after which a reader hangs
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 2**70, -(2**200), 1e308, float("nan"), float("inf"), "", "\x00", "x" * 5000,
    "~nouser/x", [], {}, [[]], [None], {"": None}, [10**9] * 3, [0], [-1],
)  # fmt: skip


def prepare(folder: Path) -> Plan:
    """A finished result and an interrupted run with a checkpoint, in folders of these names."""
    plan = small_plan("pfedbayes", {"rounds": 2, "model.hidden": (4,), "local_steps": 1})
    federation = LocalFederation(plan, store=checkpoint.CheckpointStore(str(folder / "run/checkpoints")))
    list(federation)
    writer = Writer(folder / "result")
    writer.run(plan, federation.snapshot(), federation.history().spotlights)
    found = federation.uncertainty()
    writer.table(uncertain.CLIENTS, uncertain.client_rows(found))
    writer.json("summary.json", {"uncertainty": uncertain.summarize(plan, Execution(uncertainty=True), found)})
    writer.commit()
    notes.write(folder / "run", notes.Note("run", plan.cfg, Execution(), None))
    progress.write(folder / "run", Status("run", "running", 1, 2, {"personal/accuracy": 0.5}, 1.0, 0, 1, "go on"))
    return plan


def readers(folder: Path, plan: Plan) -> dict[str, Callable[[], object]]:
    """Every file that is damaged, relative to the folder, and who reads it."""
    kept = folder / "run/checkpoints/round-000001"
    found: dict[str, Callable[[], object]] = {
        "run/status.json": lambda: progress.line(progress.read(folder / "run")),
        "run/run.json": lambda: notes.read(str(folder / "run")),
    }
    files = ("config.json", "partition.npz", "global.safetensors", "personal.safetensors", "summary.json")
    for name in (*files, uncertain.CLIENTS):
        found[f"result/{name}"] = lambda: repr(finished.load(folder / "result"))
    for path in kept.iterdir():
        found[str(path.relative_to(folder))] = lambda: checkpoint_files.read(str(kept), plan)
    return found


def damage(content: bytes, rng: random.Random, text: bool) -> bytes:
    """The content after one accident: of the bytes or, of a JSON text, of a value in it."""
    kind = rng.randrange(8 if text else 5)
    at = rng.randrange(len(content))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    if kind == 2:
        return content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at:]
    if kind == 3:
        return rng.randbytes(rng.randrange(64))
    if kind == 4:
        end = rng.randrange(at, len(content) + 1)
        return content[:at] + content[end:]
    if kind == 5:
        depth = rng.choice([50, 100, 1000, 100_000])
        return rng.choice([b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth])
    value = json.loads(content)
    return json.dumps(_replaced(value, rng)).encode()


def _replaced(value: Any, rng: random.Random) -> Any:
    """A value in which one part is another, is missing, or is there twice."""
    if not isinstance(value, list | dict) or not value or rng.random() < 0.1:
        return rng.choice(ODD)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    if rng.random() < 0.1:
        value.pop(key)
    else:
        value[key] = _replaced(value[key], rng)
    return value


def confirm(folder: Path, name: str, content: bytes) -> None:
    """Make the manifest of a checkpoint confirm a damaged file: its checksums do not save its reader."""
    path = folder / "manifest.json"
    manifest = decode(path.read_bytes())
    for file in manifest["files"]:
        if file["name"] == name:
            file |= {"size": len(content), "crc32": zlib.crc32(content)}
    body = {key: manifest[key] for key in ("format", "config", "round", "files")}
    manifest["crc32"] = zlib.crc32(json.dumps(body, sort_keys=True).encode())
    path.write_text(json.dumps(manifest))


def play(folder: Path, inputs: int, seed: int) -> Counter[str]:
    """Read damaged files; what each came to: 'read', 'refused', or a foreign exception with its file."""
    plan = prepare(folder)
    readers_of = readers(folder, plan)
    whole = {name: (folder / name).read_bytes() for name in readers_of}
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    before = signal.signal(signal.SIGALRM, _hangs)
    try:
        for _ in range(inputs):
            name = rng.choice(sorted(readers_of))
            content = damage(whole[name], rng, name.endswith(".json"))
            path = folder / name
            path.write_bytes(content)
            manifest = path.parent / "manifest.json"
            if "checkpoints" in name and path != manifest and rng.random() < 0.5:
                confirm(path.parent, path.name, content)
            signal.alarm(PATIENCE)
            found[_answer(readers_of[name], name)] += 1
            signal.alarm(0)
            for other in (path, manifest) if manifest.exists() else (path,):
                other.write_bytes(whole[str(other.relative_to(folder))])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        shutil.rmtree(folder)
    return found


def _answer(read: Callable[[], object], name: str) -> str:
    try:
        read()
        return "read"
    except FedRayError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__} over {name}: {str(error)[:100]}"


class HangError(Exception):
    """A reader takes too long."""


def _hangs(*_: object) -> None:
    raise HangError(f"more than {PATIENCE} s")
