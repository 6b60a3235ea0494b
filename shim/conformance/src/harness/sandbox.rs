//! The sandbox service, called as containerd's shim sandboxer calls it.

use std::path::{Path, PathBuf};

use berth_proto::sandbox::{
    CreateSandboxRequest, CreateSandboxResponse, PingRequest, PingResponse, PlatformRequest,
    PlatformResponse, SandboxMetricsRequest, SandboxMetricsResponse, SandboxStatusRequest,
    SandboxStatusResponse, ShutdownSandboxRequest, ShutdownSandboxResponse, StartSandboxRequest,
    StartSandboxResponse, StopSandboxRequest, StopSandboxResponse, WaitSandboxRequest, sandbox_service,
};
use berth_proto::ttrpc::Status;
use prost::Message;

use super::call::{Bootstrap, runc_options};
use super::conn::Conn;
use super::fault::Fault;
use super::netns::make_netns;
use super::shim::Shim;
use super::world::World;

/// A sandbox's `config.json`, which says nothing (containerd writes no process into it).
const CONFIG: &[u8] = br#"{"ociVersion":"1.1.0","annotations":{}}"#;

/// A sandbox and its shim.
#[derive(Debug)]
pub struct Sandbox<'w> {
    /// The shim, with which members are made.
    pub shim: Shim<'w>,
    /// The network namespace that it was given.
    pub netns: PathBuf,
}

impl<'w> Sandbox<'w> {
    /// A shim for a sandbox that is not created yet.
    pub fn new(world: &'w World, id: &str) -> Sandbox<'w> {
        let mut shim = Shim::start(world, id, CONFIG, Bootstrap::Messages);
        shim.task_options = Some(runc_options(world));
        Sandbox { shim, netns: PathBuf::new() }
    }

    /// A running sandbox with a network namespace of its own.
    pub fn start(world: &'w World) -> Sandbox<'w> {
        let mut sandbox = Sandbox::new(world, "pod");
        sandbox.netns = make_netns(&world.dir().join("netns"));
        sandbox.create().unwrap();
        sandbox.begin().unwrap();
        sandbox
    }

    /// A running sandbox with the network of the node.
    pub fn start_on_the_nodes_network(world: &'w World) -> Sandbox<'w> {
        let sandbox = Sandbox::new(world, "pod");
        sandbox.create().unwrap();
        sandbox.begin().unwrap();
        sandbox
    }

    /// `CreateSandbox`.
    pub fn create(&self) -> Result<CreateSandboxResponse, Status> {
        let world = self.shim.world;
        let is_unasked =
            world.subject().fault == Some(Fault::NetworkUnasked) && self.netns.as_os_str().is_empty();
        let netns = if is_unasked { make_netns(&world.dir().join("netns")) } else { self.netns.clone() };
        let request = CreateSandboxRequest {
            sandbox_id: self.id(),
            bundle_path: self.shim.bundle.display().to_string(),
            options: Some(runc_options(world)),
            netns_path: netns.display().to_string(),
            ..CreateSandboxRequest::default()
        };
        self.call(sandbox_service::CREATE_SANDBOX, &request)
    }

    /// `StartSandbox`.
    pub fn begin(&self) -> Result<StartSandboxResponse, Status> {
        self.call(sandbox_service::START_SANDBOX, &StartSandboxRequest { sandbox_id: self.id() })
    }

    /// `SandboxStatus`.
    pub fn status(&self) -> Result<SandboxStatusResponse, Status> {
        let request = SandboxStatusRequest { sandbox_id: self.id(), verbose: true };
        self.call(sandbox_service::SANDBOX_STATUS, &request)
    }

    /// The state's name.
    pub fn state(&self) -> String {
        self.status().unwrap().state
    }

    /// `StopSandbox`.
    pub fn stop(&self) -> Result<StopSandboxResponse, Status> {
        let request = StopSandboxRequest { sandbox_id: self.id(), timeout_secs: 5 };
        self.call(sandbox_service::STOP_SANDBOX, &request)
    }

    /// `ShutdownSandbox`.
    pub fn shutdown(&self) -> Result<ShutdownSandboxResponse, Status> {
        let request = ShutdownSandboxRequest { sandbox_id: self.id() };
        self.call(sandbox_service::SHUTDOWN_SANDBOX, &request)
    }

    /// `PingSandbox`.
    pub fn ping(&self) -> Result<PingResponse, Status> {
        self.call(sandbox_service::PING_SANDBOX, &PingRequest { sandbox_id: self.id() })
    }

    /// `Platform`.
    pub fn platform(&self) -> Result<PlatformResponse, Status> {
        self.call(sandbox_service::PLATFORM, &PlatformRequest { sandbox_id: self.id() })
    }

    /// `SandboxMetrics`.
    pub fn metrics(&self) -> Result<SandboxMetricsResponse, Status> {
        self.call(sandbox_service::SANDBOX_METRICS, &SandboxMetricsRequest { sandbox_id: self.id() })
    }

    /// Asks for the sandbox's end; the answer is for [`Conn::end`].
    pub fn begin_wait(&self) -> (Conn, u32) {
        let mut conn = self.shim.connect();
        let request = WaitSandboxRequest { sandbox_id: self.id() };
        let stream = conn.begin(sandbox_service::NAME, sandbox_service::WAIT_SANDBOX, &request);
        (conn, stream)
    }

    /// Where a process has its namespaces: the sandbox's own, by the pid that it tells.
    pub fn namespace(&self, kind: &str) -> String {
        link(&format!("/proc/{}/ns/{kind}", self.status().unwrap().pid))
    }

    fn call<Req: Message, Resp: Message + Default>(
        &self,
        method: &str,
        request: &Req,
    ) -> Result<Resp, Status> {
        self.shim.call(sandbox_service::NAME, method, request)
    }

    fn id(&self) -> String {
        self.shim.id.clone()
    }
}

fn link(path: &str) -> String {
    std::fs::read_link(Path::new(path)).unwrap().display().to_string()
}
