//! One shim: started as containerd starts it, and called.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use berth_proto::Any;
use berth_proto::bootstrap::BootstrapResult;
use berth_proto::task::{ConnectRequest, ConnectResponse, DeleteResponse, ShutdownRequest, task_service};
use berth_proto::ttrpc::Status;
use nix::sys::signal::{Signal, kill};
use prost::Message;

use super::call::{Bootstrap, Call, bootstrap_input, parse_result, runc_options, socket_of, text};
use super::conn::Conn;
use super::fault::Fault;
use super::spec::Spec;
use super::traces::{Ids, Traces, is_gone, pid_of};
use super::wait::until;
use super::world::World;

/// containerd's `io.containerd.timeout.shim.cleanup`.
const CLEANUP_WITHIN: Duration = Duration::from_secs(5);

/// A shim that was started.
#[derive(Debug)]
pub struct Shim<'w> {
    /// Where it is.
    pub world: &'w World,
    /// The sandbox or container that it was started for.
    pub id: String,
    /// The bundle that it was started in.
    pub bundle: PathBuf,
    /// Options that containerd sends with each task, when the client gave any.
    pub task_options: Option<Any>,
    /// What `start` answered.
    pub result: BootstrapResult,
    /// The serving process.
    pub pid: u32,
    /// The tasks that it was asked to create.
    pub(crate) tasks: Ids,
    murdered: Arc<AtomicBool>,
    /// containerd's end of the bundle's `log`, which is not read while the test goes on.
    log: File,
}

impl<'w> Shim<'w> {
    /// Starts a shim in a bundle that holds `config`.
    pub fn start(world: &'w World, id: &str, config: &[u8], bootstrap: Bootstrap) -> Shim<'w> {
        let bundle = world.bundle(id);
        fs::create_dir_all(bundle.join("rootfs")).unwrap();
        fs::write(bundle.join("config.json"), config).unwrap();
        let log = open_log(&bundle);
        let output = Call::of(world, id).run("start", &bootstrap_input(world, id, bootstrap));
        assert!(output.status.success(), "start failed: {}", text(&output));
        let result = parse_result(&output.stdout);
        let socket = socket_of(&result.address);
        let answer: ConnectResponse = Conn::open(&socket)
            .call(berth_proto::TASK_V3, task_service::CONNECT, &ConnectRequest { id: id.to_owned() })
            .unwrap();
        let (pid, tasks, murdered) = (answer.shim_pid, Ids::default(), Arc::default());
        world.register(Traces {
            call: Call::of(world, id),
            socket,
            pid,
            tasks: Arc::clone(&tasks),
            murdered: Arc::clone(&murdered),
        });
        Shim { world, id: id.to_owned(), bundle, task_options: None, result, pid, tasks, murdered, log }
    }

    /// Starts a shim for one container without a sandbox, as `ctr run` has it.
    pub fn start_plain(world: &'w World, id: &str, spec: &Spec) -> Shim<'w> {
        let mut shim = Shim::start(world, id, &spec.to_json(), Bootstrap::Options);
        shim.task_options = Some(runc_options(world));
        shim
    }

    /// Starts a shim for one container as containerd 2.3 does, with runtime options.
    pub fn start_for(world: &'w World, id: &str, spec: &Spec) -> Shim<'w> {
        let mut shim = Shim::start(world, id, &spec.to_json(), Bootstrap::Messages);
        shim.task_options = Some(runc_options(world));
        shim
    }

    /// The socket that the shim told containerd.
    pub fn socket(&self) -> PathBuf {
        socket_of(&self.result.address)
    }

    /// A connection of its own.
    pub fn connect(&self) -> Conn {
        Conn::open(&self.socket()).with_fault(self.world.subject().fault)
    }

    /// Makes one call on a connection of its own.
    pub fn call<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
    ) -> Result<Resp, Status> {
        self.connect().call(service, method, request)
    }

    /// A call of the task service.
    pub fn task<Req: Message, Resp: Message + Default>(
        &self,
        method: &str,
        request: &Req,
    ) -> Result<Resp, Status> {
        self.call(berth_proto::TASK_V3, method, request)
    }

    /// `Shutdown` of the task service. A shim that ends may do so before it answers.
    pub fn shutdown(&self) -> Option<()> {
        let request = ShutdownRequest { id: self.id.clone(), now: false };
        self.connect().try_call(berth_proto::TASK_V3, task_service::SHUTDOWN, &request)
    }

    /// How many descriptors the process has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid)).unwrap().count()
    }

    /// Kills the shim as an out-of-memory killer would.
    pub fn murder(&self) {
        self.die_of(Signal::SIGKILL);
    }

    /// Ends the shim by a signal that leaves it no time to clean up.
    pub fn die_of(&self, signal: Signal) {
        self.murdered.store(true, Ordering::Relaxed);
        kill(pid_of(self.pid), signal).unwrap();
        self.ends();
    }

    /// Waits until the process has ended.
    pub fn ends(&self) {
        until("the shim's end", || is_gone(self.pid).then_some(()));
    }

    /// Runs `delete`, as containerd does after it lost the shim.
    pub fn delete(&self) -> DeleteResponse {
        let output = Call::of(self.world, &self.id).run("delete", &[]);
        assert!(output.status.success(), "delete failed: {}", text(&output));
        let told = DeleteResponse::decode(output.stdout.as_slice());
        let told = told.expect("a DeleteResponse and nothing else");
        match self.world.subject().fault {
            Some(Fault::CleanupTellsSuccess) => DeleteResponse { exit_status: 0, ..told },
            _ => told,
        }
    }

    /// As [`delete`](Self::delete), which must not take longer than containerd gives it; or, of one container, than twice what it took
    /// to make what is cleaned, by which a slow machine is known.
    pub fn delete_in_time(&self, made: Duration) -> DeleteResponse {
        let within = CLEANUP_WITHIN.max(2 * made);
        let begun = Instant::now();
        let told = self.delete();
        let taken = begun.elapsed();
        assert!(taken < within, "it took {taken:?}, and {made:?} to make what it cleans");
        told
    }
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
        if std::thread::panicking() && self.world.subject().fault.is_none() {
            let mut log = vec![0; 64 << 10];
            let len = self.log.read(&mut log).unwrap_or(0);
            eprintln!("log of shim {}:\n{}", self.id, String::from_utf8_lossy(&log[..len]));
        }
    }
}
