"""Render the chart with a profile's values by Helm's own code, and check it: `render.py PROFILE`.

It runs in an environment of its own, which `make test-deploy` installs. What Kubernetes' published
schemas refuse, and what Helm's lint finds, ends it with 1.
"""

import sys
from pathlib import Path

import kubernetes_validate
import yaml
from helm_python import Chart, lint

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
VERSIONS = ("1.27", "1.34")  # the oldest that the chart allows, and a recent one
OF_OPERATORS = ("monitoring.coreos.com/", "gateway.networking.k8s.io/")


def rendered(values: dict[str, object]) -> str:
    """Return all documents of a release named dpledger."""
    with Chart.load(CHART) as chart:
        manifests = chart.render(values=values, name="dpledger", namespace="dpledger")
    kept = [text for name, text in sorted(manifests.items()) if not name.endswith(".txt")]
    return "---\n".join(f"{text.strip()}\n" for text in kept if text.strip())


def main() -> None:
    """Print what was rendered."""
    values = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if "--lint" in sys.argv:
        print(lint(CHART, values))
        return
    text = rendered(values)
    for document in yaml.safe_load_all(text):
        if document and not document["apiVersion"].startswith(OF_OPERATORS):
            for version in VERSIONS:
                kubernetes_validate.validate(document, version, strict=True)
    print(text, end="")


if __name__ == "__main__":
    main()
