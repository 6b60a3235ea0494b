//! What is shown, or written down, and is not so.

use berth_core::status::{Condition, ConditionKind, ContainerState, Phase, PodStatus};

use super::*;

pub(super) fn succeeded_while_it_runs(run: &mut Run) {
    begin(run, &["main"]);
    run.unwant("web");
    let shown = PodStatus { phase: Phase::Succeeded, ..status(run) };
    lie(run, |oracle, now| oracle.shown(&uid(), &shown, now));
}

pub(super) fn succeeded_in_place_of_failed(run: &mut Run) {
    // What a right core writes down and shows: the same in every life that is the same.
    let mut right = Run::new();
    right.settle();
    begin_once(&mut right);
    begin_once(run);
    exit(&mut right, "main", 1);
    let (stored, shown) = (record(&right), status(&right));
    assert_eq!(shown.phase, Phase::Failed);

    let (id, now) = (run.world.running(&uid(), "main").expect("it runs"), run.now);
    run.world.exit(&id, 1, now);
    lie(run, |oracle, now| {
        oracle.stored(&stored);
        oracle.shown(&uid(), &PodStatus { phase: Phase::Succeeded, ..shown }, now);
    });
}

pub(super) fn verdict_without_a_record(run: &mut Run) {
    succeeded(run);
    let (without, shown) = (PodRecord { terminal: None, ..record(run) }, status(run));
    lie(run, |oracle, now| {
        oracle.stored(&without);
        oracle.shown(&uid(), &shown, now);
    });
}

pub(super) fn ended_at_rest(run: &mut Run) {
    begin(run, &["main"]);
    let shown = status(run);
    lie(run, |oracle, now| oracle.check_rest(&uid(), &shown, true, now));
}

pub(super) fn unready_at_rest(run: &mut Run) {
    begin(run, &["main"]);
    let mut shown = status(run);
    let is_ready = |one: &&mut Condition| one.kind == ConditionKind::Ready;
    shown.conditions.iter_mut().find(is_ready).expect("a condition").holds = false;
    lie(run, |oracle, now| oracle.check_rest(&uid(), &shown, false, now));
}

pub(super) fn pending_at_rest(run: &mut Run) {
    begin(run, &["main"]);
    let shown = PodStatus { phase: Phase::Pending, ..status(run) };
    lie(run, |oracle, now| oracle.check_rest(&uid(), &shown, false, now));
}

pub(super) fn init_container_at_rest(run: &mut Run) {
    begin(run, &["init-a", "main"]);
    let (init, shown) = (start_of(run, "init-a"), status(run));
    lie(run, |oracle, now| {
        oracle.process_began(&init, now);
        oracle.check_rest(&uid(), &shown, false, now);
    });
}

pub(super) fn running_after_its_end(run: &mut Run) {
    succeeded(run);
    let shown = PodStatus { phase: Phase::Running, ..status(run) };
    lie(run, |oracle, now| oracle.shown(&uid(), &shown, now));
}

pub(super) fn restart_is_not_counted(run: &mut Run) {
    crashed(run);
    let mut shown = status(run);
    only_container(&mut shown).restart_count = 0;
    lie(run, |oracle, now| oracle.shown(&uid(), &shown, now));
}

pub(super) fn restart_without_a_record(run: &mut Run) {
    crashed(run);
    let (mut before, shown) = (record(run), status(run));
    record_of(&mut before, "main").attempt = 0;
    lie(run, |oracle, now| {
        oracle.stored(&before);
        oracle.shown(&uid(), &shown, now);
    });
}

pub(super) fn another_code_recorded(run: &mut Run) {
    crashed(run);
    let mut other = record(run);
    record_of(&mut other, "main").last_exit.as_mut().expect("an end").exit.code = 2;
    lie(run, |oracle, _| oracle.stored(&other));
}

pub(super) fn another_code_shown(run: &mut Run) {
    crashed(run);
    let mut shown = status(run);
    only_container(&mut shown).last_state.as_mut().expect("an end").exit_code = 2;
    lie(run, |oracle, now| oracle.shown(&uid(), &shown, now));
}

pub(super) fn shown_to_run_before_it_does(run: &mut Run) {
    let start = almost_begun(run);
    let mut shown = status(run);
    lie(run, |oracle, now| {
        let main = only_container(&mut shown);
        (main.id, main.state) = (Some(start.id), ContainerState::Running { started_at: now.wall });
        oracle.shown(&uid(), &shown, now);
    });
}
