"""The address of a tracking store: what it means, how the store is opened, and what is said where it fails."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.types import FedRayError, first_line

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

LOCK_SECONDS = 60.0  # another process may be creating the tables: 1-8 s measured

# Read by MLflow at each request; its own defaults retry for minutes. What the user has set stays.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # failures are reported here, in one line
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def resolve(uri: str) -> tuple[str, str | None, Path | None]:
    """(absolute tracking URI, artifact location for a new experiment, SQLite file) of what the user wrote.

    '' means runs/mlflow.db below the current folder; artifacts go beside a SQLite file, a server places them
    itself. Raises FedRayError for what is not the address of a database or server.
    """
    uri = uri or "sqlite:///runs/mlflow.db"
    scheme, _, rest = uri.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and rest not in ("/", "/:memory:"):
        database = Path(rest[1:]).expanduser().absolute()
        return f"sqlite:///{database}", (database.parent / "artifacts").as_uri(), database
    if scheme in ("http", "https") and rest:
        return uri.rstrip("/"), None, None
    if re.fullmatch(r"(postgresql|mysql|mssql)(\+\w+)?", scheme) and rest:
        return uri, Path("runs/artifacts").absolute().as_uri(), None
    raise FedRayError(
        f"--tracking.uri {shown(uri)}: not the address of a database or MLflow server, and MLflow 3 keeps "
        "no runs in plain folders; give sqlite:///FILE.db, http://HOST:PORT, or none to switch tracking off"
    )


def locked(database: Path | None) -> contextlib.AbstractContextManager[Any]:
    """Hold a SQLite file that another process may be creating."""
    if database is None:
        return contextlib.nullcontext()
    from filelock import FileLock

    database.parent.mkdir(parents=True, exist_ok=True)
    # Two processes that create the tables of a fresh file at once crash.
    return FileLock(f"{database}.lock", timeout=LOCK_SECONDS)


def connect(uri: str) -> MlflowClient:
    """A client of an existing or empty store; fails in seconds where it is down."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not uri.startswith("http"):
        import sqlalchemy

        # One try of our own: MLflow retries a database that it cannot open for 101 s.
        engine = sqlalchemy.create_engine(uri)
        engine.connect().close()
        engine.dispose()
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def shown(text: str) -> str:
    """An address, or a text with addresses, without their passwords."""
    text = re.sub(r"(://[^:/@\s]*):\S*@", r"\1:***@", text)  # up to the last @: a password may hold any sign
    return re.sub(r"(?i)([?&;]\w*(?:password|passwd|token)=)[^&;\s]*", r"\1***", text)


def reason(err: Exception) -> str:
    """What a store's error says, in one line."""
    text = first_line(err)
    # The last of four nested network errors says it.
    cause = re.search(r"Caused by .*?['\"](?:.*: )?(.*?)['\"]\)+$", text)
    return shown(cause.group(1) if cause else text)[:300]


def remedy(uri: str) -> str:
    """What to do about a store that fails."""
    cure = "Start the database (and install its Python driver)"
    if uri.startswith("sqlite"):
        cure = "Choose a file that you can write"
    elif uri.startswith("http"):
        login = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD where it asks for them"
        cure = f"Start the server (mlflow server --host HOST --port PORT), {login}"
    return f"{cure}, or --tracking.uri none"
