//! Hooks that are run when they should not, and what does not wait for them.

use berth_core::{
    pod::port::hook::{HookCall, HookRequest},
    spec::{Hook, HookMoment, Lifecycle},
};

use super::*;

fn command() -> Hook {
    Hook::Exec(vec!["do".into()])
}

/// A pod whose first container has both hooks.
fn with_hooks() -> Pod {
    let mut pod = pods::pod("web", &["main", "other"]);
    pods::edit(&mut pod, "main").lifecycle =
        Lifecycle { post_start: Some(command()), pre_stop: Some(command()), stop_signal: None };
    pod
}

fn is_hook(effect: &Effect) -> bool {
    matches!(effect, Effect::Pod { act: Act::RunHook(_), .. })
}

fn hook(run: &Run, moment: HookMoment) -> Act {
    let start = start_of(run, "main");
    let call = HookCall::Exec { sandbox: start.sandbox, command: vec!["do".into()] };
    Act::RunHook(Box::new(HookRequest { id: start.id, moment, call }))
}

/// Its hook after the start runs.
fn begin_held(run: &mut Run) {
    run.want(with_hooks());
    run.until_asked(is_hook);
}

pub(super) fn run_twice_at_once(run: &mut Run) {
    begin_held(run);
    let again = hook(run, HookMoment::PostStart);
    lie(run, |oracle, now| ask(oracle, again, now));
}

pub(super) fn run_after_it_was_over(run: &mut Run) {
    begin_with(run, with_hooks());
    let again = hook(run, HookMoment::PostStart);
    lie(run, |oracle, now| ask(oracle, again, now));
}

pub(super) fn run_before_anything_is_to_stop(run: &mut Run) {
    begin_with(run, with_hooks());
    let early = hook(run, HookMoment::PreStop);
    lie(run, |oracle, now| ask(oracle, early, now));
}

pub(super) fn begun_before_the_hook_is_over(run: &mut Run) {
    begin_held(run);
    begin_next(run, "main", 1);
}

pub(super) fn stopped_before_the_hook_is_over(run: &mut Run) {
    begin_with(run, with_hooks());
    run.unwant("web");
    run.until_asked(is_hook);
    let main = start_of(run, "main");
    lie(run, |oracle, now| signal(oracle, &main, term(), now));
}
