"""Lines over one another: geometry, the comparison's curves, and the overview's chart."""

import math
import re

import httpx
import pytest
from sqlalchemy import Engine

from service.formatting import moment, percent_up, plain, up
from service.web.dashboard.line_chart import LINES_HEIGHT, ChartLine, LineChart, draw_lines
from service.web.dashboard.pages import overview_chart
from tests.service.samples import BUDGET, append, dataset, run, setup
from tests.service.samples import event as steps
from tests.service.test_listing import page, words

PATH = re.compile(r'<path class="curve curve-(\d)" d="([^"]*)"')


def line(*points: tuple[float, float]) -> ChartLine:
    return ChartLine(label="one", address="/one", points=points)


def drawn(*lines: ChartLine, stairs: bool = False, top: float | None = None) -> LineChart:
    found = draw_lines(lines, stairs=stairs, top=top, word_x=plain, word_y=plain)
    assert found is not None
    return found


def points_of(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](\S+?) ([\d.]+)", path)]


def test_a_stair_is_never_below_the_later_point() -> None:
    ((colour, _, path),) = drawn(line((0, 0), (5, 1), (10, 2)), stairs=True).lines
    assert colour == 1
    top = round(LINES_HEIGHT * (1 - 1 / 1.06), 1)
    middle = round(LINES_HEIGHT * (1 - 0.5 / 1.06), 1)
    assert path == f"M0 {LINES_HEIGHT}V{middle:g}H500V{top:g}H1000"


def test_a_straight_line_leaves_the_picture_where_it_crosses_the_top() -> None:
    chart = drawn(line((0, 0), (10, 1060)), top=1.0)
    ((_, _, path),) = chart.lines
    assert chart.cut
    assert points_of(path) == [(0, LINES_HEIGHT), (1.0, 0)]
    ((_, _, path),) = drawn(line((0, 0.5), (10, math.inf)), top=1.0).lines
    assert points_of(path)[-1] == (0, 0)
    assert not drawn(line((0, 0), (10, 1)), top=1.0).cut


def test_an_infinite_line_is_marked_from_where_it_was_finite_last() -> None:
    chart = drawn(line((0, 0), (4, 0.5), (5, math.inf), (10, math.inf)), line((0, 0), (10, 1)))
    assert chart.endless == ((1, 400.0),)
    assert not chart.cut


def test_tables_hold_the_next_value_and_nothing_behind_the_last() -> None:
    chart = drawn(line((0, 0), (10, 1)), line((0, 0), (4, 3)))
    assert [values for _, values in chart.rows] == [
        *[(1, 3)] * 4,
        *[(1, None)] * 6,
    ]
    assert chart.widths[-1].label == "10"
    assert [mark.label for mark in chart.heights] == ["1", "2", "3"]


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw_lines([], stairs=True, word_x=plain, word_y=plain) is None
    none = line((0, math.inf))
    assert draw_lines([none], stairs=True, word_x=plain, word_y=plain) is None
    assert len(drawn(line((0, 0))).lines) == 1  # one point, at no height


def test_only_some_lines_have_colours() -> None:
    chart = drawn(*[line((0, 0), (1, n)) for n in range(1, 12)])
    assert [colour for colour, _, _ in chart.lines] == [*range(1, 9), 0, 0, 0]


def test_curves_end_at_the_guarantee_of_each_run(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET}, name="loud")
    assert api.post("/v1/runs", json=run("quiet")).status_code == 201
    append(api, steps(0, 100), run="loud")
    quiet = {"kind": "gaussian", "noise_multiplier": 8.0}
    append(api, steps(0, 50, mechanism=quiet), run="quiet")
    where = "/compare/curves?runs=loud&runs=quiet&delta=1e-6"
    text = page(api, where)
    assert [int(colour) for colour, _ in PATH.findall(text)] == [2, 1]
    for name in ("loud", "quiet"):
        query = {"delta": 1e-6}
        told = api.get(f"/v1/runs/{name}/guarantee", params=query).json()
        assert up(told["epsilon"]) in words(text)
    (whole,) = re.findall(r'hx-get="(/compare/curves[^"]*)"', page(api, "/compare?runs=loud,quiet"))
    assert "runs=loud&amp;runs=quiet&amp;delta=1e-05" in whole
    assert api.get("/compare/curves?runs=nothing&delta=1e-5").status_code == 404
    assert api.get("/compare/curves?runs=loud").status_code == 422


def test_a_run_without_a_bound_is_named(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET}, name="endless")
    cyclic = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}
    append(api, steps(0, 10, sampling=cyclic), run="endless")
    assert "No finite ε is proved" in words(page(api, "/compare/curves?runs=endless&delta=1e-5"))


def test_runs_are_taken_away_and_added_by_links(api: httpx.Client) -> None:
    setup(api, name="one", delta=1e-5)
    assert api.post("/v1/runs", json=run("two")).status_code == 201
    text = page(api, "/compare?runs=one,two&delta=0.001")
    assert 'href="/compare?runs=two&amp;delta=0.001" aria-label="Remove one"' in text
    assert 'href="/runs?runs=one&amp;runs=two&amp;sort=newest"' in text


def table_of(text: str) -> list[list[str]]:
    """Cells of each row of the table of a comparison."""
    body = text.split("<tbody>")[1].split("</tbody>")[0]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body, re.DOTALL)
    return [
        [words(one) for one in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in rows
    ]


def test_what_runs_share_is_said_once_and_cells_have_what_differs(api: httpx.Client) -> None:
    setup(api, name="loud", delta=1e-5)
    assert api.post("/v1/runs", json=run("quiet")).status_code == 201
    append(api, steps(0, 100), run="loud")
    quiet = {"kind": "gaussian", "noise_multiplier": 8.0}
    append(api, steps(0, 1), steps(1, 49, mechanism=quiet), run="quiet")
    text = page(api, "/compare?runs=loud,quiet")
    rows = {row[0]: row[1:] for row in table_of(text)}
    (noise,) = [name for name in rows if name.startswith("Noise multiplier")]
    noisy, _, rest = noise.partition("all: ")
    assert noisy.strip() == "Noise multiplier"
    assert rest.startswith("Gaussian, Poisson, sampling probability 0.01")
    assert rows[noise] == ["1.1 · 100 steps", "8 · 49 steps 1.1 · 1 step"]
    assert all(len(set(cells)) > 1 for name, cells in rows.items() if name != noise)
    alike = words(text.split('id="alike"')[1])
    assert "Dataset data" in alike
    assert "Steps" not in rows.keys() & set(alike.split())
    assert "differs" in re.findall(r"<tr[^>]*>", text.split("<tbody>")[1])[0]  # epsilon


def test_steps_of_other_kinds_are_told_with_every_name(api: httpx.Client) -> None:
    setup(api, name="one", delta=1e-5)
    assert api.post("/v1/runs", json=run("two")).status_code == 201
    append(api, steps(0, 100), run="one")
    text = page(api, "/compare?runs=one,two")  # the second has no steps
    rows = {row[0]: row[1:] for row in table_of(text)}
    (noise,) = [name for name in rows if name.startswith("Noise and sampling")]
    assert "all: Gaussian, noise multiplier 1.1, Poisson" in noise
    assert rows[noise] == ["100 steps", "—"]
    append(api, steps(0, 3, sampling={"kind": "full"}), run="two")
    rows = {row[0]: row[1:] for row in table_of(page(api, "/compare?runs=one,two"))}
    assert rows["Noise and sampling"][1] == "Gaussian, noise multiplier 1.1, All records · 3 steps"


def charted(api: httpx.Client) -> str:
    return words(page(api, "/overview/chart"))


def last_points(text: str) -> list[str]:
    """What the table beside the chart says of the present."""
    row = text.split("<tbody>")[1].split("</tbody>")[0].split("<tr>")[-1]
    return re.findall(r'<td class="num">([^<]*)</td>', row)


def test_the_chart_ends_as_the_table_below_has_it(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.operations.overview.SEEN_SECONDS", 0.0)
    setup(api, dataset_given={"budget": BUDGET})
    shares = []
    for number in range(3):
        append(api, steps(100 * number, 100))
        share = api.get("/v1/datasets/data").json()["budget"]["share"]
        assert last_points(page(api, "/overview/chart")) == [percent_up(share)]
        assert f"<strong>{percent_up(share)}</strong>" in page(api, "/")
        shares.append(share)
    assert len(set(shares)) == 3


def test_a_line_is_drawn_again_where_there_is_no_time_for_a_new_one(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.operations.overview.SEEN_SECONDS", 0.0)
    for name in ("a", "b"):
        setup(api, dataset_given={"name": f"{name}-data", "budget": BUDGET},
              dataset=f"{name}-data", name=f"{name}-run")  # fmt: skip
        append(api, steps(0, 100), run=f"{name}-run")
    assert len(PATH.findall(page(api, "/overview/chart"))) == 2
    monkeypatch.setattr(overview_chart, "CHART_SECONDS", -1.0)  # one more at each look
    monkeypatch.setattr("service.storage.versioned_cache.SHARED", 0)
    for name in ("a", "b"):
        append(api, steps(100, 100), run=f"{name}-run")
    text = page(api, "/overview/chart")
    assert len(PATH.findall(text)) == 2
    assert "not computed yet" not in text
    share = api.get("/v1/datasets/a-data").json()["budget"]["share"]
    assert last_points(text) == [percent_up(share)] * 2


def test_a_dataset_without_a_finite_bound_is_named_with_the_end_of_its_line(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.operations.overview.SEEN_SECONDS", 0.0)
    setup(api, dataset_given={"budget": BUDGET})
    append(api, steps(0, 100))
    cyclic = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}
    correction = steps(0, 50, sampling=cyclic) | {"reason": "in order"}
    assert api.post("/v1/runs/run/corrections", json=correction).status_code == 201
    (made,) = api.get("/v1/runs/run/corrections").json()["corrections"]
    text = page(api, "/overview/chart")
    assert "No dataset with a limit" not in text
    ((_, path),) = PATH.findall(text)
    assert path.endswith(" 0")  # drawn as far as it is finite
    assert re.search(r'class="curve curve-1 curve-endless" d="M[\d.]+ \d+H1000"', text)
    said = words(text)
    assert f"its line ends at {moment(made['recorded_at'])}".lower() in said.lower()
    assert "data : no finite bound is proved for what is charged now" in said
    assert last_points(text) == ["no finite bound"]


def test_a_dataset_whose_history_takes_too_much_work_is_named(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.operations.overview.SEEN_SECONDS", 0.0)
    monkeypatch.setattr("service.guarantees.event_costs.PRICED_EVENTS_MAX", 0)
    setup(api, dataset_given={"budget": BUDGET})
    append(api, steps(0, 100))
    assert "data is not drawn: its history takes too much work" in charted(api)
    assert "No dataset with a limit" not in charted(api)


def test_a_parent_without_entries_of_its_own_is_drawn(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.operations.overview.SEEN_SECONDS", 0.0)
    assert api.post("/v1/datasets", json=dataset("data", budget=BUDGET)).status_code == 201
    child = dataset("child", parents=["data"], rows_per_parent_record="at_most_one")
    assert api.post("/v1/datasets", json=child).status_code == 201
    assert api.post("/v1/runs", json=run("heir", dataset="child")).status_code == 201
    append(api, steps(0, 100), run="heir")
    assert len(PATH.findall(page(api, "/overview/chart"))) == 1


def test_the_overview_draws_what_is_charged_over_time(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No dataset with a limit" in words(page(api, "/overview/chart"))
    for name in ("a", "b", "c"):
        setup(api, dataset_given={"name": f"{name}-data", "budget": BUDGET},
              dataset=f"{name}-data", name=f"{name}-run")  # fmt: skip
        append(api, steps(0, 100), run=f"{name}-run")
    assert api.post("/v1/datasets", json=dataset("free")).status_code == 201
    monkeypatch.setattr(overview_chart, "CHART_SECONDS", -1.0)  # one more at each look
    monkeypatch.setattr("service.operations.overview.SEEN_SECONDS", 0.0)
    for seen in (1, 2, 3):
        text = page(api, "/overview/chart")
        assert len(PATH.findall(text)) == seen
        assert ("not computed yet" in text) == (seen < 3)
    share = api.get("/v1/datasets/a-data").json()["budget"]["share"]
    last = re.findall(r'<td class="num">([^<]*)</td>', text)[-1]
    assert float(last.split("\u202f")[0]) == pytest.approx(100 * share, rel=0.01)
    assert 'hx-get="/overview/chart"' in page(api, "/")
