"""An MLflow tracking store: what its address means, how to open and search it, and how to explain its errors."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from fedray.types import FedRayError, first_line

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

OPTION = "--tracking.uri"
LOCK_SECONDS = 60.0  # another process may be creating the tables, which took 1 to 8 s when measured
PAGE = 500  # runs per request
FLUSHING = "is occurring prematurely)"  # ends the line in which SQLAlchemy tells why it wrote, above what went wrong

# MLflow reads these variables at each request. Its own defaults retry for minutes. Variables that are set already win.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_UV_AUTO_DETECT": "false",  # it would put the lock file of the current folder into a model
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # FedRay reports failures itself, in one line
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class Address(NamedTuple):
    """Where a tracking store is."""

    uri: str  # absolute
    artifacts: str | None  # artifact location for a new experiment; None where a server chooses it
    database: Path | None  # the file of a SQLite store


def locate(uri: str, option: str = OPTION) -> Address:
    """The address that a user wrote, made absolute.

    The empty string means runs/mlflow.db below the current folder. Artifacts go beside a SQLite file. Raises
    FedRayError, with the name of the option, unless ``uri`` is the address of a database or an MLflow server.
    """
    off = ", or none to switch tracking off" if option == OPTION else ""
    uri = uri or "sqlite:///runs/mlflow.db"
    scheme, _, rest = uri.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and rest not in ("/", "/:memory:"):
        database = Path(os.path.expanduser(rest[1:])).absolute()
        if "?" in str(database) or unquote(str(database)) != str(database):
            raise FedRayError(
                f"{option} sqlite:///{shown(str(database))}: a ? or a code such as %20 in it would lead to another "
                f"file; give one without, also in the names of its folders{off}"
            )
        return Address(f"sqlite:///{database}", (database.parent / "artifacts").as_uri(), database)
    if scheme in ("http", "https") and rest:
        return Address(uri.rstrip("/"), None, None)
    if re.fullmatch(r"(postgresql|mysql|mssql)(\+\w+)?", scheme) and rest:
        return Address(uri, Path("runs/artifacts").absolute().as_uri(), None)
    raise FedRayError(
        f"{option} {shown(uri)}: not the address of a database or MLflow server (MLflow 3 cannot store runs in plain "
        f"folders); give sqlite:///FILE.db or http://HOST:PORT{off}"
    )


def locked(database: Path | None) -> contextlib.AbstractContextManager[Any]:
    """Lock a SQLite file while its tables may be created; a store without a file needs no lock."""
    if database is None:
        return contextlib.nullcontext()
    from filelock import FileLock

    database.parent.mkdir(parents=True, exist_ok=True)
    database = Path(os.path.realpath(database))  # one lock, whatever link leads there
    Path(f"{database}.lock").touch()  # says at once where it cannot be made; FileLock would try for a minute
    # MLflow crashes when two processes create the tables of a new file at the same time.
    return FileLock(f"{database}.lock", timeout=LOCK_SECONDS)


def make(database: Path) -> None:
    """Make the file of a SQLite store, where there is none, whole or not at all; raises what the store raises.

    MLflow cannot go on with a file that has some of its tables, which take seconds.
    """
    database = Path(os.path.realpath(database))
    if _made(database):
        return
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    beside = f".{database.name}.part-"
    for left in database.parent.glob(f"{glob.escape(beside)}*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=beside, dir=database.parent) as folder:
        SqlAlchemyStore(f"sqlite:///{folder}/new.db", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine.dispose()
        if not _made(database):  # by a program that asks for no lock, such as mlflow ui
            os.replace(f"{folder}/new.db", database)


def _made(database: Path) -> bool:
    return database.exists() and (not database.is_file() or database.stat().st_size > 0)


def prepare() -> None:
    """Set what MLflow reads from the environment, in a process that will use it."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def connect(uri: str) -> MlflowClient:
    """A client of a store; fails within seconds if the store is down."""
    prepare()
    if not uri.startswith("http"):
        import sqlalchemy

        # Try once here: MLflow keeps retrying a database that it cannot open for 101 s.
        engine = sqlalchemy.create_engine(uri)
        engine.connect().close()
        engine.dispose()
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def search(client: MlflowClient, experiment_id: str, query: str, order_by: list[str] | None = None) -> list[Run]:
    """All runs of an experiment that match an MLflow query, page by page."""
    runs: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs([experiment_id], query, max_results=PAGE, order_by=order_by, page_token=token)
        runs += page
        token = page.token
        if not token:
            return runs


def shown(text: str) -> str:
    """A text with the passwords of its addresses replaced by ***."""
    text = re.sub(r"(://[^:/@\s]*):\S*@", r"\1:***@", text)  # up to the last @: a password may contain any character
    return re.sub(r"(?i)([?&;]\w*(?:password|passwd|token)=)[^&;\s]*", r"\1***", text)


def reason(err: Exception) -> str:
    """The message of a store's error, in one line and without passwords."""
    told = str(err).partition(FLUSHING)[2].strip()
    text = first_line(Exception(told) if told else err).rstrip(".")
    # Network errors are nested four deep; only the innermost one says what is wrong.
    cause = re.search(r"Caused by .*?['\"](?:.*: )?(.*?)['\"]\)+$", text)
    return shown(cause.group(1) if cause else text)[:300]


def remedy(uri: str) -> str:
    """What a user can do about a store that fails and is needed."""
    cure = "Start the database (and install its Python driver)"
    if uri.startswith("sqlite"):
        cure = "Choose a file that you can write"
    elif uri.startswith("http"):
        login = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD if it asks for a login"
        cure = f"Start the server (mlflow server --host HOST --port PORT), {login}"
    return cure
