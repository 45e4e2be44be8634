"""Ray Tune over whole federations."""

import os

import actors  # noqa: F401  for its environment, before Ray is imported

for _name, _value in {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # paths mean the same everywhere
    "RAY_AIR_NEW_OUTPUT": "0",  # with verbose=0: Tune prints nothing
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # one writer, ours
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a failed trial reports no metric
    "TUNE_GLOBAL_CHECKPOINT_S": "5",  # what a killed driver may lose
    "TUNE_RESULT_BUFFER_LENGTH": "1",
}.items():
    os.environ.setdefault(_name, _value)
