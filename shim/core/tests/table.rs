//! The contract of the shim's services: what every request is answered in every state of a task, of an exec and of the
//! sandbox, as tables.
//!
//! `ok` is an answer, `allow` the shell's own answer, `run` the start of something that takes time, `wait` a request that
//! is kept; `absent` (`NotFound`), `exists` (`AlreadyExists`) and `refused` (`FailedPrecondition`) are errors. Columns are
//! RPCs of `containerd.task.v3.Task` and of `containerd.runtime.sandbox.v1.Sandbox`, or stand for several that ask the
//! machine the same: `pids` also for `Stats` and `CloseIO`; `attach` and `own-exec` for our own service.
//!
//! The states and their answers are those of containerd's runc shim (`process/init_state.go`, `process/exec_state.go`,
//! `task/service.go` of 2.3), with errors that have codes where that one has text only. Where the two differ, ours may
//! do more: `Create` refuses a name that is taken, `Wait` may come before the end of `Create`.

use berth_shim_core::{
    Action, Code, Effect, Event, ExecPurpose, Exit, Failure, Id, Machine, Notice, Now, OpId, Origin, Process,
    ProcessView, Reply, ReqId, Request, Scope, Status,
};

const INIT: u32 = 10;
const EXEC: u32 = 20;
const SANDBOX: u32 = 30;

const TASK: &str = "
state             create restore start   kill    wait   delete  state   pids    resize  attach  pause   resume  update  checkpoint exec    own-exec connect shutdown
absent            run    run     absent  absent  absent absent  absent  absent  absent  absent  absent  absent  absent  absent     absent  absent   ok      end
creating          exists exists  refused refused wait   wait    refused refused refused refused refused refused refused refused    refused refused  ok      ok
creating-doomed   exists exists  refused refused wait   refused refused refused refused refused refused refused refused refused    refused refused  ok      ok
created           exists exists  run     ok      wait   run     ok      allow   allow   allow   refused refused run     refused    ok      refused  ok      ok
starting          exists exists  refused ok      wait   refused ok      allow   allow   allow   refused refused run     refused    ok      refused  ok      ok
starting-exited   exists exists  refused absent  wait   refused ok      allow   absent  absent  refused refused absent  refused    refused refused  ok      ok
running           exists exists  refused ok      wait   refused ok      allow   allow   allow   run     refused run     run        ok      run      ok      ok
pausing           exists exists  refused ok      wait   refused ok      allow   allow   allow   refused refused run     refused    refused refused  ok      ok
paused            exists exists  refused ok      wait   refused ok      allow   allow   allow   refused run     run     run        refused refused  ok      ok
resuming          exists exists  refused ok      wait   refused ok      allow   allow   allow   refused refused run     refused    refused refused  ok      ok
leaving           exists exists  refused absent  wait   refused ok      allow   absent  absent  refused refused absent  refused    refused refused  ok      ok
draining          exists exists  refused absent  wait   refused ok      allow   absent  absent  refused refused absent  refused    refused refused  ok      ok
stopped           exists exists  refused absent  ok     run     ok      allow   absent  absent  refused refused absent  refused    refused refused  ok      ok
deleting-created  exists exists  refused ok      wait   refused ok      allow   allow   allow   refused refused run     refused    refused refused  ok      ok
deleting-stopped  exists exists  refused absent  ok     refused ok      allow   absent  absent  refused refused absent  refused    refused refused  ok      ok
deleting-nobodys  exists exists  refused absent  ok     wait    ok      allow   absent  absent  refused refused absent  refused    refused refused  ok      ok
saving            exists exists  refused ok      wait   refused ok      allow   allow   allow   refused refused run     refused    refused refused  ok      ok
saving-paused     exists exists  refused ok      wait   refused ok      allow   allow   allow   refused refused run     refused    refused refused  ok      ok
saving-exited     exists exists  refused absent  wait   refused ok      allow   absent  absent  refused refused absent  refused    refused refused  ok      ok
preparing         exists exists  refused refused wait   wait    refused refused refused refused refused refused refused refused    refused refused  ok      ok
prepared          exists exists  run     absent  wait   run     ok      allow   allow   absent  refused refused absent  refused    refused refused  ok      ok
restoring         exists exists  refused absent  wait   refused ok      allow   allow   absent  refused refused absent  refused    refused refused  ok      ok
restored          exists exists  refused ok      wait   refused ok      allow   allow   allow   run     refused run     run        ok      run      ok      ok
deleting-prepared exists exists  refused absent  wait   refused ok      allow   absent  absent  refused refused absent  refused    refused refused  ok      ok
";

const EXECS: &str = "
state           exec    start   kill    wait   delete  state  pids   resize attach
absent          ok      absent  absent  absent absent  absent absent absent absent
added           exists  run     refused wait   ok      ok     allow  allow  refused
added-created   exists  run     refused wait   ok      ok     allow  allow  refused
added-paused    refused refused refused wait   ok      ok     allow  allow  refused
added-stopped   refused refused refused wait   ok      ok     allow  allow  refused
starting        exists  refused refused wait   refused ok     allow  allow  refused
failed          exists  run     refused wait   ok      ok     allow  allow  refused
running         exists  refused ok      wait   refused ok     allow  allow  allow
running-created exists  refused ok      wait   refused ok     allow  allow  allow
leaving         exists  refused absent  wait   refused ok     allow  absent absent
stopped         exists  refused absent  ok     ok      ok     allow  absent absent
";

const SANDBOXES: &str = "
state    create-sandbox start-sandbox stop-sandbox wait-sandbox sandbox-status shutdown-sandbox create  restore start   shutdown
absent   ok             refused       ok           absent       absent         run              run     run     absent  end
created  exists         run           ok           wait         ok             run              refused refused absent  ok
starting exists         refused       refused      wait         ok             wait             refused refused absent  ok
ready    exists         ok            ok           wait         ok             run              run     run     absent  ok
stopped  exists         refused       ok           ok           ok             run              refused refused absent  ok
closing  exists         ok            ok           wait         ok             refused          refused refused absent  ok
";

#[test]
fn every_request_in_every_state_of_a_task() {
    check(TASK, &Process::init(&id("c")), task_in);
}

#[test]
fn every_request_in_every_state_of_an_exec() {
    check(EXECS, &exec_of_c(), exec_in);
}

#[test]
fn a_shim_in_which_nothing_is_left_ends_when_its_client_has_gone() {
    let failed = |rig: &mut Rig| {
        let failure = Failure::new(Code::Internal, "no");
        rig.happen(Event::Finished { op: rig.op, result: Err(failure) })
    };
    let done = |rig: &mut Rig| rig.happen(Event::Finished { op: rig.op, result: Ok(()) });
    let ends = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::Exit));
    let other = || task_in("running").then(Request::Create(id("d"), Origin::Bundle));

    assert!(ends(&done(&mut task_in("deleting-nobodys"))), "a deletion");
    assert!(!ends(&done(&mut task_in("deleting-stopped"))), "a deletion that is answered");
    assert!(ends(&failed(&mut task_in("creating").deserted())), "a creation that fails");
    assert!(!ends(&failed(&mut task_in("creating"))), "a creation whose failure is answered");
    assert!(!ends(&failed(&mut other().deserted())), "a creation beside another task");
    let mut adopted = task_in("deleting-nobodys").then(Request::Delete(Process::init(&id("c"))));
    let effects = done(&mut adopted);
    assert_eq!(outcome(&effects, adopted.last), "ok", "{effects:?}");
    assert!(!ends(&effects), "a deletion that another client asked for again");
    let mut member = sandbox_in("ready").then(Request::Create(id("c"), Origin::Bundle)).deserted();
    assert!(!ends(&failed(&mut member)), "a creation in a sandbox, which goes on");
}

/// As of a containerd that was killed, or told to give up, after `start` and before it connected.
#[test]
fn a_shim_with_nothing_in_it_and_no_client_for_ten_seconds_ends() {
    let at = |mono_ms| Now { unix_ns: 0, mono_ms };
    let without_clients = |mut rig: Rig| {
        rig.happen_at(at(1_000), Event::Clients { any: false });
        rig
    };
    for (what, rig, expected) in [
        ("nothing", Rig::new(), true),
        ("a sandbox that is not started", sandbox_in("created"), false),
        ("a sandbox", sandbox_in("ready"), false),
        ("a sandbox that is stopped", sandbox_in("stopped"), false),
        ("a sandbox that is being released", sandbox_in("closing"), false),
        ("a task that is being made", task_in("creating"), false),
        ("a task", task_in("running"), false),
        ("a task that has ended", task_in("stopped"), false),
        ("a task that is being deleted", task_in("deleting-stopped"), false),
    ] {
        let mut rig = without_clients(rig);
        assert_eq!(rig.tick(10_999), [], "{what}: a moment before");
        assert_eq!(rig.machine.poll_timeout() == Some(11_000), expected, "{what}");
        assert_eq!(rig.tick(11_000) == [Effect::Exit], expected, "{what}");
        assert_eq!(rig.tick(60_000), [], "{what}: it ends once");
        assert_eq!(rig.machine.poll_timeout(), None, "{what}");
    }
    let mut rig = without_clients(Rig::new());
    rig.happen_at(at(10_999), Event::Clients { any: true });
    assert_eq!((rig.tick(60_000), rig.machine.poll_timeout()), (vec![], None), "somebody came");
    rig.happen_at(at(60_000), Event::Clients { any: false });
    assert_eq!(rig.tick(69_999), [], "and went");
    assert_eq!(rig.tick(70_000), [Effect::Exit]);

    let mut rig = without_clients(task_in("deleting-nobodys"));
    let done = Event::Finished { op: rig.op, result: Ok(()) };
    assert!(rig.happen_at(at(2_000), done).contains(&Effect::Exit), "the last task has gone");
    assert_eq!(rig.tick(60_000), [], "and the shim with it");
}

/// Whoever learns of an exit reads the log next; a disk that does not answer keeps nobody from learning it.
#[test]
fn an_exit_is_told_once_its_last_words_are_on_disk_or_take_too_long() {
    let mut rig = task_in("running");
    let effects = rig.happen(Event::ChildExited { pid: INIT, code: 0 });
    assert!(effects.contains(&Effect::Drain(Process::init(&id("c")))) && !tells(&effects), "{effects:?}");
    assert!(tells(&rig.happen(Event::Drained(Process::init(&id("c"))))));
    assert!(!tells(&rig.happen(Event::Drained(Process::init(&id("c"))))), "told twice");

    let mut rig = task_in("draining");
    let late = rig.machine.poll_timeout().expect("it waits for a time");
    for (now, told) in [(late - 1, false), (late, true)] {
        assert_eq!(tells(&rig.tick(now)), told, "at {now}");
    }
}

/// A shim that is killed while the exit waits for execs, for the runtime or for a disk leaves it behind.
#[test]
fn an_exit_is_recorded_when_the_init_is_reaped_and_once() {
    let states =
        ["created", "starting", "running", "pausing", "paused", "saving", "deleting-created", "restored"];
    let with_an_exec =
        [("running with an exec", exec_in("running")), ("leaving its exec", exec_in("leaving"))];
    for (state, mut rig) in states.map(|state| (state, task_in(state))).into_iter().chain(with_an_exec) {
        let effects = rig.happen(Event::ChildExited { pid: INIT, code: 7 });
        let exit = Exit { code: 7, at_ns: 0, oom_kills: 0 };
        assert_eq!(effects.first(), Some(&Effect::Persist { task: id("c"), exit }), "{state}");
        assert!(!tells(&effects), "{state}: {effects:?}");
        let mut later = rig.finished_at_all();
        later.extend(rig.happen(Event::Drained(Process::init(&id("c")))));
        for _ in 0..3 {
            later.extend(rig.machine.poll_timeout().map(|at| rig.tick(at)).unwrap_or_default());
        }
        assert!(tells(&later), "{state}: {later:?}");
        assert_eq!(recorded(&later), [], "{state}");
    }
}

/// What the runtime reports too late to be asked was reaped when it is reported.
#[test]
fn the_exit_of_an_init_that_is_reported_after_its_end_is_recorded_with_the_report() {
    for state in ["creating", "restoring"] {
        let mut rig = task_in(state);
        assert_eq!(rig.happen(Event::ChildExited { pid: INIT, code: 7 }), [], "{state}: nobody's yet");
        let later = Now { unix_ns: 5, mono_ms: 5 };
        let effects = rig.happen_at(later, Event::Spawned { op: rig.op, result: Ok(INIT) });
        assert_eq!(
            recorded(&effects),
            [Exit { code: 7, at_ns: 0, oom_kills: 0 }],
            "{state}: when it was reaped"
        );
    }
}

/// Kills for memory that are counted only after the exit is known belong to it until it is told.
#[test]
fn kills_for_memory_that_come_late_are_recorded_with_the_exit() {
    for state in ["running", "starting-exited", "saving-exited", "leaving", "draining"] {
        let mut rig = task_in(state);
        let oom = |kills| Event::OomObserved { task: id("c"), kills };
        let effects = rig.happen(oom(2));
        let expected =
            if state == "running" { vec![] } else { vec![Exit { code: 0, at_ns: 0, oom_kills: 2 }] };
        assert_eq!(recorded(&effects), expected, "{state}");
        assert_eq!(recorded(&rig.happen(oom(2))), [], "{state}: nothing new");
    }
    let mut rig = task_in("draining");
    rig.happen(Event::OomObserved { task: id("c"), kills: 2 });
    let effects = rig.happen(Event::Drained(Process::init(&id("c"))));
    let exit = Exit { code: 0, at_ns: 0, oom_kills: 2 };
    let told = Notice::Exited { process: Process::init(&id("c")), pid: INIT, exit };
    assert!(effects.contains(&Effect::Publish(told)), "{effects:?}");
    assert_eq!(recorded(&rig.happen(Event::OomObserved { task: id("c"), kills: 3 })), [], "it was told");
}

fn tells(effects: &[Effect]) -> bool {
    let init = Process::init(&id("c"));
    let tells = |effect: &Effect| matches!(effect, Effect::Publish(Notice::Exited { process, .. }) if *process == init);
    effects.iter().any(tells)
}

fn recorded(effects: &[Effect]) -> Vec<Exit> {
    let exit = |effect: &Effect| if let Effect::Persist { exit, .. } = effect { Some(*exit) } else { None };
    effects.iter().filter_map(exit).collect()
}

/// An exec's client reads its file next, as that of a container does.
#[test]
fn an_execs_exit_is_told_once_its_output_is_on_disk_or_takes_too_long() {
    let tells = |effects: &[Effect]| {
        effects.iter().any(|effect| matches!(effect, Effect::Publish(Notice::Exited { .. })))
    };
    let mut rig = exec_in("running");
    let effects = rig.happen(Event::ChildExited { pid: EXEC, code: 3 });
    assert!(effects.contains(&Effect::Drain(exec_of_c())) && !tells(&effects), "{effects:?}");
    let effects = rig.happen(Event::Drained(exec_of_c()));
    let exit = Exit { code: 3, at_ns: 0, oom_kills: 0 };
    let told = Notice::Exited { process: exec_of_c(), pid: EXEC, exit };
    assert!(effects.contains(&Effect::Publish(told)), "{effects:?}");
    assert!(!tells(&rig.happen(Event::Drained(exec_of_c()))), "told twice");

    let mut rig = exec_in("leaving");
    let late = rig.machine.poll_timeout().expect("it waits for a time");
    for (now, told) in [(late - 1, false), (late, true)] {
        assert_eq!(tells(&rig.tick(now)), told, "at {now}");
    }
}

/// An exec that is killed with its container is told before it, also when the disk does not answer.
#[test]
fn an_exec_whose_output_hangs_is_told_with_its_container() {
    let mut rig = exec_in("leaving");
    rig.happen(Event::ChildExited { pid: INIT, code: 137 });
    let mut told = Vec::new();
    while let Some(at) = rig.machine.poll_timeout() {
        told.extend(rig.tick(at).into_iter().filter_map(|effect| match effect {
            Effect::Publish(Notice::Exited { process, .. }) => Some(process),
            _ => None,
        }));
    }
    assert_eq!(told, [exec_of_c(), Process::init(&id("c"))]);
}

/// An exec that outlives the wait for it and ends while its container's output is written tells nothing of that output.
#[test]
fn an_exec_that_ends_late_does_not_end_the_wait_for_the_disk() {
    let mut rig = task_in("leaving");
    let late = rig.machine.poll_timeout().expect("it waits for its exec");
    let effects = rig.tick(late);
    assert!(effects.contains(&Effect::Drain(Process::init(&id("c")))), "{effects:?}");
    rig.happen(Event::ChildExited { pid: EXEC, code: 137 });
    assert!(!tells(&rig.happen(Event::Drained(exec_of_c()))), "its output is not on disk");
    assert!(tells(&rig.happen(Event::Drained(Process::init(&id("c"))))));
}

/// What an exec has written that cannot even be killed is written before its client is answered.
#[test]
fn an_exec_that_does_not_die_is_drained_before_its_client_is_answered() {
    let purpose = ExecPurpose::Sync { timeout_ms: Some(1_000) };
    let mut rig = task_in("running").then(Request::RunExec(id("c"), purpose)).spawned(EXEC);
    let asked = rig.last;
    let mut effects = Vec::new();
    while let Some(at) = rig.machine.poll_timeout() {
        effects.extend(rig.tick(at));
    }
    let drained = effects.iter().position(|effect| matches!(effect, Effect::Drain(_)));
    let answered =
        effects.iter().position(|effect| matches!(effect, Effect::Reply { to, .. } if *to == asked));
    assert!(drained.is_some() && drained < answered, "{effects:?}");
}

/// A runtime that takes its time, as on a busy machine, takes none of the command's; one that never answers is waited for no longer
/// than a kubelet waits.
#[test]
fn the_time_of_an_exec_begins_with_its_start() {
    let at = |mono_ms| Now { unix_ns: 0, mono_ms };
    let asked = || {
        let mut rig = task_in("running");
        let purpose = ExecPurpose::Sync { timeout_ms: Some(1_000) };
        rig.last = ReqId(900);
        rig.happen_at(at(10_000), Event::Request(rig.last, Request::RunExec(id("c"), purpose)));
        rig
    };
    let kills = |effects: &[Effect]| {
        effects.iter().any(|effect| matches!(effect, Effect::Signal { pid: EXEC, scope: Scope::Tree, .. }))
    };
    let mut rig = asked();
    assert_eq!(rig.tick(70_000), [], "it is still being started");
    rig.happen_at(at(70_000), Event::Spawned { op: rig.op, result: Ok(EXEC) });
    assert_eq!(rig.machine.poll_timeout(), Some(71_000));
    assert_eq!(rig.tick(70_999), [], "a moment before");
    assert!(kills(&rig.tick(71_000)));
    let mut rig = asked();
    assert_eq!(rig.machine.poll_timeout(), Some(131_000));
    assert_eq!(rig.tick(131_000), [], "there is nothing to kill yet");
    let effects = rig.tick(133_000);
    let is_late = |effect: &Effect| matches!(effect, Effect::Reply { to, reply: Ok(Reply::ExecDone { timed_out: true, .. }) } if *to == rig.last);
    assert!(effects.iter().any(is_late), "{effects:?}");
}

/// One that its client no longer waits for may still be at work: the next one must not be overtaken by it.
#[test]
fn a_container_is_updated_by_one_runtime_at_a_time() {
    let mut rig = task_in("running").then(Request::Update(id("c"))).deserted();
    let first = rig.op;
    let updates = |rig: &mut Rig, task: &str| {
        let effects = rig.ask(Request::Update(id(task)));
        outcome(&effects, rig.last)
    };
    assert_eq!(updates(&mut rig, "c"), "refused");
    rig.happen(Event::Finished { op: first, result: Err(Failure::new(Code::Internal, "killed")) });
    assert_eq!(updates(&mut rig, "c"), "run");
    let other = rig.then(Request::Create(id("d"), Origin::Bundle)).spawned(INIT + 1);
    assert_eq!(updates(&mut { other }, "d"), "run", "another's");
}

/// What a runtime still knows must not be lost sight of: whoever cleans up after the shim has only what was noted.
#[test]
fn a_container_that_the_runtime_did_not_forget_is_abandoned_and_not_forgotten() {
    let init = || Process::init(&id("c"));
    let failure = || Failure::new(Code::Internal, "busy");
    let shut_down = || {
        let rig = task_in("stopped");
        rig.then(Request::ShutdownSandbox)
    };
    let mut rig = shut_down();
    let effects = rig.happen(Event::Finished { op: rig.op, result: Err(failure()) });
    assert!(effects.contains(&Effect::Abandon(id("c"))), "{effects:?}");
    assert!(!effects.contains(&Effect::Forget(init())), "{effects:?}");
    let mut rig = shut_down();
    let effects = rig.happen(Event::Finished { op: rig.op, result: Ok(()) });
    assert!(effects.contains(&Effect::Forget(init())), "{effects:?}");
    // A client that waits is told, and may ask again.
    let mut rig = task_in("stopped").then(Request::Delete(init()));
    let effects = rig.happen(Event::Finished { op: rig.op, result: Err(failure()) });
    assert_eq!(effects, [Effect::Reply { to: rig.last, reply: Err(failure()) }]);
}

#[test]
fn every_request_in_every_state_of_the_sandbox() {
    check(SANDBOXES, &Process::init(&id("c")), sandbox_in);
}

/// containerd asks so as soon as nobody wants the creation any more: what it does not know of must not stay.
#[test]
fn a_deletion_that_comes_during_the_creation_follows_it() {
    let run_delete = |effects: &[Effect]| {
        effects.iter().any(|effect| matches!(effect, Effect::Run { action: Action::Delete(_), .. }))
    };
    for (creating, pid) in [("creating", Some(INIT)), ("preparing", None)] {
        let mut rig = task_in(creating).deserted().then(Request::Delete(Process::init(&id("c"))));
        let asked = rig.last;
        let made = match pid {
            Some(pid) => Event::Spawned { op: rig.op, result: Ok(pid) },
            None => Event::Finished { op: rig.op, result: Ok(()) },
        };
        let effects = rig.happen(made);
        assert!(run_delete(&effects), "{creating}: {effects:?}");
        let mut effects = rig.happen(Event::Finished { op: rig.op, result: Ok(()) });
        if let Some(pid) = pid {
            rig.happen(Event::ChildExited { pid, code: 137 });
            effects.extend(rig.happen(Event::Drained(Process::init(&id("c")))));
        }
        assert_eq!(outcome(&effects, asked), "ok", "{creating}: {effects:?}");
        let effects = rig.ask(Request::State(Process::init(&id("c"))));
        assert_eq!(outcome(&effects, rig.last), "absent", "{creating}");
    }
}

#[test]
fn a_deletion_that_comes_during_the_creation_outlives_its_client_and_ends_with_a_failure() {
    let mut rig = task_in("creating-doomed");
    let asked = rig.last;
    let failure = Failure::new(Code::Internal, "no");
    let effects = rig.happen(Event::Finished { op: rig.op, result: Err(failure) });
    assert_eq!(outcome(&effects, asked), "absent", "{effects:?}");

    let mut rig = task_in("creating-doomed").deserted().spawned(INIT).finished();
    rig.happen(Event::ChildExited { pid: INIT, code: 137 });
    rig.happen(Event::Drained(Process::init(&id("c"))));
    let effects = rig.ask(Request::State(Process::init(&id("c"))));
    assert_eq!(outcome(&effects, rig.last), "absent", "{effects:?}");
}

/// A checkpoint that was prepared is a member like any other: nothing of it starts in a sandbox that is stopped.
#[test]
fn a_stopped_sandbox_restores_nothing() {
    let restore = || Request::Start(Process::init(&id("c")));
    let mut rig = sandbox_in("ready").then(Request::Create(id("c"), Origin::Checkpoint)).finished();
    rig.ask(Request::StopSandbox);
    let effects = rig.ask(restore());
    assert_eq!(outcome(&effects, rig.last), "refused");

    // The runtime was done when the sandbox was stopped: what it restored is killed.
    let mut rig = sandbox_in("ready").then(Request::Create(id("c"), Origin::Checkpoint)).finished();
    rig.ask(restore());
    let restoring = rig.op;
    rig.ask(Request::StopSandbox);
    let effects = rig.happen(Event::Spawned { op: restoring, result: Ok(INIT) });
    assert!(
        effects.iter().any(|effect| matches!(effect, Effect::Signal { pid: INIT, signal: 9, .. })),
        "{effects:?}"
    );
}

/// No member outlives the sandbox, also of a client that has not stopped it before.
#[test]
fn a_shutdown_kills_what_runs_takes_no_more_and_ends_when_all_is_gone() {
    let init = || Process::init(&id("c"));
    let created = || sandbox_in("ready").then(Request::Create(id("c"), Origin::Bundle)).spawned(INIT);
    let running = created().then(Request::Start(init())).finished();
    for (state, mut rig) in [("created", created()), ("running", running)] {
        let effects = rig.ask(Request::ShutdownSandbox);
        let shutdown = rig.last;
        let kills = |effect: &Effect| matches!(effect, Effect::Signal { pid: INIT, signal: 9, .. });
        let deletes = |effect: &Effect| matches!(effect, Effect::Run { action: Action::Delete(_), .. });
        assert!(effects.iter().any(kills) && effects.iter().any(deletes), "{state}: {effects:?}");
        let effects = rig.ask(Request::Create(id("d"), Origin::Bundle));
        assert_eq!(outcome(&effects, rig.last), "refused", "{state}");

        let mut rig = rig.finished().exited(INIT).drained();
        let effects = rig.finished_at_all();
        assert_eq!(outcome(&effects, shutdown), "end", "{state}: {effects:?}");
    }
}

/// A freezing that was under way when the container was killed would keep it from dying (cgroup v1).
#[test]
fn a_container_killed_on_its_way_to_being_frozen_is_thawed() {
    for state in ["pausing", "saving-paused"] {
        let mut rig = task_in(state);
        let freezing = rig.op;
        rig.ask(Request::Kill { process: Process::init(&id("c")), signal: 9, scope: Scope::Process });
        let effects = rig.happen(Event::Finished { op: freezing, result: Ok(()) });
        let thaws = |effect: &Effect| matches!(effect, Effect::Run { action: Action::Resume(_), .. });
        assert!(effects.iter().any(thaws), "{state}: {effects:?}");
    }
}

/// The same when all of its pod is killed.
#[test]
fn a_container_on_its_way_to_being_frozen_is_thawed_when_its_sandbox_is_stopped() {
    let init = || Process::init(&id("c"));
    let rig = sandbox_in("ready").then(Request::Create(id("c"), Origin::Bundle)).spawned(INIT);
    let mut rig = rig.then(Request::Start(init())).finished().then(Request::Pause(id("c")));
    let freezing = rig.op;
    rig.ask(Request::StopSandbox);
    let effects = rig.happen(Event::Finished { op: freezing, result: Ok(()) });
    let thaws = |effect: &Effect| matches!(effect, Effect::Run { action: Action::Resume(_), .. });
    assert!(effects.iter().any(thaws), "{effects:?}");
}

/// Killing one of its execs is no reason to let a frozen container go on.
#[test]
fn a_frozen_container_stays_frozen_when_an_exec_is_killed() {
    let mut rig = exec_in("running").then(Request::Pause(id("c"))).finished();
    let exec = exec_of_c();
    let effects = rig.ask(Request::Kill { process: exec, signal: 9, scope: Scope::Process });
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Run { .. })), "{effects:?}");
}

/// Nobody waits for ever for an exec that could not be started.
#[test]
fn an_exec_that_cannot_be_started_ends_the_wait_for_it() {
    let mut rig = exec_in("added").then(Request::Wait(exec_of_c()));
    let waiting = rig.last;
    rig.ask(Request::Start(exec_of_c()));
    let failure = Failure::new(Code::Internal, "no such file");
    let effects = rig.happen(Event::Finished { op: rig.op, result: Err(failure.clone()) });
    for to in [waiting, rig.last] {
        assert!(effects.contains(&Effect::Reply { to, reply: Err(failure.clone()) }), "{effects:?}");
    }
}

/// A frozen container is frozen with everything in it (`process/exec.go`).
#[test]
fn an_exec_is_as_frozen_as_its_container() {
    for (state, status) in
        [("running", Status::Running), ("pausing", Status::Pausing), ("paused", Status::Paused)]
    {
        let mut rig = exec_in("running");
        match state {
            "pausing" => rig = rig.then(Request::Pause(id("c"))),
            "paused" => rig = rig.then(Request::Pause(id("c"))).finished(),
            _ => {}
        }
        let effects = rig.ask(Request::State(exec_of_c()));
        let view = ProcessView { pid: EXEC, status, exit: None };
        assert_eq!(effects, [Effect::Reply { to: rig.last, reply: Ok(Reply::State(view)) }], "{state}");
    }
}

/// What the runtime is asked to start may run at any moment: nobody is to take it for never begun.
#[test]
fn a_container_that_is_being_started_is_told_from_one_that_was_created() {
    let cases = [
        ("created", INIT, Status::Created),
        ("starting", INIT, Status::Starting),
        ("running", INIT, Status::Running),
        ("prepared", 0, Status::Created),
        ("restoring", 0, Status::Starting),
    ];
    for (state, pid, status) in cases {
        let mut rig = task_in(state);
        let effects = rig.ask(Request::State(Process::init(&id("c"))));
        let view = ProcessView { pid, status, exit: None };
        assert_eq!(effects, [Effect::Reply { to: rig.last, reply: Ok(Reply::State(view)) }], "{state}");
    }
}

fn exec_of_c() -> Process {
    Process::exec(&id("c"), &id("e"))
}

fn check(table: &str, process: &Process, machine_in: fn(&str) -> Rig) {
    let mut lines = table.trim().lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let heads = lines.next().expect("a first line");
    for row in lines {
        assert_eq!(row.len(), heads.len(), "{row:?}");
        for (head, expected) in heads.iter().zip(&row).skip(1) {
            let mut rig = machine_in(row[0]);
            let effects = rig.ask(request(head, process));
            assert_eq!(outcome(&effects, rig.last), *expected, "{head} when {}: {effects:?}", row[0]);
        }
    }
}

fn request(name: &str, process: &Process) -> Request {
    let task = process.task.clone();
    match name {
        "create" => Request::Create(task, Origin::Bundle),
        "restore" => Request::Create(task, Origin::Checkpoint),
        "start" => Request::Start(process.clone()),
        "kill" => Request::Kill { process: process.clone(), signal: 15, scope: Scope::Process },
        "wait" => Request::Wait(process.clone()),
        "delete" => Request::Delete(process.clone()),
        "state" => Request::State(process.clone()),
        "pids" => Request::IfCreated(process.clone()),
        "resize" => Request::IfNotExited(process.clone()),
        "attach" => Request::IfAlive(process.clone()),
        "pause" => Request::Pause(task),
        "resume" => Request::Resume(task),
        "update" => Request::Update(task),
        "checkpoint" => Request::Checkpoint(task),
        "exec" => Request::AddExec(task, id("e")),
        "own-exec" => Request::RunExec(task, ExecPurpose::Stream),
        "connect" => Request::Connect(Some(task)),
        "shutdown" => Request::Shutdown,
        "create-sandbox" => Request::CreateSandbox,
        "start-sandbox" => Request::StartSandbox,
        "stop-sandbox" => Request::StopSandbox,
        "wait-sandbox" => Request::WaitSandbox,
        "sandbox-status" => Request::SandboxStatus,
        "shutdown-sandbox" => Request::ShutdownSandbox,
        _ => panic!("no request {name}"),
    }
}

/// What the effects of a request mean to whoever asked.
fn outcome(effects: &[Effect], asked: ReqId) -> &'static str {
    let answer = effects.iter().find_map(|effect| match effect {
        Effect::Reply { to, reply: Ok(_) } if *to == asked => Some("ok"),
        Effect::Reply { to, reply: Err(failure) } if *to == asked => Some(match failure.code {
            Code::NotFound => "absent",
            Code::AlreadyExists => "exists",
            Code::FailedPrecondition => "refused",
            code => panic!("unexpected {code:?}: {failure}"),
        }),
        Effect::Allow { to, .. } if *to == asked => Some("allow"),
        _ => None,
    });
    if answer == Some("ok") && effects.contains(&Effect::Exit) {
        return "end";
    }
    let runs = effects.iter().any(|effect| matches!(effect, Effect::Run { .. }));
    answer.unwrap_or(if runs { "run" } else { "wait" })
}

/// A machine and the last request and operation.
struct Rig {
    machine: Machine,
    last: ReqId,
    op: OpId,
}

impl Rig {
    fn new() -> Self {
        Self { machine: Machine::new(), last: ReqId(0), op: OpId(0) }
    }

    fn ask(&mut self, request: Request) -> Vec<Effect> {
        self.last = ReqId(self.last.0 + 1);
        self.happen(Event::Request(self.last, request))
    }

    fn tick(&mut self, mono_ms: u64) -> Vec<Effect> {
        self.happen_at(Now { unix_ns: 0, mono_ms }, Event::Tick)
    }

    fn happen(&mut self, event: Event) -> Vec<Effect> {
        self.happen_at(Now::default(), event)
    }

    fn happen_at(&mut self, now: Now, event: Event) -> Vec<Effect> {
        self.machine.handle(now, event);
        let effects: Vec<Effect> = std::iter::from_fn(|| self.machine.poll_effect()).collect();
        for effect in &effects {
            if let Effect::Run { op, .. } = effect {
                self.op = *op;
            }
        }
        effects
    }

    /// The next state by a request.
    fn then(mut self, request: Request) -> Self {
        self.ask(request);
        self
    }

    fn spawned(mut self, pid: u32) -> Self {
        self.happen(Event::Spawned { op: self.op, result: Ok(pid) });
        self
    }

    fn finished(mut self) -> Self {
        self.happen(Event::Finished { op: self.op, result: Ok(()) });
        self
    }

    /// Who asked last goes away.
    fn deserted(mut self) -> Self {
        self.happen(Event::Gone(self.last));
        self
    }

    fn failed(mut self) -> Self {
        self.happen(Event::Finished { op: self.op, result: Err(Failure::new(Code::Internal, "no")) });
        self
    }

    fn exited(mut self, pid: u32) -> Self {
        self.happen(Event::ChildExited { pid, code: 0 });
        self
    }

    /// The last operation ends, if there is one.
    fn finished_at_all(&mut self) -> Vec<Effect> {
        self.happen(Event::Finished { op: self.op, result: Ok(()) })
    }

    /// The disk takes what the exec has written.
    fn drained_exec(mut self) -> Self {
        self.happen(Event::Drained(exec_of_c()));
        self
    }

    /// The disk takes what the container has written.
    fn drained(mut self) -> Self {
        self.happen(Event::Drained(Process::init(&id("c"))));
        self
    }
}

fn task_in(state: &str) -> Rig {
    let (task, init) = (id("c"), Process::init(&id("c")));
    match state {
        "absent" => Rig::new(),
        "creating" => Rig::new().then(Request::Create(task, Origin::Bundle)),
        "creating-doomed" => task_in("creating").then(Request::Delete(init)),
        "created" => task_in("creating").spawned(INIT),
        "starting" => task_in("created").then(Request::Start(init)),
        "starting-exited" => task_in("starting").exited(INIT),
        "running" => task_in("starting").finished(),
        "pausing" => task_in("running").then(Request::Pause(task)),
        "paused" => task_in("pausing").finished(),
        "resuming" => task_in("paused").then(Request::Resume(task)),
        "leaving" => exec_in("running").exited(INIT),
        "draining" => task_in("running").exited(INIT),
        "stopped" => task_in("draining").drained(),
        "saving" => task_in("running").then(Request::Checkpoint(task)),
        "saving-paused" => task_in("paused").then(Request::Checkpoint(task)),
        "saving-exited" => task_in("saving").exited(INIT),
        "preparing" => Rig::new().then(Request::Create(task, Origin::Checkpoint)),
        "prepared" => task_in("preparing").finished(),
        "restoring" => task_in("prepared").then(Request::Start(init)),
        "restored" => task_in("restoring").spawned(INIT),
        "deleting-prepared" => task_in("prepared").then(Request::Delete(init)),
        "deleting-created" => task_in("created").then(Request::Delete(init)),
        "deleting-stopped" => task_in("stopped").then(Request::Delete(init)),
        "deleting-nobodys" => task_in("deleting-stopped").deserted(),
        _ => panic!("no state {state}"),
    }
}

fn exec_in(state: &str) -> Rig {
    let exec = exec_of_c();
    match state {
        "absent" => task_in("running"),
        "added" => task_in("running").then(Request::AddExec(exec.task, id("e"))),
        "added-created" => task_in("created").then(Request::AddExec(exec.task, id("e"))),
        "added-paused" => exec_in("added").then(Request::Pause(exec.task)).finished(),
        "added-stopped" => exec_in("added").exited(INIT).drained(),
        "failed" => exec_in("starting").failed(),
        "running-created" => exec_in("added-created").then(Request::Start(exec)).spawned(EXEC),
        "starting" => exec_in("added").then(Request::Start(exec)),
        "running" => exec_in("starting").spawned(EXEC),
        "leaving" => exec_in("running").exited(EXEC),
        "stopped" => exec_in("leaving").drained_exec(),
        _ => panic!("no state {state}"),
    }
}

fn sandbox_in(state: &str) -> Rig {
    match state {
        "absent" => Rig::new(),
        "created" => Rig::new().then(Request::CreateSandbox),
        "starting" => sandbox_in("created").then(Request::StartSandbox),
        "ready" => sandbox_in("starting").spawned(SANDBOX),
        "stopped" => sandbox_in("ready").then(Request::StopSandbox),
        "closing" => sandbox_in("ready").then(Request::ShutdownSandbox),
        _ => panic!("no state {state}"),
    }
}

fn id(name: &str) -> Id {
    Id::parse(name).expect("a good name")
}
