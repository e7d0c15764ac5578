"""The simulation of a large platform keeps to what queues are known to do."""

import pytest

from benchmarks.scale_simulation import Costs, drawing, least_processes, simulate

COSTS = Costs(group=0.002, each=0.0002, service_cpu=0.0003, database_cpu=0.0002)


def test_an_append_that_waits_for_no_other_takes_one_transaction() -> None:
    served = simulate(0.01, COSTS, 2000)
    assert served.p50 == pytest.approx(0.0022)
    assert served.p99 == pytest.approx(0.0022)


def test_a_process_is_busy_for_what_arrives() -> None:
    """Without groups a queue with one server is busy for rate times service."""
    alone = Costs(group=0.0, each=0.001, service_cpu=0.0, database_cpu=0.0)
    served = simulate(500, alone, 50_000)
    assert served.share == pytest.approx(0.5, abs=0.01)


def test_a_full_process_takes_64_appends_at_once_and_serves_what_it_can() -> None:
    assert COSTS.appends_a_second == pytest.approx(64 / (0.002 + 64 * 0.0002))
    below = simulate(0.95 * COSTS.appends_a_second, COSTS, 50_000)
    above = simulate(1.2 * COSTS.appends_a_second, COSTS, 50_000)
    assert below.p99 < 0.15 < 1.0 < above.p99
    assert above.share == pytest.approx(1.0, abs=0.001)


def test_the_least_number_of_processes_keeps_the_bar_and_one_less_does_not() -> None:
    rate = 10.5 * COSTS.appends_a_second
    processes, served = least_processes(rate, COSTS)
    assert processes == 11
    assert served.p99 <= 0.1
    assert rate / (processes - 1) > COSTS.appends_a_second


def test_more_trainers_need_no_fewer_processes() -> None:
    found = [least_processes(rate, COSTS)[0] for rate in (100, 1_000, 10_000, 50_000)]
    assert found == sorted(found)
    assert found[0] == 1


def test_the_plot_names_each_point() -> None:
    plot = drawing([(0.0864, 40, 0.05), (1.0, 4, 0.02), (60.0, 1, 0.01)])
    assert plot.count("<circle") == 3
    assert "40 processes" in plot
    assert "p99 10 ms" in plot
