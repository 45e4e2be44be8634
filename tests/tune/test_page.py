"""MLflow's own web page of a sweep, in headless Chromium: what a user sees of the parent and its children."""

import asyncio
import base64
import contextlib
import functools
import http.client
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from urllib.parse import quote

import aiohttp
import pytest

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import Experiment
from fedray.running.tracking import MLflowTracker
from tune.children import ParentRun, child_run
from tune.options import Sweep
from tune.planner import Planner
from tune.record import Recorder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="neither chromium nor chromium-browser is on the PATH")

ROUNDS = 8
RATES = {"t0": 0.1, "t1": 0.2, "t2": 0.4}  # the searched setting of each trial
METRICS = ("validation/global/accuracy", "validation/personal/accuracy")
NAMES = {f"sweep-{trial}" for trial in RATES}  # of the children

RUNS = """[...document.querySelectorAll(".ag-row a[href*='/runs/']")]
    .map(link => [+link.closest(".ag-row").getAttribute("row-index"), link.innerText])
    .sort((a, b) => a[0] - b[0]).map(row => row[1])"""
TEXT = "document.body ? document.body.innerText : ''"
EXPANDER = ".ag-row[row-id='{}'] button[data-component-id*='runnamecell']"
# What Plotly was given, and the lines that it drew; MLflow may give two runs the same colour.
PLOTS = """[...document.querySelectorAll(".js-plotly-plot")].map(plot => ({
    traces: plot.data.map(t => ({name: t.name, x: [...(t.x || [])], y: [...(t.y || [])]})),
    lines: [...plot.querySelectorAll(".scatterlayer .js-line")].map(line => line.getAttribute("d"))}))"""
# The axes of a plot of parallel coordinates.
AXES = """[...document.querySelectorAll(".js-plotly-plot")].flatMap(plot => plot.data).flatMap(t => t.dimensions || [])
    .map(axis => [axis.label, [...axis.values].sort()])"""


def accuracy(trial, metric, step):
    """A curve of its own for every trial and metric."""
    return 0.5 + RATES[trial] * (1 - math.exp(-step / 3)) + (0.05 if metric == METRICS[1] else 0)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A store with one sweep of three trials, written by the sweep's own recorder, and the address of its server."""
    folder = tmp_path_factory.mktemp("page")
    uri = f"sqlite:///{folder}/runs/mlflow.db"
    parent = MLflowTracker(uri, "fedray", "sweep", {"sweep.samples": 3}, {"fedray.kind": "sweep", "sweep": "sweep"})
    kept = ParentRun(uri, "fedray", parent.run_id, "sweep", "fedavg")
    base = Experiment(algorithm=FedAvg(), rounds=ROUNDS)
    recorder = Recorder(functools.partial(child_run, kept, base, Sweep(mode="max"), Planner()))
    for name, rate in RATES.items():
        trial = SimpleNamespace(trial_id=name, config={"algorithm.lr": rate}, status="RUNNING", last_result=None)
        trial.is_finished = functools.partial(lambda t: t.status == "TERMINATED", trial)
        recorder.on_trial_start(0, [trial], trial)
        for step in range(1, ROUNDS + 1):
            values = {metric: accuracy(name, metric, step) for metric in METRICS}
            row = {"round": step, "time/round_seconds": 0.1} | values
            trial.last_result = {"round": step, "rows": [row]}
            recorder.on_trial_result(step, [trial], trial, trial.last_result)
        trial.status = "TERMINATED"
        recorder.on_trial_complete(ROUNDS, [trial], trial)
    parent.log(0, {f"best/{METRICS[1]}": accuracy("t2", METRICS[1], ROUNDS)})
    parent.finish("FINISHED")
    from mlflow.tracking import MlflowClient

    children = MlflowClient(uri).search_runs(["1"], "tags.`fedray.kind` = 'trial'")
    with server(uri, folder) as address:
        yield SimpleNamespace(
            address=address,
            hint="#" + parent.hint().split("#")[1],  # what `python -m tune` tells the user to open
            parent=parent.run_id,
            children={run.info.run_name: run.info.run_id for run in children},
        )


@contextlib.contextmanager
def server(uri, folder):
    """The address of an MLflow server of a store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(folder / "server.log", "wb") as log, group(command, cwd=folder, env=environment, stderr=log) as process:
        began = time.monotonic()
        while not healthy(port):
            assert process.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() - began < 60, "the server did not start"
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/"


def healthy(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def group(command, **options):
    """A process that is killed with all of its own."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Page:
    """One page of a browser, driven over the DevTools protocol."""

    def __init__(self, socket, address, folder):
        self._socket, self._address, self._folder, self._calls = socket, address, folder, 0

    async def _call(self, method, **params):
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": params})
        while (answer := await self._socket.receive_json(timeout=30)).get("id") != self._calls:
            pass
        return answer["result"]

    async def evaluate(self, script):
        answer = await self._call("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    async def open(self, page):
        await self._call("Page.navigate", url="about:blank")  # else only the part after '#' changes
        await self._call("Page.navigate", url=self._address + page)

    async def until(self, script, holds=bool, seconds=40):
        """The value of a script as soon as it satisfies a condition."""
        began = time.monotonic()
        while not holds(value := await self.evaluate(script)):
            if time.monotonic() - began > seconds:
                where = await self.shot("failed")
                raise AssertionError(f"{value} in {where}:\n{await self.evaluate(TEXT)}")
            await asyncio.sleep(0.2)
        return value

    async def click(self, selector):
        await self.until(f"!!document.querySelector({json.dumps(selector)})")
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    async def shot(self, name):
        answer = await self._call("Page.captureScreenshot", format="png")
        (self._folder / f"{name}.png").write_bytes(base64.b64decode(answer["data"]))
        return self._folder / f"{name}.png"


def browse(visit, sweep, folder):
    """Run ``visit(page)`` in a browser that has seen nothing before; screenshots go to a folder."""
    asyncio.run(_browse(visit, sweep, folder))


async def _browse(visit, sweep, folder):
    profile = folder / "profile"
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += ["--no-proxy-server", "--window-size=1600,2000", "--remote-debugging-port=0"]
    with group([*command, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.DEVNULL) as browser:
        began, note = time.monotonic(), profile / "DevToolsActivePort"
        while not (note.exists() and "\n" in note.read_text()):
            assert browser.poll() is None and time.monotonic() - began < 30, "the browser did not start"  # noqa: PT018
            await asyncio.sleep(0.1)
        devtools = f"http://127.0.0.1:{note.read_text().split()[0]}/json/list"
        async with aiohttp.ClientSession() as session:
            async with session.get(devtools) as answer:
                target = next(each for each in await answer.json() if each["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                await visit(Page(socket, sweep.address, folder))


def test_the_parent_shows_its_children(sweep, tmp_path):
    async def visit(page):
        await page.open("#/experiments/1/runs?workflowType=machine_learning")
        await page.until(RUNS, lambda runs: runs == ["sweep"])  # the children are folded below it
        await page.click(EXPANDER.format(sweep.parent))
        await page.until(RUNS, lambda runs: runs[:1] == ["sweep"] and set(runs[1:]) == NAMES and len(runs) == 4)
        await page.shot("table")
        await page.open(f"#/experiments/1/runs/{sweep.parent}")
        text = await page.until(TEXT, lambda text: all(name in text for name in NAMES))
        assert "Child runs" in text
        await page.shot("run")

    browse(visit, sweep, tmp_path)


def test_the_compare_views_plot_the_children(sweep, tmp_path):
    steps = tuple(range(1, ROUNDS + 1))
    curves = {
        (f"sweep-{trial}", steps, tuple(accuracy(trial, metric, step) for step in steps))
        for trial in RATES
        for metric in METRICS
    }

    def drawn(plots):
        """Whether every curve is plotted, number by number, in charts with a line for each child."""
        full = [plot for plot in plots if len(set(plot["lines"]) - {None, ""}) == len(NAMES)]
        return curves <= {(t["name"], tuple(t["x"]), tuple(t["y"])) for plot in full for t in plot["traces"]}

    async def visit(page):
        await page.open(sweep.hint)
        await page.click(EXPANDER.format(sweep.parent))
        await page.until(PLOTS, drawn)
        await page.shot("curves")
        runs = quote(json.dumps(list(sweep.children.values())))
        await page.open(f"#/compare-runs?runs={runs}&experiments={quote(json.dumps(['1']))}")
        await page.until(AXES, lambda axes: ["algorithm.lr", sorted(RATES.values())] in axes)  # what was searched
        text = await page.until(TEXT, lambda text: all(name in text for name in NAMES))
        assert "Comparing 3 Runs" in text
        await page.shot("compare")

    browse(visit, sweep, tmp_path)
