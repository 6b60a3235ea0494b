//! One container and its execs.

use std::fs;
use std::path::{Path, PathBuf};

use berth_proto::process::Status as ProcessStatus;
use berth_proto::task::{
    CloseIoRequest, CreateTaskRequest, CreateTaskResponse, DeleteRequest, DeleteResponse, ExecProcessRequest,
    KillRequest, PidsRequest, PidsResponse, ResizePtyRequest, StartRequest, StartResponse, StateRequest,
    StateResponse, WaitRequest, WaitResponse, task_service,
};
use berth_proto::ttrpc::Status;
use berth_proto::types::Mount;
use berth_proto::{Any, shim};
use serde_json::Value;

use super::shim::Shim;
use super::spec::Spec;
use super::wait::until;

/// containerd's type URL of an OCI process.
const PROCESS_URL: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";

pub(crate) struct Task<'s> {
    pub(crate) shim: &'s Shim<'s>,
    pub(crate) id: String,
    pub(crate) bundle: PathBuf,
    pub(crate) log: Log,
    pub(crate) pid: u32,
}

pub(crate) struct Exec<'t> {
    task: &'t Task<'t>,
    pub(crate) id: String,
}

/// What becomes of a container's streams.
pub(crate) struct Streams {
    pub(crate) stdin: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl<'s> Task<'s> {
    /// Creates a container that logs.
    pub(crate) fn create(shim: &'s Shim<'s>, id: &str, spec: Spec) -> Task<'s> {
        Task::try_create(shim, id, spec, "", "").unwrap()
    }

    /// Creates and starts a container that logs.
    pub(crate) fn start(shim: &'s Shim<'s>, id: &str, spec: Spec) -> Task<'s> {
        let task = Task::create(shim, id, spec);
        task.begin().unwrap();
        task
    }

    /// Creates a container with this standard input and further parameters of its log.
    pub(crate) fn try_create(
        shim: &'s Shim<'s>,
        id: &str,
        spec: Spec,
        stdin: &str,
        log_parameters: &str,
    ) -> Result<Task<'s>, Status> {
        let log = Log { path: shim.world.dir().join("logs").join(id).join("0.log") };
        let uri = format!("cri-log://{}?max_line=16384{log_parameters}", log.path.display());
        let stderr = if spec.is_terminal() { String::new() } else { uri.clone() };
        Task::create_with(shim, id, spec, Streams { stdin: stdin.to_owned(), stdout: uri, stderr })
    }

    pub(crate) fn create_with(
        shim: &'s Shim<'s>,
        id: &str,
        spec: Spec,
        streams: Streams,
    ) -> Result<Task<'s>, Status> {
        let bundle = make_bundle(shim, id, &spec);
        let request = create_request(shim, id, &bundle, spec.is_terminal(), streams);
        let created: CreateTaskResponse = shim.task(task_service::CREATE, &request)?;
        let log = Log { path: shim.world.dir().join("logs").join(id).join("0.log") };
        Ok(Task { shim, id: id.to_owned(), bundle, log, pid: created.pid })
    }

    /// Whether the OCI runtime has been called for a container that is not created yet.
    pub(crate) fn is_in_creation(shim: &Shim<'_>, id: &str) -> bool {
        let bundle = shim.world.bundle(id).display().to_string();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut commands =
            processes.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
        commands.any(|command| command.contains("create") && command.contains(&bundle))
    }

    pub(crate) fn begin(&self) -> Result<StartResponse, Status> {
        self.shim.task(task_service::START, &StartRequest { id: self.id.clone(), exec_id: String::new() })
    }

    /// Waits for the end and returns the exit code.
    pub(crate) fn wait(&self) -> u32 {
        let request = WaitRequest { id: self.id.clone(), exec_id: String::new() };
        let answer: WaitResponse = self.shim.task(task_service::WAIT, &request).unwrap();
        assert!(answer.exited_at.is_some());
        answer.exit_status
    }

    pub(crate) fn kill(&self, signal: u32) -> Result<(), Status> {
        let request = KillRequest { id: self.id.clone(), exec_id: String::new(), signal, all: false };
        self.shim.task(task_service::KILL, &request)
    }

    pub(crate) fn delete(&self) -> Result<DeleteResponse, Status> {
        self.shim.task(task_service::DELETE, &DeleteRequest { id: self.id.clone(), exec_id: String::new() })
    }

    pub(crate) fn state(&self) -> Result<StateResponse, Status> {
        self.shim.task(task_service::STATE, &StateRequest { id: self.id.clone(), exec_id: String::new() })
    }

    pub(crate) fn status(&self) -> ProcessStatus {
        self.state().unwrap().status()
    }

    pub(crate) fn pids(&self) -> Result<Vec<u32>, Status> {
        let answer: PidsResponse =
            self.shim.task(task_service::PIDS, &PidsRequest { id: self.id.clone() })?;
        Ok(answer.processes.into_iter().map(|process| process.pid).collect())
    }

    pub(crate) fn resize(&self, width: u32, height: u32) -> Result<(), Status> {
        let request = ResizePtyRequest { id: self.id.clone(), exec_id: String::new(), width, height };
        self.shim.task(task_service::RESIZE_PTY, &request)
    }

    pub(crate) fn close_stdin(&self) -> Result<(), Status> {
        let request = CloseIoRequest { id: self.id.clone(), exec_id: String::new(), stdin: true };
        self.shim.task(task_service::CLOSE_IO, &request)
    }

    /// Whether the shim has mounted the root filesystem.
    pub(crate) fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let point = self.bundle.join("rootfs").display().to_string();
        table.lines().any(|line| line.split(' ').nth(4) == Some(&point))
    }

    /// What the agent's view says about this container.
    pub(crate) fn view(&self) -> shim::Task {
        let tasks = self.shim.state().tasks;
        tasks.into_iter().find(|task| task.id == self.id).expect("the task is in the shim's state")
    }

    /// Adds an exec whose output goes to files, and returns it.
    pub(crate) fn exec(&'s self, id: &str, process: &Value) -> Exec<'s> {
        self.try_exec(id, process).unwrap()
    }

    pub(crate) fn try_exec(&'s self, id: &str, process: &Value) -> Result<Exec<'s>, Status> {
        let file = |stream: &str| format!("file://{}", self.exec_file(id, stream).display());
        let request = ExecProcessRequest {
            id: self.id.clone(),
            exec_id: id.to_owned(),
            terminal: process["terminal"] == true,
            stdin: String::new(),
            stdout: file("stdout"),
            stderr: if process["terminal"] == true { String::new() } else { file("stderr") },
            spec: Some(process_any(process)),
        };
        let (): () = self.shim.task(task_service::EXEC, &request)?;
        Ok(Exec { task: self, id: id.to_owned() })
    }

    fn exec_file(&self, exec: &str, stream: &str) -> PathBuf {
        self.bundle.join(format!("{exec}.{stream}"))
    }
}

impl Exec<'_> {
    pub(crate) fn begin(&self) -> Result<StartResponse, Status> {
        self.task
            .shim
            .task(task_service::START, &StartRequest { id: self.task.id.clone(), exec_id: self.id.clone() })
    }

    pub(crate) fn wait(&self) -> u32 {
        let request = WaitRequest { id: self.task.id.clone(), exec_id: self.id.clone() };
        let answer: WaitResponse = self.task.shim.task(task_service::WAIT, &request).unwrap();
        answer.exit_status
    }

    pub(crate) fn kill(&self, signal: u32) -> Result<(), Status> {
        let (id, exec_id) = (self.task.id.clone(), self.id.clone());
        self.task.shim.task(task_service::KILL, &KillRequest { id, exec_id, signal, all: false })
    }

    pub(crate) fn delete(&self) -> Result<DeleteResponse, Status> {
        let request = DeleteRequest { id: self.task.id.clone(), exec_id: self.id.clone() };
        self.task.shim.task(task_service::DELETE, &request)
    }

    pub(crate) fn state(&self) -> Result<StateResponse, Status> {
        let request = StateRequest { id: self.task.id.clone(), exec_id: self.id.clone() };
        self.task.shim.task(task_service::STATE, &request)
    }

    pub(crate) fn stdout(&self) -> String {
        fs::read_to_string(self.task.exec_file(&self.id, "stdout")).unwrap_or_default()
    }
}

fn make_bundle(shim: &Shim<'_>, id: &str, spec: &Spec) -> PathBuf {
    let world = shim.world;
    let bundle = world.bundle(id);
    fs::create_dir_all(bundle.join("rootfs")).unwrap();
    let spec = spec.clone().cgroup(&format!("/{}/{id}", world.name()));
    fs::write(bundle.join("config.json"), spec.to_json()).unwrap();
    bundle
}

/// A rootfs comes as mounts that the shim has to perform: here one bind of the world's.
fn create_request(
    shim: &Shim<'_>,
    id: &str,
    bundle: &Path,
    terminal: bool,
    streams: Streams,
) -> CreateTaskRequest {
    let rootfs = Mount {
        r#type: "bind".to_owned(),
        source: shim.world.dir().join("rootfs").display().to_string(),
        target: String::new(),
        options: vec!["rbind".to_owned(), "rw".to_owned()],
    };
    CreateTaskRequest {
        id: id.to_owned(),
        bundle: bundle.display().to_string(),
        rootfs: vec![rootfs],
        options: shim.task_options.clone(),
        terminal,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        ..CreateTaskRequest::default()
    }
}

fn process_any(process: &Value) -> Any {
    Any { type_url: PROCESS_URL.to_owned(), value: serde_json::to_vec(process).unwrap() }
}

/// A container's log, with everything that was rotated away.
pub(crate) struct Log {
    pub(crate) path: PathBuf,
}

/// One line of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) stream: String,
    pub(crate) tag: String,
    pub(crate) content: String,
}

impl Log {
    /// The files, oldest first.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path.parent().unwrap()).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| *path != self.path).collect();
        files.sort();
        files.extend(self.path.exists().then(|| self.path.clone()));
        files
    }

    /// Every line, each of which must be whole and well formed.
    pub(crate) fn lines(&self) -> Vec<LogLine> {
        let texts = self.files().into_iter().map(|file| fs::read_to_string(file).unwrap());
        texts.flat_map(|text| text.split_inclusive('\n').map(parse).collect::<Vec<_>>()).collect()
    }

    /// What one stream said, with parts joined.
    pub(crate) fn text(&self, stream: &str) -> String {
        self.lines().into_iter().filter(|line| line.stream == stream).fold(String::new(), |mut text, line| {
            text.push_str(&line.content);
            if line.tag == "F" {
                text.push('\n');
            }
            text
        })
    }

    /// Waits until standard output has said `text`.
    pub(crate) fn says(&self, text: &str) {
        until(&format!("{text:?} in the log"), || self.text("stdout").contains(text).then_some(()));
    }
}

fn parse(line: &str) -> LogLine {
    let whole = line.strip_suffix('\n').unwrap_or_else(|| panic!("a torn line: {line:?}"));
    let mut fields = whole.splitn(4, ' ').map(str::to_owned);
    let mut field = || fields.next().unwrap_or_else(|| panic!("a malformed line: {line:?}"));
    let (time, stream, tag, content) = (field(), field(), field(), field());
    assert!(time.len() == 30 && time.ends_with('Z'), "a malformed time: {line:?}");
    assert!(["stdout", "stderr"].contains(&stream.as_str()), "a malformed stream: {line:?}");
    assert!(["F", "P"].contains(&tag.as_str()), "a malformed tag: {line:?}");
    LogLine { stream, tag, content }
}
