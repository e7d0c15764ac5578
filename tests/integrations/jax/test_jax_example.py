"""The example runs as its README says."""

from pathlib import Path

import pytest

from examples.jax_logistic.train import QUICK_STEPS, main


def test_the_example_prints_what_it_cost(
    service_url: str, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--url", service_url, "--quick"])
    said = capsys.readouterr().out
    assert said.splitlines()[0].endswith(f"admits all {QUICK_STEPS} steps of this training.")
    assert f"\n{QUICK_STEPS} steps, each in the ledger before its noise was drawn\n" in said
    assert "epsilon" in said
