//! Proof of the cases that no second shim passes: each fails for a shim that is wrong in one thing, and says so.
//!
//! A case that two shims of different make pass is about the contract. Where only one shim passes, it might as well pass
//! whatever a shim does. What the stock shim always fails is in [`deviations`](crate::deviations) with what that shows.

use crate::harness::Fault;

/// A case that a wrong shim fails.
#[derive(Debug)]
pub(crate) struct Proof {
    /// `group::name`.
    pub(crate) case: &'static str,
    /// What is wrong with the shim.
    pub(crate) fault: Fault,
    /// What the failure says, so that no other failure is taken for it.
    pub(crate) shows: &'static str,
}

const fn proof(case: &'static str, fault: Fault, shows: &'static str) -> Proof {
    Proof { case, fault, shows }
}

/// Every case that needs the sandbox service, which the stock shim has not.
pub(crate) const PROOFS: &[Proof] = &[
    proof("sandbox::every_call_answers_with_its_code", Fault::StartErrorsUncoded, "start before create"),
    proof("sandbox::another_sandbox_is_not_found", Fault::PingsAnySandbox, "called `Result::unwrap_err()`"),
    proof("sandbox::the_status_tells_a_process_and_a_time", Fault::StatusWithoutProcess, "left: 0"),
    proof("sandbox::the_status_tells_a_process_and_a_time", Fault::StatusWithoutTime, "left: None"),
    proof("sandbox::stop_is_idempotent_and_ends_the_wait", Fault::WaitWithoutTime, "exited_at.is_some()"),
    proof("sandbox::stop_ends_members", Fault::ExitsAllWell, "right: 137"),
    proof(
        "sandbox::a_stopped_sandbox_takes_no_member",
        Fault::StopDoesNothing,
        "called `Result::unwrap_err()`",
    ),
    proof("sandbox::stop_before_start_is_no_error", Fault::StopRefused, "not now"),
    proof("sandbox::the_network_is_the_one_that_is_given", Fault::NetworkIgnored, "left == right"),
    proof("sandbox::the_network_outlives_its_file", Fault::StatusNeverReady, r#"right: "SANDBOX_READY""#),
    proof("sandbox::no_network_is_the_nodes", Fault::NetworkUnasked, r#"left: "net:["#),
    proof(
        "sandbox::a_network_that_is_none_is_an_error",
        Fault::NetworkIgnored,
        "called `Result::unwrap_err()`",
    ),
    proof("sandbox::shutdown_of_tasks_spares_the_sandbox", Fault::TaskShutdownRefused, "an answer"),
    proof("sandbox::shutdown_releases_everything", Fault::ShutdownRefused, "not now"),
    proof("sandbox::connect_answers_for_any_id", Fault::ConnectWithoutTask, "left: 0"),
    proof("sandbox::metrics_and_platform_are_told", Fault::PlatformOfAnother, "pdp11"),
    proof("sandbox::metrics_and_platform_are_told", Fault::MetricsEmpty, "metrics.is_some()"),
    proof("sandbox::delete_after_a_lost_sandbox_leaves_nothing", Fault::CleanupTellsSuccess, "right: 137"),
    proof("members::the_network_is_shared_when_asked_for", Fault::NothingShared, r#"left: "net:["#),
    proof("members::the_network_is_shared_without_a_word", Fault::NetworkUnshared, r#"left: "net:["#),
    proof("members::ipc_is_shared_when_asked_for", Fault::NothingShared, r#"left: "ipc:["#),
    proof("members::uts_is_shared_when_asked_for", Fault::NothingShared, r#"left: "uts:["#),
    proof("members::processes_are_shared_when_asked_for", Fault::NothingShared, "ps -o args; echo pid"),
    proof("members::shared_memory_follows_ipc", Fault::NothingShared, "hello"),
    proof("members::members_live_their_own_lives", Fault::TasksAllStopped, "(Stopped,"),
    proof("members::kill_and_pids_are_scoped_to_one_member", Fault::TasksAllStopped, "(Stopped,"),
    proof("members::memory_runs_out_for_one_member", Fault::TasksAllStopped, "(Stopped,"),
    proof("members::a_member_may_be_replaced", Fault::DeleteDoesNothing, "AlreadyExists"),
];
