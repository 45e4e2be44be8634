"""Ray and nothing but Ray: server and client actors, placement, recovery."""

import os

# Ray reads some of these while it is imported, hence here, before any module of ours does; what the user has set wins.
for _name, _value in {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # the server has no GPU and must not see any
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run`, every worker process would start by it, too
    "RAY_USAGE_STATS_ENABLED": "0",
    # How long Ray's own processes may take to start: its defaults, 30 s each, are too short on a machine under load.
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_worker_register_timeout_seconds": "300",
}.items():
    os.environ.setdefault(_name, _value)
