"""What the OpenAPI document says is what the service does, in requests made from the document."""

import pytest
import schemathesis
from schemathesis.checks import CHECKS, load_all_checks

from benchmarks.exploration import BEYOND_SCHEMA, Explored, explore, serving
from tests.conftest import clear

SEED = 8  # the same requests each time; benchmarks/fuzz.py schemathesis makes others, and more
REQUESTS_MIN = 700  # on each database


@pytest.mark.parametrize(
    ("backend", "examples", "share"),
    # At the edges of each value on one, at random on the other: to make the former takes longer.
    [("sqlite", 4, 0.12), ("postgres", 14, 0.0)],
)
def test_a_thousand_requests_are_answered_as_the_document_says(
    backend_urls: dict[str, str], backend: str, examples: int, share: float
) -> None:
    url = backend_urls[backend]
    clear(url)
    found = Explored()
    with serving(url) as (address, key):
        explore(address, found, key=key, seed=SEED, examples=examples, share=share)
    # A rule that no schema can say and that BEYOND_SCHEMA does not know yet is the longer command's
    # to find: which requests meet it depends on what was recorded by those before.
    failures = [one for one in found.failures if not one.startswith("positive_data_acceptance")]
    assert failures == [], "\n".join(failures[:5])
    assert found.requests >= REQUESTS_MIN, found
    # They meet what is there, and not only what is refused.
    assert found.statuses[200] + found.statuses[201] >= 100
    assert {401, 404, 409, 422} <= set(found.statuses)
    assert 500 not in found.statuses


def test_every_check_there_is_is_made() -> None:
    config = schemathesis.config.SchemathesisConfig.from_dict({"checks": {"enabled": True}})
    checks = config.projects.default.checks
    load_all_checks()
    assert len(CHECKS.get_all_names()) >= 14
    assert all(checks.get_by_name(name=name).enabled for name in CHECKS.get_all_names())


def test_each_rule_beyond_the_schema_has_its_reason() -> None:
    assert all(BEYOND_SCHEMA.values())
