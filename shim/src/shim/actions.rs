//! Performs the machine's actions, most of which are one runtime call.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_shim_core::{Action, Code, Event, Failure, Id, OpId, Process, ReqId};

use super::Shim;
use super::children::{RuntimeCall, Spawning, Then};
use super::clients::Pending;
use super::jobs::Making;
use crate::call::Call;
use crate::container::{self, Container, ExecPlan, Terminal};
use crate::io::{self, CONSOLE_DIR, ChildStreams, Console, Owner, Prepared, Wiring};
use crate::pod::Pod;
use crate::runtime::{self, Client, Delete};
use crate::{bundle, oom_score, with_causes};

/// A process's ends, opened, and the socket for its terminal if it has one.
pub(super) struct Streams {
    pub(super) child: ChildStreams,
    pub(super) kept: Prepared,
    pub(super) console: Option<Console>,
}

impl Shim {
    pub(super) fn act(&mut self, op: OpId, action: Action) {
        let done = match action {
            Action::Create { task, from } => self.create(op, &task, from),
            Action::Prepare { task, from } => self.prepare(op, &task, from),
            Action::Restore(task) => self.restore(op, &task),
            Action::Start(task) => self.simple(op, &task, "start", |command, id| {
                command.args(["start", id]);
            }),
            Action::Exec { process, from } => self.begin_exec(op, &process, from),
            Action::Pause(task) => self.simple(op, &task, "pause", |command, id| {
                command.args(["pause", id]);
            }),
            Action::Resume(task) => self.simple(op, &task, "resume", |command, id| {
                command.args(["resume", id]);
            }),
            Action::Update { task, from } => self.update(op, &task, from),
            Action::Checkpoint { task, from } => self.checkpoint(op, &task, from),
            Action::Delete(task) => self.delete(op, &task, Delete::Stopped),
            Action::StartSandbox => {
                let no_sandbox = || Failure::new(Code::Internal, "the sandbox is not noted");
                let entered = self.pod.as_mut().ok_or_else(no_sandbox).and_then(|pod| Ok(pod.enter()?));
                self.events.push_back(Event::Spawned { op, result: entered });
                Ok(())
            }
            Action::ReleaseSandbox => {
                if let Some(pod) = &mut self.pod {
                    pod.release();
                }
                self.events.push_back(Event::Finished { op, result: Ok(()) });
                Ok(())
            }
        };
        if let Err(failure) = done {
            self.events.push_back(Event::Finished { op, result: Err(failure) });
        }
    }

    fn create(&mut self, op: OpId, task: &Id, from: ReqId) -> Result<(), Failure> {
        let container = self.plan(from)?;
        self.make(op, task, container, Making::Create)
    }

    pub(super) fn plan(&self, from: ReqId) -> Result<Container, Failure> {
        let Some(Pending { call: Call::Create(request), .. }) = self.clients.request(from) else {
            return Err(gone());
        };
        let client = Client { address: &self.home.address, namespace: &self.home.namespace };
        container::plan(request, self.pod.as_ref(), client)
    }

    /// Begins everything that comes before the runtime.
    pub(super) fn make(
        &mut self,
        op: OpId,
        task: &Id,
        container: Container,
        making: Making,
    ) -> Result<(), Failure> {
        self.processes.leave_groups_to(task);
        let bundle = container.bundle.clone();
        let prepared = self.prepare_bundle(task, &container);
        self.processes.add(task, container);
        prepared.and_then(|()| self.begin_mount(op, task, making)).inspect_err(|_| {
            self.processes.remove(task);
            bundle::remove_record(&bundle);
            bundle::remove_member(&self.home.bundle, task);
        })
    }

    /// Notes the container for `delete`, and leads its namespaces to the pod's.
    fn prepare_bundle(&mut self, task: &Id, container: &Container) -> Result<(), Failure> {
        let Container { bundle, runtime, .. } = container;
        bundle::write_record(bundle, task, runtime, None).map_err(|error| failed(&error))?;
        bundle::add_member(&self.home.bundle, task, bundle).map_err(|error| failed(&error))?;
        private_directory(&runtime.root)?;
        let Some(pod) = &mut self.pod else { return Ok(()) };
        let mut config = bundle::read_config(bundle).map_err(|error| failed(&error))?;
        pod.adopt(&mut config)?;
        bundle::write_config(bundle, &config).map_err(|error| failed(&error))
    }

    /// Has the runtime create a container whose root file system is there.
    pub(super) fn call_create(&mut self, op: OpId, task: &Id) -> Result<(), Failure> {
        let container = self.processes.container(task).ok_or_else(gone)?;
        let Container { bundle, runtime, streams, flags, .. } = container;
        let Streams { child, mut kept, console } =
            self.open_streams(op, task.as_str(), container::wiring(streams)?, streams.terminal)?;
        let logger = kept.logger.take();
        let log = bundle.join(format!("runtime-{}.log", op.0));
        let pid_file = bundle.join(bundle::INIT_PID);
        let mut command = runtime.call(&log);
        command.args(&flags.global).arg("create").args(&flags.create).arg("--bundle").arg(bundle);
        command.arg("--pid-file").arg(&pid_file);
        if let Some(console) = &console {
            command.arg("--console-socket").arg(console.path());
        }
        command.arg(task.as_str());
        let pid = logger.as_ref().map(|logger| logger.pid);
        let spawning = Spawning { pid_file, process_file: None, console, kept, logger: pid, restore: None };
        let then = Then::Spawned(Box::new(spawning));
        let call = self.runtime_call(op, "create", Process::init(task), log, then);
        self.spawn_logged(command, child, call, logger)
    }

    /// Looks first whether the files can be opened that an exec's output goes to.
    fn begin_exec(&mut self, op: OpId, process: &Process, from: Option<ReqId>) -> Result<(), Failure> {
        let files =
            self.processes.exec(process).map(|plan| container::files(&plan.streams)).unwrap_or_default();
        if files.is_empty() { self.exec(op, process, from) } else { self.begin_check(op, process, files) }
    }

    pub(super) fn exec(&mut self, op: OpId, process: &Process, from: Option<ReqId>) -> Result<(), Failure> {
        let (plan, wiring) = match from {
            None => {
                let plan = self.processes.exec(process).cloned().ok_or_else(gone)?;
                let wiring = container::wiring(&plan.streams)?;
                (plan, wiring)
            }
            Some(from) => self.plan_own_exec(process, from)?,
        };
        let container = self.processes.container(&process.task).ok_or_else(gone)?;
        let (bundle, runtime) = (container.bundle.clone(), container.runtime.clone());
        // runc gives an exec the container's score, crun leaves it the one that it was called with.
        let init = Some(container.pid).filter(|pid| *pid > 0);
        let log = bundle.join(format!("runtime-{}.log", op.0));
        let pid_file = bundle.join(format!("exec-{}.pid", op.0));
        let process_file = bundle.join(format!("exec-{}.json", op.0));
        bundle::write_file(&process_file, &plan.process).map_err(|error| failed(&error))?;
        let name = process.exec.as_ref().unwrap_or(&process.task);
        let streams = self.open_streams(op, name.as_str(), wiring, plan.streams.terminal);
        let Streams { child, mut kept, console } = streams.inspect_err(|_| {
            let _absent = fs::remove_file(&process_file).is_err();
        })?;
        let logger = kept.logger.take();
        let mut command = runtime.call(&log);
        if let Some(score) = init.and_then(oom_score::of) {
            oom_score::give(&mut command, &score);
        }
        command
            .arg("exec")
            .arg("--process")
            .arg(&process_file)
            .arg("--pid-file")
            .arg(&pid_file)
            .arg("--detach")
            .args(self.processes.group_exec(process, &runtime).into_iter().flatten());
        if let Some(console) = &console {
            command.arg("--console-socket").arg(console.path());
        }
        command.arg(process.task.as_str());
        let pid = logger.as_ref().map(|logger| logger.pid);
        let process_file = Some(process_file);
        let spawning = Spawning { pid_file, process_file, console, kept, logger: pid, restore: None };
        let call = self.runtime_call(op, "exec", process.clone(), log, Then::Spawned(Box::new(spawning)));
        self.spawn_logged(command, child, call, logger)
    }

    /// An exec of the shim's own service, with the client or the buffers that it streams with.
    fn plan_own_exec(&mut self, process: &Process, from: ReqId) -> Result<(ExecPlan, Wiring), Failure> {
        let task = &process.task;
        match self.clients.request(from) {
            Some(Pending { call: Call::ExecSync(request), .. }) => {
                let plan = if request.command.is_empty() {
                    ExecPlan::own(&request.process, Terminal::Never)?
                } else {
                    let container = self.processes.container_mut(task).ok_or_else(gone)?;
                    ExecPlan::beside(container, &request.command, false)?
                };
                let bytes_max = container::output_bytes_max(request.output_bytes_max);
                Ok((plan, Wiring::Capture { bytes_max }))
            }
            Some(Pending { call: Call::ExecStream(start), conn, stream }) => {
                let plan = if start.command.is_empty() {
                    ExecPlan::own(&start.process, Terminal::AsAsked)?
                } else {
                    let container = self.processes.container_mut(task).ok_or_else(gone)?;
                    ExecPlan::beside(container, &start.command, start.terminal)?
                };
                let (conn, stream, stdin) = (*conn, *stream, start.stdin);
                self.own_client(process, conn, stream, stdin);
                Ok((plan, Wiring::Client { stdin }))
            }
            _ => Err(gone()),
        }
    }

    pub(super) fn open_streams(
        &self,
        op: OpId,
        name: &str,
        wiring: Wiring,
        terminal: bool,
    ) -> Result<Streams, Failure> {
        let console = if terminal {
            private_directory(Path::new(CONSOLE_DIR))?;
            Some(Console::listen(op.0).map_err(|error| {
                Failure::new(Code::Internal, format!("failed to listen for a terminal: {error}"))
            })?)
        } else {
            None
        };
        let writing = self.streams.writing(self.pod.as_ref().and_then(Pod::node));
        let owner = Owner { name, namespace: &self.home.namespace, pod: self.pod.as_ref() };
        let (child, kept) =
            io::prepare(&writing, wiring, &owner, terminal).map_err(|error| failed(&error))?;
        if let Some(root) = self.pod.as_ref().and_then(Pod::root) {
            kept.give_to(root).map_err(|error| failed(&error))?;
        }
        Ok(Streams { child, kept, console })
    }

    fn simple(
        &mut self,
        op: OpId,
        task: &Id,
        verb: &'static str,
        arguments: impl FnOnce(&mut Command, &str),
    ) -> Result<(), Failure> {
        let (mut command, log) = self.processes.command(op, task)?;
        arguments(&mut command, task.as_str());
        let call = self.runtime_call(op, verb, Process::init(task), log, Then::Finish);
        self.spawn(&mut command, None, call)
    }

    fn update(&mut self, op: OpId, task: &Id, from: ReqId) -> Result<(), Failure> {
        let Some(Pending { call: Call::Update(resources), .. }) = self.clients.request(from) else {
            return Err(gone());
        };
        let (mut command, log) = self.processes.command(op, task)?;
        // A file, since writing to the runtime's standard input would wait for it.
        let file = log.with_extension("resources");
        bundle::write_file(&file, resources).map_err(|error| failed(&error))?;
        command.args(["update", "--resources"]).arg(&file).arg(task.as_str());
        let then = Then::FinishAndRemove(file);
        let call = self.runtime_call(op, "update", Process::init(task), log, then);
        self.spawn(&mut command, None, call)
    }

    pub(super) fn delete(&mut self, op: OpId, task: &Id, how: Delete) -> Result<(), Failure> {
        let (mut command, log) = self.processes.command(op, task)?;
        self.processes.prune_groups(task);
        how.arguments(&mut command, task);
        let call = self.runtime_call(op, "delete", Process::init(task), log, Then::Deleted(how));
        self.spawn(&mut command, None, call)
    }

    /// Removes what the runtime may have left of a container that it could not create, then tells.
    pub(super) fn undo_create(&mut self, op: OpId, process: &Process, failure: Failure) {
        let spawned = self.processes.command(op, &process.task).and_then(|(mut command, log)| {
            Delete::ByForce.arguments(&mut command, &process.task);
            let call = self.runtime_call(op, "delete", process.clone(), log, Then::Undone(failure.clone()));
            self.spawn(&mut command, None, call)
        });
        if spawned.is_err() {
            self.undone(op, &process.task, failure);
        }
    }

    pub(super) fn runtime_call(
        &self,
        op: OpId,
        verb: &'static str,
        process: Process,
        log: PathBuf,
        then: Then,
    ) -> RuntimeCall {
        let deadline_ms = self.now().mono_ms + runtime::CALL_MS_MAX;
        RuntimeCall { op, verb, process, log, deadline_ms, then }
    }

    pub(super) fn spawn(
        &mut self,
        command: &mut Command,
        streams: Option<ChildStreams>,
        call: RuntimeCall,
    ) -> Result<(), Failure> {
        self.calls.spawn(self.pod.as_ref(), command, streams, call)
    }
}

fn private_directory(path: &Path) -> Result<(), Failure> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| Failure::new(Code::Internal, format!("failed to make {}: {error}", path.display())))
}

fn failed(error: &dyn std::error::Error) -> Failure {
    Failure::new(Code::Internal, format!("failed to {}", with_causes(error)))
}

/// The request or the container went away between the decision and the act.
pub(super) fn gone() -> Failure {
    Failure::new(Code::NotFound, "the container is gone: not found")
}
