"""Before MLflow is imported: it tells nothing to anybody outside this machine."""

import os

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
