//! One shim: started as containerd starts it, and called.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use berth_proto::bootstrap::{BootstrapParams, BootstrapResult, Extension};
use berth_proto::sandbox::{ShutdownSandboxRequest, ShutdownSandboxResponse, sandbox_service};
use berth_proto::shim::{StateRequest, StateResponse, shim_service};
use berth_proto::task::{
    ConnectRequest, ConnectResponse, DeleteRequest, DeleteResponse, KillRequest, ShutdownRequest,
    WaitRequest, WaitResponse, task_service,
};
use berth_proto::ttrpc::Status;
use berth_proto::{Any, runc, shim};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;

use super::conn::Conn;
use super::spec::Spec;
use super::wait::until;
use super::world::World;

/// How containerd talks to `shim start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bootstrap {
    /// containerd 2.3 and later: a message each way.
    Messages,
    /// containerd 2.0 to 2.2: runtime options there, JSON or a message back.
    Options,
}

pub(crate) struct Shim<'w> {
    pub(crate) world: &'w World,
    pub(crate) id: String,
    pub(crate) bundle: PathBuf,
    /// Options that containerd sends with each task, when the client gave any.
    pub(crate) task_options: Option<Any>,
    /// What `start` answered.
    pub(crate) result: BootstrapResult,
    pub(crate) pid: u32,
    /// containerd's end of the bundle's `log`, which is not read while the test goes on.
    log: File,
}

/// What is needed to end a shim when its test is over.
pub(crate) struct Traces {
    call: Call,
    socket: PathBuf,
    pid: u32,
}

impl<'w> Shim<'w> {
    /// Starts a shim in a bundle that holds `config`.
    pub(crate) fn start(world: &'w World, id: &str, config: &[u8], bootstrap: Bootstrap) -> Shim<'w> {
        let bundle = world.bundle(id);
        fs::create_dir_all(bundle.join("rootfs")).unwrap();
        fs::write(bundle.join("config.json"), config).unwrap();
        let log = open_log(&bundle);
        let output = run(&call_of(world, id), "start", &bootstrap_input(world, id, bootstrap));
        assert!(output.status.success(), "start failed: {}", text(&output));
        let result = parse_result(&output.stdout);
        let path = socket_of(&result.address);
        let answer: ConnectResponse = Conn::open(&path)
            .call(berth_proto::TASK_V3, task_service::CONNECT, &ConnectRequest { id: id.to_owned() })
            .unwrap();
        let pid = answer.shim_pid;
        world.register(Traces { call: call_of(world, id), socket: path, pid });
        Shim { world, id: id.to_owned(), bundle, task_options: None, result, pid, log }
    }

    /// Starts a shim for one container without a sandbox, as `ctr run` has it.
    pub(crate) fn start_plain(world: &'w World, id: &str, spec: &Spec) -> Shim<'w> {
        let mut shim = Shim::start(world, id, &spec.to_json(), Bootstrap::Options);
        shim.task_options = Some(runc_options(world));
        shim
    }

    /// The socket that the shim told containerd.
    pub(crate) fn socket(&self) -> PathBuf {
        socket_of(&self.result.address)
    }

    pub(crate) fn connect(&self) -> Conn {
        Conn::open(&self.socket())
    }

    /// Makes one call on a connection of its own.
    pub(crate) fn call<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
    ) -> Result<Resp, Status> {
        self.connect().call(service, method, request)
    }

    /// A call of the task service.
    pub(crate) fn task<Req: Message, Resp: Message + Default>(
        &self,
        method: &str,
        request: &Req,
    ) -> Result<Resp, Status> {
        self.call(berth_proto::TASK_V3, method, request)
    }

    pub(crate) fn state(&self) -> StateResponse {
        self.call(shim_service::NAME, shim_service::STATE, &StateRequest {}).unwrap()
    }

    /// Kills the shim as an out-of-memory killer would.
    pub(crate) fn murder(&self) {
        kill(pid_of(self.pid), Signal::SIGKILL).unwrap();
        self.ends();
    }

    /// Waits until the process has ended.
    pub(crate) fn ends(&self) {
        until("the shim's end", || is_gone(self.pid).then_some(()));
    }

    /// Runs `delete`, as containerd does after it lost the shim.
    pub(crate) fn delete(&self) -> DeleteResponse {
        let output = run(&call_of(self.world, &self.id), "delete", &[]);
        assert!(output.status.success(), "delete failed: {}", text(&output));
        DeleteResponse::decode(output.stdout.as_slice()).expect("a DeleteResponse and nothing else")
    }
}

impl Traces {
    /// Ends the shim as its clients should; one that has ended is left alone.
    pub(super) fn end(&self) {
        let Ok(mut conn) = Conn::try_open(&self.socket) else {
            // It was shut down, or killed and deleted.
            return until("the shim's end", || is_gone(self.pid).then_some(()));
        };
        let state: StateResponse =
            conn.call(shim_service::NAME, shim_service::STATE, &StateRequest {}).unwrap();
        for task in &state.tasks {
            self.end_task(&mut conn, task);
        }
        let request = ShutdownSandboxRequest { sandbox_id: self.call.id.clone() };
        if state.sandbox_id.is_empty() {
            let request = ShutdownRequest { id: self.call.id.clone(), now: false };
            let (): () = conn.call(berth_proto::TASK_V3, task_service::SHUTDOWN, &request).unwrap();
        } else {
            let ShutdownSandboxResponse {} =
                conn.call(sandbox_service::NAME, sandbox_service::SHUTDOWN_SANDBOX, &request).unwrap();
        }
        until("the shim's end after its shutdown", || is_gone(self.pid).then_some(()));
    }

    fn end_task(&self, conn: &mut Conn, task: &shim::Task) {
        let id = task.id.clone();
        if task.exit.is_none() {
            let request = KillRequest { id: id.clone(), signal: 9, all: true, exec_id: String::new() };
            let killed: Result<(), Status> = conn.call(berth_proto::TASK_V3, task_service::KILL, &request);
            let request = WaitRequest { id: id.clone(), exec_id: String::new() };
            let waited: Result<WaitResponse, Status> =
                conn.call(berth_proto::TASK_V3, task_service::WAIT, &request);
            assert!(waited.is_ok(), "killed with {killed:?}, waited with {waited:?}");
        }
        let request = DeleteRequest { id, exec_id: String::new() };
        let _: DeleteResponse = conn.call(berth_proto::TASK_V3, task_service::DELETE, &request).unwrap();
    }

    /// Ends the shim by force.
    pub(super) fn destroy(&self) {
        if !is_gone(self.pid) {
            kill(pid_of(self.pid), Signal::SIGKILL).unwrap();
            until("the shim's end", || is_gone(self.pid).then_some(()));
            run(&self.call, "delete", &[]);
        }
    }
}

/// What every call of the shim's program carries.
struct Call {
    id: String,
    namespace: String,
    bundle: PathBuf,
    events: PathBuf,
}

fn call_of(world: &World, id: &str) -> Call {
    Call {
        id: id.to_owned(),
        namespace: world.name().to_owned(),
        bundle: world.bundle(id),
        events: world.containerd.socket().to_owned(),
    }
}

fn run(call: &Call, action: &str, input: &[u8]) -> Output {
    let Call { id, namespace, bundle, events } = call;
    let mut command = Command::new(env!("CARGO_BIN_EXE_containerd-shim-berth-v1"));
    let grpc = events.with_extension("");
    command.args(["-namespace", namespace, "-address"]).arg(&grpc).args([
        "-publish-binary",
        "/bin/false",
        "-id",
        id,
    ]);
    if action == "delete" {
        command.arg("-bundle").arg(bundle);
    }
    command.arg(action).current_dir(bundle).env("TTRPC_ADDRESS", events).env("GRPC_ADDRESS", grpc);
    command.env("NAMESPACE", namespace).env("MAX_SHIM_VERSION", "2").env("GOMAXPROCS", "2");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn bootstrap_input(world: &World, id: &str, bootstrap: Bootstrap) -> Vec<u8> {
    let options = runc_options(world);
    match bootstrap {
        Bootstrap::Options => options.encode_to_vec(),
        Bootstrap::Messages => BootstrapParams {
            instance_id: id.to_owned(),
            namespace: world.name().to_owned(),
            containerd_version: "2.3.4".to_owned(),
            containerd_ttrpc_address: world.containerd.socket().display().to_string(),
            containerd_grpc_address: world.containerd.socket().with_extension("").display().to_string(),
            containerd_binary: "/bin/false".to_owned(),
            extensions: vec![Extension { value: Some(options) }],
            socket_dir: Some(world.dir().join("s").display().to_string()),
            ..BootstrapParams::default()
        }
        .encode_to_vec(),
    }
}

/// The options that `ctr run --runc-binary` gives.
fn runc_options(world: &World) -> Any {
    let binary_name = world.program().display().to_string();
    berth_proto::pack(&runc::Options { binary_name, ..runc::Options::default() })
}

/// Reads what containerd would: a message, or else JSON.
fn parse_result(stdout: &[u8]) -> BootstrapResult {
    if let Ok(result) = BootstrapResult::decode(stdout) {
        return result;
    }
    let json: serde_json::Value = serde_json::from_slice(stdout).expect("a BootstrapResult or JSON");
    BootstrapResult {
        version: i32::try_from(json["version"].as_i64().unwrap()).unwrap(),
        address: json["address"].as_str().unwrap().to_owned(),
        protocol: json["protocol"].as_str().unwrap().to_owned(),
        ..BootstrapResult::default()
    }
}

fn socket_of(address: &str) -> PathBuf {
    PathBuf::from(
        address.strip_prefix("unix://").unwrap_or_else(|| panic!("a unix address, not {address:?}")),
    )
}

/// containerd's end of the bundle's `log`. It is not read, which must not hold the shim up.
fn open_log(bundle: &Path) -> File {
    let path = bundle.join("log");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open(path).unwrap()
}

/// Shows what a shim has written to its log when its test fails.
impl Drop for Shim<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut log = vec![0; 64 << 10];
            let len = self.log.read(&mut log).unwrap_or(0);
            eprintln!("log of shim {}:\n{}", self.id, String::from_utf8_lossy(&log[..len]));
        }
    }
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

pub(super) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap())
}

/// Whether a process has ended, reaped or not.
pub(super) fn is_gone(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
    }
}
