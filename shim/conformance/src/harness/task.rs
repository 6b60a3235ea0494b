//! One container and its execs.

use std::fs;
use std::path::PathBuf;

use berth_proto::TASK_V3;
use berth_proto::process::Status as ProcessStatus;
use berth_proto::task::{
    CloseIoRequest, CreateTaskRequest, CreateTaskResponse, DeleteRequest, DeleteResponse, KillRequest,
    PidsRequest, PidsResponse, ResizePtyRequest, StartRequest, StartResponse, StateRequest, StateResponse,
    WaitRequest, WaitResponse, task_service,
};
use berth_proto::ttrpc::Status;
use berth_proto::types::Mount;

use super::conn::Conn;
use super::fault::Fault;
use super::shim::Shim;
use super::spec::Spec;
use super::streams::Streams;
use super::wait::until;

/// A container.
#[derive(Debug)]
pub struct Task<'s> {
    /// The pod that it belongs to.
    pub shim: &'s Shim<'s>,
    /// Its name.
    pub id: String,
    /// Where its `config.json` is.
    pub bundle: PathBuf,
    /// Its first process.
    pub pid: u32,
}

impl<'s> Task<'s> {
    /// Creates a container whose output goes to files.
    pub fn create(shim: &'s Shim<'s>, id: &str, spec: Spec) -> Task<'s> {
        Task::try_create(shim, id, spec).unwrap()
    }

    /// Creates and starts a container whose output goes to files.
    pub fn start(shim: &'s Shim<'s>, id: &str, spec: Spec) -> Task<'s> {
        let task = Task::create(shim, id, spec);
        task.begin().unwrap();
        task
    }

    /// Creates a container whose output goes to files, if the shim does so.
    pub fn try_create(shim: &'s Shim<'s>, id: &str, spec: Spec) -> Result<Task<'s>, Status> {
        let streams = Streams::file(&outputs(shim).join(id));
        let streams = if spec.is_terminal() { streams.of_terminal() } else { streams };
        Task::create_with(shim, id, spec, streams)
    }

    /// Creates a container with these streams.
    pub fn create_with(
        shim: &'s Shim<'s>,
        id: &str,
        spec: Spec,
        streams: Streams,
    ) -> Result<Task<'s>, Status> {
        let request = Task::request(shim, id, &spec, streams);
        Task::create_by(shim, &request)
    }

    /// Creates a container on a root file system of these mounts.
    pub fn create_on(
        shim: &'s Shim<'s>,
        id: &str,
        spec: Spec,
        streams: Streams,
        rootfs: Vec<Mount>,
    ) -> Result<Task<'s>, Status> {
        let request = Task::request(shim, id, &spec, streams);
        Task::create_by(shim, &CreateTaskRequest { rootfs, ..request })
    }

    /// Creates the container of a request.
    pub fn create_by(shim: &'s Shim<'s>, request: &CreateTaskRequest) -> Result<Task<'s>, Status> {
        let id = request.id.clone();
        let created: CreateTaskResponse = shim.task(task_service::CREATE, request)?;
        Ok(Task { shim, bundle: shim.world.bundle(&id), id, pid: created.pid })
    }

    /// Asks for a container and does not wait for it: the answer comes on the connection, if the shim lives that long.
    pub fn begin_create(shim: &'s Shim<'s>, id: &str, spec: &Spec, streams: Streams) -> (Conn, u32) {
        let mut conn = shim.connect();
        let request = Task::request(shim, id, spec, streams);
        let call = conn.begin(TASK_V3, task_service::CREATE, &request);
        (conn, call)
    }

    /// Makes a container's bundle and returns the request that creates the container. Its root file system comes as a
    /// mount that the shim has to perform: a bind of the world's.
    pub fn request(shim: &Shim<'_>, id: &str, spec: &Spec, streams: Streams) -> CreateTaskRequest {
        let bundle = make_bundle(shim, id, spec);
        shim.tasks.lock().unwrap().insert(id.to_owned());
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
            terminal: spec.is_terminal(),
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            ..CreateTaskRequest::default()
        }
    }

    /// A container that the test has created itself.
    pub fn adopt(shim: &'s Shim<'s>, id: &str) -> Task<'s> {
        shim.tasks.lock().unwrap().insert(id.to_owned());
        Task { shim, id: id.to_owned(), bundle: shim.world.bundle(id), pid: 0 }
    }

    /// Whether the OCI runtime has been called for a container that is not created yet.
    pub fn is_in_creation(shim: &Shim<'_>, id: &str) -> bool {
        let bundle = shim.world.bundle(id).display().to_string();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut commands =
            processes.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
        commands.any(|command| command.contains("create") && command.contains(&bundle))
    }

    /// Starts it.
    pub fn begin(&self) -> Result<StartResponse, Status> {
        self.shim.task(task_service::START, &StartRequest { id: self.id.clone(), exec_id: String::new() })
    }

    /// Waits for the end and returns the exit code.
    pub fn wait(&self) -> u32 {
        let request = WaitRequest { id: self.id.clone(), exec_id: String::new() };
        let answer: WaitResponse = self.shim.task(task_service::WAIT, &request).unwrap();
        assert!(answer.exited_at.is_some());
        answer.exit_status
    }

    /// Sends a signal to the first process.
    pub fn kill(&self, signal: u32) -> Result<(), Status> {
        let request = KillRequest { id: self.id.clone(), exec_id: String::new(), signal, all: false };
        self.shim.task(task_service::KILL, &request)
    }

    /// Sends a signal to all processes.
    pub fn kill_all(&self, signal: u32) -> Result<(), Status> {
        let request = KillRequest { id: self.id.clone(), exec_id: String::new(), signal, all: true };
        self.shim.task(task_service::KILL, &request)
    }

    /// Deletes it.
    pub fn delete(&self) -> Result<DeleteResponse, Status> {
        self.shim.task(task_service::DELETE, &DeleteRequest { id: self.id.clone(), exec_id: String::new() })
    }

    /// What the shim says about it.
    pub fn state(&self) -> Result<StateResponse, Status> {
        self.shim.task(task_service::STATE, &StateRequest { id: self.id.clone(), exec_id: String::new() })
    }

    /// Whether it runs.
    pub fn status(&self) -> ProcessStatus {
        self.state().unwrap().status()
    }

    /// Its processes.
    pub fn pids(&self) -> Result<Vec<u32>, Status> {
        let answer: PidsResponse =
            self.shim.task(task_service::PIDS, &PidsRequest { id: self.id.clone() })?;
        Ok(answer.processes.into_iter().map(|process| process.pid).collect())
    }

    /// Resizes its terminal.
    pub fn resize(&self, width: u32, height: u32) -> Result<(), Status> {
        let request = ResizePtyRequest { id: self.id.clone(), exec_id: String::new(), width, height };
        self.shim.task(task_service::RESIZE_PTY, &request)
    }

    /// The same on a connection that is there.
    pub fn resize_on(&self, conn: &mut Conn, width: u32, height: u32) -> Result<(), Status> {
        let request = ResizePtyRequest { id: self.id.clone(), exec_id: String::new(), width, height };
        conn.call(TASK_V3, task_service::RESIZE_PTY, &request)
    }

    /// Ends its standard input.
    pub fn close_stdin(&self) -> Result<(), Status> {
        let request = CloseIoRequest { id: self.id.clone(), exec_id: String::new(), stdin: true };
        self.shim.task(task_service::CLOSE_IO, &request)
    }

    /// Whether the shim has mounted the root filesystem.
    pub fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let point = self.bundle.join("rootfs").display().to_string();
        table.lines().any(|line| line.split(' ').nth(4) == Some(&point))
    }

    /// What it has written, if that goes to a file.
    pub fn stdout(&self) -> String {
        fs::read_to_string(outputs(self.shim).join(&self.id)).unwrap_or_default()
    }

    /// Waits until the file that it writes to has `text`.
    pub fn says(&self, text: &str) {
        until(&format!("{text:?} in the output"), || self.stdout().contains(text).then_some(()));
    }
}

/// Where the output of containers goes if nothing else is said.
fn outputs(shim: &Shim<'_>) -> PathBuf {
    let dir = shim.world.dir().join("outputs");
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn make_bundle(shim: &Shim<'_>, id: &str, spec: &Spec) -> PathBuf {
    let world = shim.world;
    let bundle = world.bundle(id);
    fs::create_dir_all(bundle.join("rootfs")).unwrap();
    let spec = spec.clone().cgroup_unless_named(&world.groups().named(id));
    let spec = match world.subject().fault {
        Some(Fault::NothingShared) => spec.unshared(),
        Some(Fault::NetworkUnshared) => spec.with_namespace("network"),
        _ => spec,
    };
    fs::write(bundle.join("config.json"), spec.to_json()).unwrap();
    bundle
}
