"""Rules and dashboard: every expression parses, and asks for what the service really tells."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.ledger.incidents import Kind
from service.schemas.run_states import STATES
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from service.transparency.signing import Signer
from tests.conftest import AS_ADMIN, running
from tests.service.samples import BUDGET, append, event, setup

ROOT = Path(__file__).parents[1]
HERE = ROOT / "deploy" / "monitoring"
GUIDE = ROOT / "docs" / "guide" / "metrics.md"
Json = dict[str, Any]
Known = dict[str, set[str]]  # labels by metric

# What Prometheus adds to what it scrapes, and the one series that it makes itself.
TARGET = {"job", "instance"}
OWN: Known = {"up": set()}
GRAFANA = {"$__rate_interval": "5m", "$dataset": ".*"}
SEVERITIES = {"critical", "warning", "info"}


def read(name: str) -> Any:
    return yaml.safe_load((HERE / name).read_text(encoding="utf-8"))


GROUPS: list[Json] = read("rules.yml")["groups"]
RULES: list[Json] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
BOARDS: list[Json] = [
    json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((HERE / "grafana/dashboards").iterdir())
]
EACH_BOARD = pytest.mark.parametrize("board", BOARDS, ids=[one["uid"] for one in BOARDS])


def panels(board: Json) -> list[Json]:
    return [one for one in board["panels"] if one["type"] != "row"]


def filled(panel: Json, target: Json | None = None) -> str:
    """A target's expression, by default the first one's, with its variables filled in."""
    text = str((target or panel["targets"][0])["expr"])
    for name, value in GRAFANA.items():
        text = text.replace(name, value)
    return text


def shown() -> Iterator[tuple[str, str]]:
    """Each expression of the dashboards, with its variables filled in, and what shows it."""
    for panel in [panel for board in BOARDS for panel in panels(board)]:
        for target in panel["targets"]:
            yield panel["title"], filled(panel, target)


EXPRESSIONS = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES]
EXPRESSIONS += list(shown())
EACH = pytest.mark.parametrize("text", [text for _, text in EXPRESSIONS])


def selectors(text: str) -> Iterator[promql.VectorSelector]:
    """Every series that an expression asks for."""
    found: list[promql.Expr] = []
    promql.walk(promql.parse(text), found.append)
    for one in found:  # of a range too, the series itself is visited
        if isinstance(one, promql.VectorSelector):
            yield one


def grouped(text: str) -> set[str]:
    """The labels that an expression keeps, or matches on."""
    labels: set[str] = set()

    def note(one: promql.Expr) -> None:
        modifier = getattr(one, "modifier", None)
        for part in (modifier, getattr(modifier, "matching", None)):
            labels.update(getattr(part, "labels", None) or ())

    promql.walk(promql.parse(text), note)
    return labels


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """The labels of each series that a service tells which has a budget and a witness."""
    folder = tmp_path_factory.mktemp("monitoring")
    url = f"sqlite:///{folder / 'dpledger.db'}"
    Signer.create(folder / "key")
    engine = connect(url)
    migrations.upgrade(engine)
    engine.dispose()
    settings = Settings(
        database_url=url, signing_key_file=folder / "key", witness_file=folder / "witness"
    )
    with running(settings) as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        setup(api, dataset_given={"budget": BUDGET})
        append(api, event(0, 10))
        found: Known = {}
        for family in text_string_to_metric_families(api.get("/metrics").text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        return found


@pytest.fixture(scope="module")
def known(scraped: Known) -> Known:
    """With what the rules record, which keeps what its expression groups by, else everything."""
    found = scraped | OWN
    for rule in RULES:
        if "record" in rule:
            asked = [found[str(one.name)] for one in selectors(rule["expr"])]
            kept = grouped(rule["expr"])
            whole = not re.search(r"\b(sum|min|max|count)\b", rule["expr"])
            found[rule["record"]] = kept.union(*asked) if whole else kept
    return found


def test_what_an_expression_asks_for_is_found_wherever_it_stands() -> None:
    text = "sum by (a) (rate(x_total{b=~'c'}[5m])) / on (d) group_left y > z offset 1h"
    assert [one.name for one in selectors(text)] == ["x_total", "y", "z"]
    assert grouped(text) == {"a", "d"}
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        promql.parse("sum by (rate(x[5m])")


@EACH
def test_every_expression_parses(text: str) -> None:
    assert promql.parse(text).prettify()


@EACH
def test_every_series_is_told_by_the_service_or_recorded_by_a_rule(text: str, known: Known) -> None:
    for one in selectors(text):
        assert one.name in known, one.name


@EACH
def test_every_label_is_one_of_the_series(text: str, known: Known) -> None:
    asked = list(selectors(text))
    for one in asked:
        named = {matcher.name for matcher in one.matchers.matchers}
        assert named <= known[str(one.name)] | TARGET, one.name
    there = set().union(*(known[str(one.name)] for one in asked)) | TARGET
    assert grouped(text) <= there


@EACH
def test_what_a_recorded_series_needs_is_recorded_before(text: str) -> None:
    records = [rule["record"] for rule in RULES if "record" in rule]
    assert len(set(records)) == len(records)
    here = next((n for n, rule in enumerate(RULES) if rule["expr"] == text), len(RULES))
    before = {rule.get("record") for rule in RULES[:here]}
    assert {str(one.name) for one in selectors(text) if ":" in str(one.name)} <= before


def test_values_that_are_matched_are_values_that_there_are(scraped: Known) -> None:
    routes = json.loads((ROOT / "docs/api/openapi.json").read_text(encoding="utf-8"))["paths"]
    pages = {path.stem for path in (ROOT / "docs" / "problems").glob("*.md")}
    there = {
        "route": set(routes), "problem": pages, "status": {f"{n}xx" for n in range(1, 6)},
        "kind": set(Kind), "state": {*STATES, "pending", "forfeited"},
    }  # fmt: skip
    for _, text in EXPRESSIONS:
        for one in selectors(text):
            for matcher in one.matchers.matchers:
                if matcher.name in there:
                    assert matcher.value in there[matcher.name]
    assert scraped


def test_counters_are_asked_for_their_rate_and_end_in_total(known: Known) -> None:
    for _, text in EXPRESSIONS:
        for one in selectors(text):
            if str(one.name).endswith("_total") and not re.search(r"offset", text):
                assert re.search(rf"(rate|increase)\([^()]*{one.name}", text), text


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_says_how_urgent_it_is_and_leads_to_what_to_do(rule: Json) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"].keys() == {"summary", "runbook"}
    file, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert ROOT / file == GUIDE
    assert anchor == rule["alert"].lower()
    assert f"### {rule['alert']}\n" in GUIDE.read_text(encoding="utf-8")
    if "for" in rule:
        assert promql.parse_duration(rule["for"]).total_seconds() > 0
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    kept = grouped(rule["expr"]) | TARGET | {"dataset"}
    assert used <= kept


def test_rules_have_the_structure_that_prometheus_reads() -> None:
    assert list(read("rules.yml")) == ["groups"]
    names = [group["name"] for group in GROUPS]
    assert len(set(names)) == len(names)
    assert all(set(group) == {"name", "rules"} for group in GROUPS)
    alerts = [rule["alert"] for rule in ALERTS]
    assert len(set(alerts)) == len(alerts)
    for rule in RULES:
        assert ("alert" in rule) != ("record" in rule)
        assert "record" not in rule or set(rule) == {"record", "expr"}


def test_what_an_operator_must_hear_of_has_an_alert() -> None:
    assert {
        "PrivacyBudgetGoneWithinADay", "PrivacyBudgetOverdrawn", "ErrorBudgetBurnsFast",
        "RefusalsMany", "AppendsSlow", "WitnessStale", "WriterBacklog", "ServiceDown",
    } <= {rule["alert"] for rule in ALERTS}  # fmt: skip


def test_there_is_a_dashboard_of_all_and_one_of_a_dataset() -> None:
    assert [one["uid"] for one in BOARDS] == ["dpledger-dataset", "dpledger"]
    assert len({one["title"] for one in BOARDS}) == 2
    (board, _) = BOARDS
    asked = {str(one.name) for _, text in shown() for one in selectors(text)}
    own = {str(one.name) for panel in panels(board) for one in selectors(filled(panel))}
    for part in ("epsilon_nats", "charged_nats", "certified_nats", "reserved_ratio"):
        assert f"dpledger_budget_{part}" in own
    assert {"dpledger_dataset_entries_total", "dpledger_dataset_incidents_total"} <= own <= asked
    # Every series of it is of the dataset that is chosen.
    for panel in panels(board):
        for target in panel["targets"]:
            found = re.findall(r"\{[^}]*\}", target["expr"])
            assert found
            assert all('dataset="$dataset"' in one for one in found)
            assert len(found) == len(list(selectors(filled(panel, target))))


@EACH_BOARD
def test_each_dashboard_is_one_that_grafana_reads(board: Json, known: Known) -> None:
    ids = [one["id"] for one in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert board["schemaVersion"] >= 39
    assert board["tags"] == board["links"][0]["tags"] + ["privacy"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert asked
            assert asked[2] in known[asked[1]]
    for panel in panels(board):
        assert panel["title"]
        assert panel["description"].endswith((".", "spend."))
        assert panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert references == sorted(set(references))
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${source}"}
    names = {one["name"] for one in board["templating"]["list"]}
    told = json.dumps(board["panels"])
    used = set(re.findall(r"\$\{?(\w+)\}?", told)) - {"__rate_interval", "__all"}
    assert used == names


@EACH_BOARD
def test_no_panel_lies_over_another(board: Json) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_grafana_is_given_the_dashboard_and_where_prometheus_is() -> None:
    (source,) = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    for board in BOARDS:
        variable = next(one for one in board["templating"]["list"] if one["name"] == "source")
        assert variable["current"]["value"] == source["uid"]
    (provider,) = read("grafana/provisioning/dashboards/dpledger.yml")["providers"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services = compose["services"]
    mounts = dict(one.split(":")[:2] for one in services["grafana"]["volumes"])
    assert mounts["./deploy/monitoring/grafana/dashboards"] == provider["options"]["path"]
    assert source["url"] == "http://prometheus:9090"
    (scrape,) = read("prometheus.yml")["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["service:8000"]}]
    assert scrape["authorization"]["credentials_file"] == "/run/secrets/metrics_key"
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        assert re.search(r":v?\d+\.\d+\.\d+$", services[name]["image"])
        for mount in services[name]["volumes"]:
            own = mount.partition(":")[0]
            assert own in compose["volumes"] or (ROOT / own).exists()
    secrets = {name for one in services.values() for name in one.get("secrets", ())}
    assert secrets == set(compose["secrets"])


def test_every_metric_is_in_the_guide_and_nothing_else_is(scraped: Known) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(dpledger_\w+)` \|", text, re.MULTILINE))
    own = {name for name in scraped if name.startswith("dpledger_")}
    parts = re.compile(r"_(bucket|sum|count)$")
    assert told == {parts.sub("", name) for name in own}
