//! The end of a shim whose test is over.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use berth_proto::TASK_V3;
use berth_proto::process::Status as ProcessStatus;
use berth_proto::sandbox::{ShutdownSandboxRequest, ShutdownSandboxResponse, sandbox_service};
use berth_proto::task::{
    DeleteRequest, DeleteResponse, KillRequest, ShutdownRequest, StateRequest, StateResponse, WaitRequest,
    WaitResponse, task_service,
};
use berth_proto::ttrpc::Status;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::call::Call;
use super::conn::Conn;
use super::wait::until;

/// The ids of the tasks that a shim was asked to create.
pub(crate) type Ids = Arc<Mutex<BTreeSet<String>>>;

/// What is needed to end a shim when its test is over.
#[derive(Debug)]
pub(crate) struct Traces {
    pub(crate) call: Call,
    pub(crate) socket: PathBuf,
    pub(crate) pid: u32,
    pub(crate) tasks: Ids,
    /// The test has killed it, so that what becomes of its socket is the test's to ask.
    pub(crate) murdered: Arc<AtomicBool>,
}

impl Traces {
    /// Whether the test has killed the shim.
    pub(crate) fn is_murdered(&self) -> bool {
        self.murdered.load(Ordering::Relaxed)
    }

    /// Ends and deletes what the test has left of its tasks, as clients should.
    pub(crate) fn end_tasks(&self) {
        let Ok(mut conn) = Conn::try_open(&self.socket) else { return };
        for id in self.tasks.lock().unwrap().iter() {
            end_task(&mut conn, id);
        }
    }

    /// Ends the shim as its clients should; one that has ended is left alone.
    pub(crate) fn end(&self) {
        if let Ok(mut conn) = Conn::try_open(&self.socket) {
            let request = ShutdownSandboxRequest { sandbox_id: self.call.id.clone() };
            let sandbox: Result<ShutdownSandboxResponse, Status> =
                conn.call(sandbox_service::NAME, sandbox_service::SHUTDOWN_SANDBOX, &request);
            if sandbox.is_err() {
                let request = ShutdownRequest { id: self.call.id.clone(), now: false };
                // Its answer may be lost with its process.
                let _answer: Option<()> = conn.try_call(TASK_V3, task_service::SHUTDOWN, &request);
            }
        }
        until("the shim's end after its shutdown", || is_gone(self.pid).then_some(()));
    }

    /// Ends the shim by force.
    pub(crate) fn destroy(&self) {
        if !is_gone(self.pid) {
            let killed = kill(pid_of(self.pid), Signal::SIGKILL);
            assert!(matches!(killed, Ok(()) | Err(Errno::ESRCH)), "{killed:?}");
            until("the shim's end", || is_gone(self.pid).then_some(()));
            self.call.run("delete", &[]);
        }
    }
}

fn end_task(conn: &mut Conn, id: &str) {
    let (id, exec_id) = (id.to_owned(), String::new());
    let request = StateRequest { id: id.clone(), exec_id: exec_id.clone() };
    let state: Result<StateResponse, Status> = conn.call(TASK_V3, task_service::STATE, &request);
    let Ok(state) = state else { return };
    if state.status() != ProcessStatus::Stopped {
        let request = KillRequest { id: id.clone(), signal: 9, all: true, exec_id: exec_id.clone() };
        let killed: Result<(), Status> = conn.call(TASK_V3, task_service::KILL, &request);
        let request = WaitRequest { id: id.clone(), exec_id: exec_id.clone() };
        let waited: Result<WaitResponse, Status> = conn.call(TASK_V3, task_service::WAIT, &request);
        assert!(waited.is_ok(), "killed with {killed:?}, waited with {waited:?}");
    }
    let request = DeleteRequest { id, exec_id };
    let _: DeleteResponse = conn.call(TASK_V3, task_service::DELETE, &request).unwrap();
}

pub(crate) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap())
}

/// Whether a process has ended, reaped or not.
pub fn is_gone(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
    }
}
