//! Further processes of a container.

use std::fs;

use berth_proto::Any;
use berth_proto::task::{
    CloseIoRequest, DeleteRequest, DeleteResponse, ExecProcessRequest, KillRequest, ResizePtyRequest,
    StartRequest, StartResponse, StateRequest, StateResponse, WaitRequest, WaitResponse, task_service,
};
use berth_proto::ttrpc::Status;
use serde_json::Value;

use super::streams::Streams;
use super::task::Task;

/// containerd's type URL of an OCI process.
const PROCESS_URL: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";

/// A further process of a container.
#[derive(Debug)]
pub struct Exec<'t> {
    /// The container that it runs in.
    pub task: &'t Task<'t>,
    /// Its name.
    pub id: String,
}

impl<'s> Task<'s> {
    /// Adds an exec whose output goes to files, and returns it.
    pub fn exec(&'s self, id: &str, process: &Value) -> Exec<'s> {
        self.try_exec(id, process).unwrap()
    }

    /// The same, if the shim does so.
    pub fn try_exec(&'s self, id: &str, process: &Value) -> Result<Exec<'s>, Status> {
        let streams = Streams::file(&self.bundle.join(format!("{id}.out")));
        let streams = if process["terminal"] == true { streams.of_terminal() } else { streams };
        self.exec_with(id, process, streams)
    }

    /// Adds an exec with these streams.
    pub fn exec_with(&'s self, id: &str, process: &Value, streams: Streams) -> Result<Exec<'s>, Status> {
        let request = ExecProcessRequest {
            id: self.id.clone(),
            exec_id: id.to_owned(),
            terminal: process["terminal"] == true,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            spec: Some(process_any(process)),
        };
        let (): () = self.shim.task(task_service::EXEC, &request)?;
        Ok(Exec { task: self, id: id.to_owned() })
    }
}

impl Exec<'_> {
    /// Starts it.
    pub fn begin(&self) -> Result<StartResponse, Status> {
        let (id, exec_id) = self.ids();
        self.task.shim.task(task_service::START, &StartRequest { id, exec_id })
    }

    /// Waits for the end and returns the exit code.
    pub fn wait(&self) -> u32 {
        let (id, exec_id) = self.ids();
        let answer: WaitResponse =
            self.task.shim.task(task_service::WAIT, &WaitRequest { id, exec_id }).unwrap();
        answer.exit_status
    }

    /// Sends it a signal.
    pub fn kill(&self, signal: u32) -> Result<(), Status> {
        let (id, exec_id) = self.ids();
        self.task.shim.task(task_service::KILL, &KillRequest { id, exec_id, signal, all: false })
    }

    /// Deletes it.
    pub fn delete(&self) -> Result<DeleteResponse, Status> {
        let (id, exec_id) = self.ids();
        self.task.shim.task(task_service::DELETE, &DeleteRequest { id, exec_id })
    }

    /// What the shim says about it.
    pub fn state(&self) -> Result<StateResponse, Status> {
        let (id, exec_id) = self.ids();
        self.task.shim.task(task_service::STATE, &StateRequest { id, exec_id })
    }

    /// Resizes its terminal.
    pub fn resize(&self, width: u32, height: u32) -> Result<(), Status> {
        let (id, exec_id) = self.ids();
        self.task.shim.task(task_service::RESIZE_PTY, &ResizePtyRequest { id, exec_id, width, height })
    }

    /// Ends its standard input.
    pub fn close_stdin(&self) -> Result<(), Status> {
        let (id, exec_id) = self.ids();
        self.task.shim.task(task_service::CLOSE_IO, &CloseIoRequest { id, exec_id, stdin: true })
    }

    /// What it has written, if that goes to a file.
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.task.bundle.join(format!("{}.out", self.id))).unwrap_or_default()
    }

    fn ids(&self) -> (String, String) {
        (self.task.id.clone(), self.id.clone())
    }
}

fn process_any(process: &Value) -> Any {
    Any { type_url: PROCESS_URL.to_owned(), value: serde_json::to_vec(process).unwrap() }
}
