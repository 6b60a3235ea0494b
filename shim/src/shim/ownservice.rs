//! Answers that need no decision: the sandbox's options, statistics, sizes, logs.

use berth_proto::process::ProcessInfo;
use berth_proto::sandbox::{CreateSandboxRequest, SandboxMetricsResponse};
use berth_proto::task::PidsResponse;
use berth_proto::ttrpc::{Code, Status};
use berth_proto::types::Metric;
use berth_shim_core::{Id, Request};
use prost::Message;

use super::Shim;
use crate::answer::{self, timestamp};
use crate::call::{self, Call};
use crate::oom_score;
use crate::pod::Pod;

impl Shim {
    /// Notes the sandbox, and lets the machine say whether there may be one.
    pub(super) fn create_sandbox(
        &mut self,
        conn: u64,
        stream: u32,
        request: CreateSandboxRequest,
    ) -> Result<(), Status> {
        let options = call::sandbox_options(&request)?;
        if self.pod.is_none() {
            let socket = options.as_ref().map(|options| options.agent_socket.clone());
            let score = options.as_ref().and_then(|options| options.oom_score_adj);
            let CreateSandboxRequest { sandbox_id, netns_path, .. } = request;
            let pod = Pod::new(sandbox_id, self.home.bundle.clone(), netns_path, options);
            let pod = pod.map_err(|error| answer::status(error.into()))?;
            if let Some(path) = socket.filter(|path| !path.is_empty()) {
                self.listen_for_agent(&path)?;
            }
            if let Some(score) = score {
                oom_score::set(score);
            }
            self.pod = Some(pod);
        }
        self.ask(conn, stream, Call::Empty, Request::CreateSandbox)
    }

    /// Refuses calls about another shim's sandbox, which would stop the wrong pod. What may be said before there is a
    /// sandbox is the machine's to decide.
    pub(super) fn must_be_ours(&self, sandbox: &str) -> Result<(), Status> {
        match &self.pod {
            Some(pod) if pod.id != sandbox => Err(Status::new(
                Code::NotFound,
                format!("sandbox {sandbox:?} is not in this shim: not found"),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The shim itself, when it is its sandbox that is asked for.
    ///
    /// containerd takes a shim without pids for a leaked one after its own restart and ends it, unless its store of
    /// sandboxes has one of that name (`core/runtime/v2/shim_load.go`): ours has not (decision 0018).
    pub(super) fn sandbox_pids(&self, of: &Id) -> Option<Vec<u8>> {
        self.pod.as_ref().filter(|pod| pod.id == of.as_str())?;
        let own = ProcessInfo { pid: std::process::id(), info: None };
        Some(PidsResponse { processes: vec![own] }.encode_to_vec())
    }

    /// The pod's own cgroup, above its members'. A pod without members has no figures.
    pub(super) fn sandbox_metrics(&self) -> Result<Vec<u8>, Status> {
        let no_sandbox = || Status::new(Code::NotFound, "the shim has no sandbox: not found");
        let id = self.pod.as_ref().map(|pod| pod.id.clone()).ok_or_else(no_sandbox)?;
        let cgroup = self.processes.cgroup_above();
        let metrics = Metric {
            timestamp: Some(timestamp(self.now().unix_ns)),
            id,
            data: cgroup.map(|cgroup| cgroup.metrics()),
        };
        Ok(SandboxMetricsResponse { metrics: Some(metrics) }.encode_to_vec())
    }
}
