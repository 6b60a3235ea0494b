//! Containers that begin anew together when they should not, or not as they should.

use berth_core::{
    observation::ObservedTask,
    pod::port::hook::{HookCall, HookRequest},
    record::ExitRecord,
    spec::{Hook, HookMoment},
};

use super::*;

/// The code for which all begin anew.
const CODE: u32 = 42;

/// A pod that never runs again but for that.
fn begin_ruled(run: &mut Run, containers: &[&str]) {
    let mut pod = Pod { restart_policy: RestartPolicy::Never, ..pods::pod("web", containers) };
    pods::restart_all_on(&mut pod, "main", CODE);
    if let Some(other) = pod.containers.iter_mut().find(|one| one.name.as_str() == "other") {
        Arc::make_mut(other).lifecycle.pre_stop = Some(Hook::Exec(vec!["do".into()]));
    }
    begin_with(run, pod);
}

/// Only one of two runs has ended, and that one begins.
pub(super) fn begun_anew_while_another_runs(run: &mut Run) {
    begin_ruled(run, &["main", "other"]);
    let (main, now) = (run.world.running(&uid(), "main").expect("it runs"), run.now);
    run.world.exit(&main, CODE, now);
    run.until_asked(|effect| matches!(effect, Effect::Pod { act: Act::Signal(_), .. }));
    start_next(run, "main");
}

pub(super) fn begun_anew_before_its_init_container(run: &mut Run) {
    begin_ruled(run, &["init-a", "main"]);
    exit(run, "main", CODE);
    start_next(run, "main");
}

pub(super) fn stopped_for_another_code(run: &mut Run) {
    begin_ruled(run, &["main", "other"]);
    exit(run, "main", CODE + 1);
    let (ending, other) = (ending(run), start_of(run, "other"));
    lie(run, |oracle, now| {
        ask(oracle, Act::Persist(Box::new(ending)), now);
        signal(oracle, &other, term(), now);
    });
}

/// That one has ended is on disk, and nobody has been told to stop yet.
pub(super) fn hook_run_though_all_begin_anew(run: &mut Run) {
    begin_ruled(run, &["main", "other"]);
    let (main, now) = (run.world.running(&uid(), "main").expect("it runs"), run.now);
    run.world.end(&main, CODE, false, now);
    let ObservedTask::Exited(exit) = run.world.containers[&main].task else { panic!("it has ended") };
    let mut called = record(run);
    record_of(&mut called, "main").exit = Some(ExitRecord {
        id: main,
        attempt: 0,
        exit,
        at: now.mono,
        message: String::new(),
        reason: None,
        post_start: None,
    });
    let other = start_of(run, "other");
    let call = HookCall::Exec { sandbox: other.sandbox, command: vec!["do".into()] };
    let hook = HookRequest { id: other.id, moment: HookMoment::PreStop, call };
    lie(run, |oracle, now| {
        oracle.stored(&called);
        ask(oracle, Act::RunHook(Box::new(hook)), now);
    });
}

/// It waits for more than the second in which others may end.
pub(super) fn not_begun_anew(run: &mut Run) {
    begin_ruled(run, &["main", "other"]);
    exit(run, "main", CODE);
    let shown = status(run);
    lie(run, |oracle, now| oracle.check_rest(&uid(), &shown, false, now));
}
