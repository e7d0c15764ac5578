"""The safety lines that keep persons apart: four eyes, owners, approvers."""

from typing import Final, NamedTuple

EYES: Final = "service/ledger/change_requests/"
ASKED: Final = "test_change_requests.py::"
OWNERS: Final = "test_owners.py::"
NOTING: Final = (
    "test_incident_notes.py::"
    "test_a_trainer_comments_an_owner_or_approver_acknowledges_and_an_admin_assigns"
)
SIGN_IN: Final = "single_sign_on/test_sign_in.py::"
FOUR: Final = "test_four_eyes.py::"


class Line(NamedTuple):
    """A safety line, and what guards it."""

    file: str  # from the root of the repository
    text: str  # stands once in the file, or is followed by `nth` others
    without: str  # what stands there when it is deleted
    test: str  # the test that must fail, below tests/ or tests/service/
    nth: int = 0


# fmt: off
PEOPLE: Final = (
    # Four eyes.
    Line(EYES + "records.py", ">= OPEN_REQUESTS_MAX", "< 0",
         ASKED + "test_a_person_has_few_requests_that_wait"),
    Line(EYES + "persons.py", "if asked_by == actor.person:", "if False:",
         ASKED + "test_the_same_person_decides_nothing_with_whatever_key"),
    Line(EYES + "persons.py", "if approves and asked_by in UNNAMED:", "if False:",
         ASKED + "test_what_the_start_token_asked_for_is_approved_by_no_person"),
    Line(EYES + "persons.py", "if actor.person in UNNAMED:", "if False:",
         FOUR + "test_the_start_token_changes_nothing_that_needs_two"),
    Line(EYES + "decisions.py",
         "    lock_parents(connection, [find_request(connection, name).dataset])\n", "",
         ASKED + "test_two_who_approve_at_once_apply_one_change"),
    Line(EYES + "decisions.py", "elif request.person != by.person:", "elif False:",
         ASKED + "test_only_who_asked_withdraws"),
    Line(EYES + "decisions.py", 'if request.state == "expired":', "if False:",
         ASKED + "test_an_expired_request_is_not_approved"),
    Line(EYES + "decisions.py", 'if request.state == "stale"', "if False",
         ASKED + "test_a_request_on_a_revision_that_moved_is_not_applied"),
    Line(EYES + "decisions.py", "if request.decision is not None:", "if False:",
         ASKED + "test_a_request_is_made_once_and_decided_once"),
    Line(EYES + "four_eyes.py", "            trial.rollback()\n", "",
         ASKED + "test_a_researcher_asks_and_an_officer_approves"),
    Line(EYES + "four_eyes.py", "approvals.intersection(list_loosened_limits(dataset, change))",
         "set()",
         "test_eyes_at_random.py::test_no_mixture_of_calls_raises_a_limit_by_one_pair_of_eyes"),
    Line(EYES + "four_eyes.py", " and budget.delta <= dataset.budget_delta", "",
         FOUR + "test_whatever_lets_more_be_spent_waits"),
    Line(EYES + "four_eyes.py", "budget.epsilon <= dataset.budget_epsilon and ", "",
         FOUR + "test_a_higher_limit_waits_and_a_lower_one_does_not"),
    Line(EYES + "four_eyes.py", "budget.filter is not None or budget.orders is not None", "False",
         FOUR + "test_whatever_lets_more_be_spent_waits"),
    Line(EYES + "four_eyes.py", "if added or ", "if ",
         FOUR + "test_whatever_lets_more_be_spent_waits"),
    Line(EYES + "four_eyes.py", "(dataset.frozen and change.frozen is False)", "False",
         FOUR + "test_a_freeze_is_made_at_once_and_its_end_waits"),
    Line(EYES + "four_eyes.py", "if change.void_reservations:", "if False:",
         FOUR + "test_a_freeze_with_a_void_freezes_at_once_and_voids_later"),
    Line(EYES + "four_eyes.py", "if change.frozen and not dataset.frozen:", "if False:",
         FOUR + "test_a_freeze_with_a_void_freezes_at_once_and_voids_later"),
    Line(EYES + "four_eyes.py", "covers(really, recorded) and ", "",
         FOUR + "test_a_correction_that_may_lower_epsilon_waits"),
    Line("service/web/api/change_requests.py", "[datasets_within(caller.datasets)]", "[]",
         ASKED + "test_requests_are_listed_by_dataset_state_and_person"),
    Line(EYES + "four_eyes.py", " and not moves", "",
         FOUR + "test_a_correction_that_moves_a_pass_waits_whatever_covers_it"),
    # Sessions of people.
    Line("service/identity/sessions.py", "too_many, outdated)", "too_many)",
         SIGN_IN + "test_a_sign_in_ends_the_sessions_in_which_the_provider_said_otherwise"),
    Line("service/web/dashboard/provider_sign_in.py",
         "sessions.end_all(connection, digest_of(principal.name))", "pass",
         SIGN_IN + "test_a_refused_sign_in_ends_all_sessions_of_the_person"),
    Line("service/web/dashboard/provider_sign_in.py",
         "sessions.end_digest(connection, started.session)", "pass",
         SIGN_IN + "test_a_sign_in_ends_the_session_that_the_browser_had_before"),
    # Owners and approvers.
    Line("service/identity/keys.py", "if scope is Role.OWNER and terms.datasets is None:",
         "if False:", OWNERS + "test_the_key_of_an_owner_names_datasets"),
    Line("service/identity/ownership.py", "if new.name not in caller.datasets:", "if False:",
         OWNERS + "test_an_owner_creates_derived_datasets_of_its_own"),
    Line("service/identity/ownership.py", "if not new.parents:", "if False:",
         OWNERS + "test_an_owner_creates_derived_datasets_of_its_own"),
    Line("service/identity/ownership.py", "        caller.require_dataset(parent)\n", "",
         OWNERS + "test_an_owner_creates_derived_datasets_of_its_own"),
    Line("service/identity/ownership.py", "        if above is not None:\n", "        if False:\n",
         OWNERS + "test_an_owner_creates_derived_datasets_of_its_own"),
    Line("service/web/four_eyes.py", "if change.void_reservations and moves_others(",
         "if False and moves_others(",
         OWNERS + "test_a_void_of_a_child_moves_its_parent_and_waits_for_another_person"),
    Line("service/web/four_eyes.py", "if named or moves_others(", "if named and moves_others(",
         OWNERS + "test_a_correction_of_a_child_waits_unless_it_only_raises_epsilon"),
    Line("service/web/four_eyes.py", "    if above is not None:\n", "    if False:\n",
         OWNERS + "test_a_void_of_a_child_moves_its_parent_and_waits_for_another_person"),
    Line("service/web/four_eyes.py", 'asked.target is not None or ', "",
         OWNERS + "test_a_void_of_a_child_moves_its_parent_and_waits_for_another_person"),
    Line("service/web/four_eyes.py", ' or json.loads(asked.change).get("void_reservations")', "",
         OWNERS + "test_a_void_of_a_child_moves_its_parent_and_waits_for_another_person"),
    Line("service/web/dashboard/pages/new_dataset.py",
         "            require_own_creation(connection, viewer, new)\n", "",
         OWNERS + "test_a_dataset_that_an_owner_may_not_create_is_refused_on_the_page"),
    Line("service/web/dashboard/pages/new_dataset.py",
         ".where(datasets_within(viewer.datasets))", "",
         OWNERS + "test_the_pages_show_each_role_what_it_may_do"),
    Line("service/web/certificate_issue.py", "if not caller.may(Role.TRAINER):", "if False:",
         "test_certificate_rate.py"),
    Line("service/operations/incident_notes.py", "caller.require(Role.ADMIN)", "pass",
         NOTING),
    Line("service/operations/incident_notes.py", "caller.require(Role.OWNER, Role.APPROVER)",
         "pass", NOTING),
)
# fmt: on
