"""Replays of recorded runs, and what is said of them."""

import dataclasses
from typing import Any

import pytest
from tests.recordings import flat_profile, operation, recording, request

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.pipeline_profile import step_s
from kernelflume.core.recording import RecordedRequest
from kernelflume.scaler.sim.calibration import FITTED, JUDGED, calibrate
from kernelflume.scaler.sim.measured_steps import Calibration, MeasuredSteps
from kernelflume.scaler.sim.replay import replay
from kernelflume.scaler.sim.validation import compare


def test_steps_are_the_profile_s() -> None:
    profile = dataclasses.replace(flat_profile(), attention_bytes_per_s=1000.0)
    model = MeasuredSteps(profile, token_bytes=4, calibration=Calibration())
    assert model.step_s(8, 100, 3) == step_s(profile, rows=8, most_held_bytes=400)
    assert model.step_s(8, 100, 3) == pytest.approx(0.1 + 0.4)


def test_a_prompt_costs_what_it_takes_beyond_a_step() -> None:
    model = MeasuredSteps(flat_profile(row_s=0.001), token_bytes=4, calibration=Calibration(step_factor=2.0))
    assert model.prefill_s(51) == pytest.approx(0.05)
    assert model.prefill_s(0) == 0.0


def test_a_profile_without_prompts_is_refused() -> None:
    profile = dataclasses.replace(flat_profile(), prefill_s=None)
    with pytest.raises(ConfigurationError, match="does not tell what prompts take"):
        MeasuredSteps(profile, token_bytes=4, calibration=Calibration())


def test_a_calibration_makes_steps_longer_and_more_so_with_every_node() -> None:
    model = MeasuredSteps(
        flat_profile(), token_bytes=4, calibration=Calibration(step_factor=1.5, node_share=0.2)
    )
    assert model.step_s(1, 0, 1) == pytest.approx(0.15)
    assert model.step_s(1, 0, 3) == pytest.approx(0.15 * 1.4)


def test_what_a_further_node_adds_is_the_profile_s_unless_it_is_calibrated() -> None:
    profile = dataclasses.replace(flat_profile(), further_node_share=0.5)
    alone = MeasuredSteps(profile, token_bytes=4, calibration=Calibration())
    assert [alone.step_s(1, 0, nodes) for nodes in (1, 2, 3)] == pytest.approx([0.1, 0.15, 0.2])
    fitted = MeasuredSteps(profile, token_bytes=4, calibration=Calibration(node_share=0.0))
    assert fitted.step_s(1, 0, 3) == pytest.approx(0.1)


def test_a_prompt_that_comes_while_steps_run_is_looked_up_during_one() -> None:
    def first_token_s(sent_s: float, *, has_prefix_cache: bool) -> float:
        requests = (request(), request(sent_s, output_tokens=2))
        done = replay(recording(requests=requests, has_prefix_cache=has_prefix_cache))
        return done.requests[1].first_token_s

    # It comes within the 6th step, is looked up in the 7th, and computed in the 8th.
    assert first_token_s(0.55, has_prefix_cache=True) == pytest.approx(0.8)
    assert first_token_s(0.55, has_prefix_cache=False) == pytest.approx(0.7)
    assert first_token_s(2.0, has_prefix_cache=True) == pytest.approx(2.1)


def test_one_request_takes_its_prompt_and_its_steps() -> None:
    done = replay(recording(profile=flat_profile(0.1, 0.001)))
    # The first of 11 steps has 10 rows.
    assert done.requests[0].first_token_s == pytest.approx(0.109)
    assert done.requests[0].ended_s == pytest.approx(0.009 + 11 * 0.1)
    assert done.requests[0].tpot_s == pytest.approx(0.1)
    assert done.duration_s == done.requests[0].ended_s
    assert done.node_seconds == pytest.approx(done.duration_s)
    assert done.most_nodes == 1


def test_a_prompt_holds_up_those_that_decode() -> None:
    late = request(0.55, prompt_tokens=101)
    done = replay(recording(requests=(request(), late), profile=flat_profile(0.1, 0.001)))
    alone = replay(recording(profile=flat_profile(0.1, 0.001)))
    # The prompt's rows beyond one, and of the steps after it a row more each.
    assert done.requests[0].ended_s - alone.requests[0].ended_s == pytest.approx(0.1 + 0.005, abs=0.0015)


def test_a_single_token_has_no_time_of_a_token() -> None:
    done = replay(recording(requests=(request(output_tokens=1), request(1.0))))
    assert done.requests[0].tpot_s is None
    assert done.requests[1].tpot_s == pytest.approx(0.1)


def growing(**changes: Any) -> Any:
    requests = tuple(
        RecordedRequest(
            sent_s=0.1 * number,
            first_token_s=1.0,
            ended_s=20.0,
            prompt_tokens=100,
            cached_tokens=0,
            output_tokens=100,
        )
        for number in range(8)
    )
    given: dict[str, Any] = {"requests": requests, "operations": (operation(),)} | changes
    return recording(**given)


def test_the_policy_grows_the_pool_as_live() -> None:
    done = replay(growing())
    assert done.most_nodes == 2
    assert done.duration_s < done.node_seconds < 2 * done.duration_s
    assert done.num_put_aside == 0


def test_nodes_that_start_late_are_paid_for_from_the_decision_all_the_same() -> None:
    slow = operation(phases=(("launching", 2.0), ("prewarming", 1.0), ("ready", 0.0), ("publishing", 0.1)))
    policy = "maximum_nodes: 4\ngamma: 0.01\n"
    quick = replay(growing(policy=policy))
    assert replay(growing(policy=policy, operations=(slow,))).node_seconds >= quick.node_seconds


def test_a_run_begins_with_the_nodes_that_there_were() -> None:
    assert replay(recording(initial_nodes=("a-1", "a-2", "a-3"))).most_nodes == 3


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"policy": "maximum_nodes: 0\n"}, "policy: maximum_nodes"),
        ({"policy": "["}, "policy"),
        ({"policy": "automatic: false\n"}, "no policy to replay"),
        ({"requests": (request(cached_tokens=5),)}, "cache"),
        ({"requests": (request(prompt_tokens=9000),)}, "longer than all nodes"),
    ],
)
def test_what_cannot_be_replayed_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        replay(recording(**changes))


def test_the_errors_are_shares_of_the_live_figures() -> None:
    run = recording(duration_s=1.1, policy="node_cost_per_hour: 2\n")
    done = replay(run)
    found = {figure.name: figure for figure in compare(run, done, tolerance=0.1).figures}
    assert found["TPOT p99"].live == pytest.approx(100.0)
    assert found["TPOT p99"].error == pytest.approx(0.0)
    assert found["node-seconds"].live == pytest.approx(1.1)
    assert found["node-seconds"].simulated == pytest.approx(done.duration_s)
    assert found["cost"].live == pytest.approx((1.1 + 1.1) * 2 / 3600)
    priced = {
        figure.name: figure for figure in compare(run, done, tolerance=0.1, weight_node_price=0.0).figures
    }
    assert priced["cost"].live == pytest.approx(1.1 * 2 / 3600)


def test_only_judged_figures_decide() -> None:
    run = recording(duration_s=1.1)
    done = replay(run)
    verdict = compare(run, done, tolerance=0.1)
    assert verdict.is_valid
    assert not compare(run, dataclasses.replace(done, node_seconds=2.0), tolerance=0.1).is_valid
    assert verdict.to_dict()["valid"] is True
    assert [figure["name"] for figure in verdict.to_dict()["figures"] if figure["is_judged"]] == [
        "TPOT p99", "node-seconds", "cost",
    ]  # fmt: skip


def test_there_is_no_verdict_without_a_second_token() -> None:
    run = recording(requests=(request(output_tokens=1),))
    with pytest.raises(ConfigurationError, match="second token"):
        compare(run, replay(run), tolerance=0.1)


def as_replayed(calibration: Calibration, **changes: Any) -> Any:
    """Return a run whose requests came as a replay under this calibration says."""
    run = growing(**changes)
    done = replay(run, calibration)
    requests = tuple(
        dataclasses.replace(asked, first_token_s=came.first_token_s, ended_s=came.ended_s)
        for asked, came in zip(run.requests, done.requests, strict=True)
    )
    return dataclasses.replace(run, requests=requests, duration_s=done.duration_s)


def test_a_calibration_finds_what_its_run_was_made_with() -> None:
    wanted = Calibration(step_factor=0.8 * 1.2**3, node_share=0.4)
    fit = calibrate(as_replayed(wanted))
    assert fit.calibration.step_factor == pytest.approx(wanted.step_factor)
    assert fit.calibration.node_share == pytest.approx(wanted.node_share)
    assert fit.error == pytest.approx(0.0, abs=1e-9)


def test_requests_that_do_not_count_change_no_calibration() -> None:
    run = as_replayed(Calibration(step_factor=0.8 * 1.2**3))
    odd = tuple(
        dataclasses.replace(request, ended_s=request.ended_s - 0.2) if number % 2 else request
        for number, request in enumerate(run.requests)
    )
    disturbed = dataclasses.replace(run, requests=odd)
    assert calibrate(disturbed, FITTED) == calibrate(run, FITTED)
    assert calibrate(disturbed, JUDGED) != calibrate(run, JUDGED)


def test_nothing_can_be_calibrated_by_single_tokens() -> None:
    with pytest.raises(ConfigurationError, match="second token"):
        calibrate(recording(requests=(request(output_tokens=1),)))


def test_a_full_pool_keeps_a_page_free_for_each_that_runs() -> None:
    requests = tuple(request(0.0, prompt_tokens=100, output_tokens=20) for _ in range(2))
    policy = "maximum_nodes: 1\n"
    # Two prompts of 107 tokens fit 240, and 16 for the one that runs; 227 leave less than that.
    roomy = recording(requests=requests, node_capacity_tokens=240, page_tokens=16, policy=policy)
    tight = dataclasses.replace(roomy, node_capacity_tokens=227)
    assert replay(roomy).requests[1].first_token_s < replay(roomy).requests[0].ended_s
    assert replay(tight).requests[1].first_token_s > replay(tight).requests[0].ended_s
