//! What every request is answered in every state of a task and of an exec, as two tables.
//!
//! `ok` is an answer, `allow` the shell's own answer, `run` the start of something that takes time, `wait` a request that
//! is kept; `absent`, `exists` and `refused` are the errors of that meaning.

use berth_shim_core::{
    Code, Effect, Event, ExecPurpose, Id, Machine, Now, OpId, Process, ReqId, Request, Scope,
};

const INIT: u32 = 10;
const EXEC: u32 = 20;

const TASK: &str = "
state            create  start   kill    wait    delete  state   made    living  pause   resume  update  save    exec    run-exec connect
absent           run     absent  absent  absent  absent  absent  absent  absent  absent  absent  absent  absent  absent  absent   ok
creating         exists  refused refused wait    refused refused refused refused refused refused refused refused refused refused  ok
created          exists  run     ok      wait    run     ok      allow   allow   refused refused run     refused refused refused  ok
starting         exists  refused ok      wait    refused ok      allow   allow   refused refused run     refused refused refused  ok
starting-exited  exists  refused absent  wait    refused ok      allow   absent  refused refused absent  refused refused refused  ok
running          exists  refused ok      wait    refused ok      allow   allow   run     refused run     run     ok      run      ok
pausing          exists  refused ok      wait    refused ok      allow   allow   refused refused run     refused refused refused  ok
paused           exists  refused ok      wait    refused ok      allow   allow   refused run     run     refused refused refused  ok
resuming         exists  refused ok      wait    refused ok      allow   allow   refused refused run     refused refused refused  ok
leaving          exists  refused absent  wait    refused ok      allow   absent  refused refused absent  refused refused refused  ok
stopped          exists  refused absent  ok      run     ok      allow   absent  refused refused absent  refused refused refused  ok
deleting-created exists  refused ok      wait    refused ok      allow   allow   refused refused run     refused refused refused  ok
deleting-stopped exists  refused absent  ok      refused ok      allow   absent  refused refused absent  refused refused refused  ok
";

const EXECS: &str = "
state    exec    start   kill    wait   delete  state  made   living
absent   ok      absent  absent  absent absent  absent absent absent
added    exists  run     refused wait   ok      ok     allow  refused
starting exists  refused refused wait   refused ok     allow  refused
running  exists  refused ok      wait   refused ok     allow  allow
stopped  exists  refused absent  ok     ok      ok     allow  absent
";

#[test]
fn every_request_in_every_state_of_a_task() {
    check(TASK, &Process::init(&id("c")), task_in);
}

#[test]
fn every_request_in_every_state_of_an_exec() {
    check(EXECS, &Process::exec(&id("c"), &id("e")), exec_in);
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
        "create" => Request::Create(task),
        "start" => Request::Start(process.clone()),
        "kill" => Request::Kill { process: process.clone(), signal: 15, scope: Scope::Process },
        "wait" => Request::Wait(process.clone()),
        "delete" => Request::Delete(process.clone()),
        "state" => Request::State(process.clone()),
        "made" => Request::OfMade(process.clone()),
        "living" => Request::OfLiving(process.clone()),
        "pause" => Request::Pause(task),
        "resume" => Request::Resume(task),
        "update" => Request::Update(task),
        "save" => Request::Checkpoint(task),
        "exec" => Request::AddExec(task, id("e")),
        "run-exec" => Request::RunExec(task, ExecPurpose::Stream),
        "connect" => Request::Connect(Some(task)),
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

    fn happen(&mut self, event: Event) -> Vec<Effect> {
        self.machine.handle(Now::default(), event);
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

    fn exited(mut self, pid: u32) -> Self {
        self.happen(Event::ChildExited { pid, code: 0 });
        self
    }
}

fn task_in(state: &str) -> Rig {
    let (task, init) = (id("c"), Process::init(&id("c")));
    match state {
        "absent" => Rig::new(),
        "creating" => Rig::new().then(Request::Create(task)),
        "created" => task_in("creating").spawned(INIT),
        "starting" => task_in("created").then(Request::Start(init)),
        "starting-exited" => task_in("starting").exited(INIT),
        "running" => task_in("starting").finished(),
        "pausing" => task_in("running").then(Request::Pause(task)),
        "paused" => task_in("pausing").finished(),
        "resuming" => task_in("paused").then(Request::Resume(task)),
        "leaving" => exec_in("running").exited(INIT),
        "stopped" => task_in("running").exited(INIT),
        "deleting-created" => task_in("created").then(Request::Delete(init)),
        "deleting-stopped" => task_in("stopped").then(Request::Delete(init)),
        _ => panic!("no state {state}"),
    }
}

fn exec_in(state: &str) -> Rig {
    let exec = Process::exec(&id("c"), &id("e"));
    match state {
        "absent" => task_in("running"),
        "added" => task_in("running").then(Request::AddExec(exec.task, id("e"))),
        "starting" => exec_in("added").then(Request::Start(exec)),
        "running" => exec_in("starting").spawned(EXEC),
        "stopped" => exec_in("running").exited(EXEC),
        _ => panic!("no state {state}"),
    }
}

fn id(name: &str) -> Id {
    Id::parse(name).expect("a good name")
}
