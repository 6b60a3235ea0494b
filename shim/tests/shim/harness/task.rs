//! A container whose output goes to a log.

use std::ops::Deref;

use berth_proto::shim;
use berth_proto::ttrpc::Status;
use berth_proto::types::Mount;
use berth_shim_conformance::harness::{self, Conn, Spec, Streams};

use super::log::Log;
use super::shim::Shim;

pub(crate) struct Task<'s> {
    shim: &'s Shim<'s>,
    task: harness::Task<'s>,
    pub(crate) log: Log,
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
        let log = Log::of(shim.world, id);
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
        let task = harness::Task::create_with(shim, id, spec, streams)?;
        Ok(Task { shim, task, log: Log::of(shim.world, id) })
    }

    /// Creates a container that logs on a root file system of these mounts.
    pub(crate) fn create_on(
        shim: &'s Shim<'s>,
        id: &str,
        spec: Spec,
        rootfs: Vec<Mount>,
    ) -> Result<Task<'s>, Status> {
        let log = Log::of(shim.world, id);
        let uri = format!("cri-log://{}?max_line=16384", log.path.display());
        let streams = Streams { stdin: String::new(), stdout: uri.clone(), stderr: uri };
        let task = harness::Task::create_on(shim, id, spec, streams, rootfs)?;
        Ok(Task { shim, task, log })
    }

    /// Asks for a container and does not wait for it.
    pub(crate) fn begin_create(shim: &'s Shim<'s>, id: &str, spec: &Spec, streams: Streams) -> (Conn, u32) {
        harness::Task::begin_create(shim, id, spec, streams)
    }

    /// A container that the test has created itself.
    pub(crate) fn adopt(shim: &'s Shim<'s>, id: &str) -> Task<'s> {
        Task { shim, task: harness::Task::adopt(shim, id), log: Log::of(shim.world, id) }
    }

    /// Whether the OCI runtime has been called for a container that is not created yet.
    pub(crate) fn is_in_creation(shim: &Shim<'_>, id: &str) -> bool {
        harness::Task::is_in_creation(shim, id)
    }

    /// What the agent's view says about this container.
    pub(crate) fn view(&self) -> shim::Task {
        let tasks = self.shim.state().tasks;
        tasks.into_iter().find(|task| task.id == self.id).expect("the task is in the shim's state")
    }
}

impl<'s> Deref for Task<'s> {
    type Target = harness::Task<'s>;

    fn deref(&self) -> &Self::Target {
        &self.task
    }
}
