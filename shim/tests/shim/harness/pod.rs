//! A sandbox, ready for members.

use std::path::{Path, PathBuf};

use berth_proto::TASK_V3;
use berth_proto::sandbox::{
    CreateSandboxRequest, CreateSandboxResponse, SandboxStatusRequest, SandboxStatusResponse,
    ShutdownSandboxRequest, ShutdownSandboxResponse, StartSandboxRequest, StartSandboxResponse,
    StopSandboxRequest, StopSandboxResponse, sandbox_service,
};
use berth_proto::shim::{NamespaceMode, SandboxOptions};
use berth_proto::task::{PidsRequest, PidsResponse, task_service};
use berth_proto::ttrpc::Status;

use super::runtime::args;
use super::shim::Shim;
use super::{Bootstrap, World, make_netns};

/// A sandbox's `config.json`, which says nothing (containerd writes no process into it).
pub(crate) const SANDBOX_CONFIG: &[u8] = br#"{"ociVersion":"1.1.0","annotations":{}}"#;

pub(crate) struct Pod<'w> {
    pub(crate) shim: Shim<'w>,
    pub(crate) agent_socket: PathBuf,
    pub(crate) started: StartSandboxResponse,
}

impl<'w> Pod<'w> {
    /// A running sandbox with network, ipc and uts namespaces of its own.
    pub(crate) fn start(world: &'w World) -> Pod<'w> {
        Pod::start_with(world, |_options| {})
    }

    /// The same, with other options.
    pub(crate) fn start_with(world: &'w World, change: impl FnOnce(&mut SandboxOptions)) -> Pod<'w> {
        let shim = Shim::start(world, "pod", SANDBOX_CONFIG, Bootstrap::Messages);
        let agent_socket = world.dir().join("agent.sock");
        let mut options = options(world, &agent_socket);
        change(&mut options);
        let netns = make_netns(&world.dir().join("netns"));
        create(&shim, &options, &netns).unwrap();
        let started = start(&shim).unwrap();
        Pod { shim, agent_socket, started }
    }

    pub(crate) fn status(&self) -> SandboxStatusResponse {
        status(&self.shim).unwrap()
    }

    /// The processes of the sandbox, as containerd asks for them when it starts.
    pub(crate) fn pids(&self) -> Result<Vec<u32>, Status> {
        let request = PidsRequest { id: self.shim.id.clone() };
        let answer: PidsResponse = self.shim.call(TASK_V3, task_service::PIDS, &request)?;
        Ok(answer.processes.into_iter().map(|process| process.pid).collect())
    }

    /// Ends the sandbox and the shim.
    pub(crate) fn shutdown(&self) {
        let request = ShutdownSandboxRequest { sandbox_id: self.shim.id.clone() };
        let ShutdownSandboxResponse {} =
            self.shim.call(sandbox_service::NAME, sandbox_service::SHUTDOWN_SANDBOX, &request).unwrap();
        self.shim.ends();
    }

    pub(crate) fn stop(&self) -> Result<StopSandboxResponse, Status> {
        let request = StopSandboxRequest { sandbox_id: self.shim.id.clone(), timeout_secs: 5 };
        self.shim.call(sandbox_service::NAME, sandbox_service::STOP_SANDBOX, &request)
    }
}

pub(crate) fn options(world: &World, agent_socket: &Path) -> SandboxOptions {
    SandboxOptions {
        agent_socket: agent_socket.display().to_string(),
        hostname: "the-pod".to_owned(),
        ipc: NamespaceMode::Pod.into(),
        uts: NamespaceMode::Pod.into(),
        pid: NamespaceMode::Container.into(),
        runtime_binary: world.program().display().to_string(),
        runtime_args: args(world),
        ..SandboxOptions::default()
    }
}

pub(crate) fn create(
    shim: &Shim<'_>,
    options: &SandboxOptions,
    netns: &Path,
) -> Result<CreateSandboxResponse, Status> {
    let request = CreateSandboxRequest {
        sandbox_id: shim.id.clone(),
        bundle_path: shim.bundle.display().to_string(),
        options: Some(berth_proto::pack(options)),
        netns_path: netns.display().to_string(),
        ..CreateSandboxRequest::default()
    };
    shim.call(sandbox_service::NAME, sandbox_service::CREATE_SANDBOX, &request)
}

pub(crate) fn start(shim: &Shim<'_>) -> Result<StartSandboxResponse, Status> {
    let request = StartSandboxRequest { sandbox_id: shim.id.clone() };
    shim.call(sandbox_service::NAME, sandbox_service::START_SANDBOX, &request)
}

pub(crate) fn status(shim: &Shim<'_>) -> Result<SandboxStatusResponse, Status> {
    let request = SandboxStatusRequest { sandbox_id: shim.id.clone(), verbose: true };
    shim.call(sandbox_service::NAME, sandbox_service::SANDBOX_STATUS, &request)
}
