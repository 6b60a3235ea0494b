//! What containerd has on record for pods, asked over its API: a look costs no process.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use containerd_client::services::v1::sandbox::{StoreListRequest, store_client::StoreClient};
use containerd_client::services::v1::snapshots::{
    Info, Kind, ListSnapshotsRequest, snapshots_client::SnapshotsClient,
};
use containerd_client::services::v1::{
    Container, ListContainersRequest, ListRequest, ListTasksRequest, containers_client::ContainersClient,
    leases_client::LeasesClient, tasks_client::TasksClient, version_client::VersionClient,
};
use containerd_client::tonic::Request;
use containerd_client::tonic::transport::Channel;
use containerd_client::types::v1::Status;
use containerd_client::with_namespace;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::containerd::{NAMESPACE, SOCKET};

/// Longest wait for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// The snapshotter of nodes whose settings name none.
const SNAPSHOTTER: &str = "overlayfs";

/// A connection to the lab's containerd.
#[derive(Debug)]
pub struct Records {
    channel: Channel,
    runtime: Runtime,
}

/// A process that containerd watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its container.
    pub id: String,
    /// Its init.
    pub pid: u32,
    /// Whether that lives, and was started.
    pub runs: bool,
}

impl Records {
    /// Connects, and asks for the version.
    ///
    /// # Errors
    /// Containerd does not answer.
    pub fn open() -> Result<Self> {
        Self::open_at(SOCKET)
    }

    /// As [`Self::open`], of another containerd.
    ///
    /// # Errors
    /// As of [`Self::open`].
    pub fn open_at(socket: &str) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let channel = answer(&runtime, "connect to containerd", async {
            let channel = containerd_client::connect(socket).await?;
            VersionClient::new(channel.clone()).version(()).await?;
            Ok(channel)
        })?;
        Ok(Self { channel, runtime })
    }

    /// The OCI specifications of containers, by id.
    ///
    /// # Errors
    /// Containerd does not answer, or one is no JSON.
    pub fn specs(&self) -> Result<BTreeMap<String, Value>> {
        let spec_of = |container: Container| {
            let spec = container.spec.with_context(|| format!("container {} has no spec", container.id))?;
            let spec = serde_json::from_slice(&spec.value).with_context(|| format!("of {}", container.id))?;
            Ok((container.id, spec))
        };
        self.all_containers()?.into_iter().map(spec_of).collect()
    }

    /// Containers, by id.
    ///
    /// # Errors
    /// Containerd does not answer.
    pub fn containers(&self) -> Result<Vec<String>> {
        Ok(self.all_containers()?.into_iter().map(|container| container.id).collect())
    }

    fn all_containers(&self) -> Result<Vec<Container>> {
        let mut client = ContainersClient::new(self.channel.clone());
        let request = with_namespace!(ListContainersRequest::default(), NAMESPACE);
        self.answer("list containers", async {
            let mut stream = client.list_stream(request).await?.into_inner();
            let mut all = Vec::new();
            while let Some(message) = stream.message().await? {
                all.extend(message.container);
            }
            Ok(all)
        })
    }

    /// Tasks, whatever their state.
    ///
    /// # Errors
    /// Containerd does not answer.
    pub fn tasks(&self) -> Result<Vec<Task>> {
        let mut client = TasksClient::new(self.channel.clone());
        let request = with_namespace!(ListTasksRequest::default(), NAMESPACE);
        let list = self.answer("list tasks", async { Ok(client.list(request).await?.into_inner()) })?;
        Ok(list
            .tasks
            .into_iter()
            .map(|task| Task { runs: task.status() == Status::Running, id: task.id, pid: task.pid })
            .collect())
    }

    /// Sandboxes, by id.
    ///
    /// # Errors
    /// Containerd does not answer.
    pub fn sandboxes(&self) -> Result<Vec<String>> {
        let mut client = StoreClient::new(self.channel.clone());
        let request = with_namespace!(StoreListRequest::default(), NAMESPACE);
        let list = self.answer("list sandboxes", async { Ok(client.list(request).await?.into_inner()) })?;
        Ok(list.list.into_iter().map(|sandbox| sandbox.sandbox_id).collect())
    }

    /// Snapshots that are no image's: layers of images are committed, those of containers active, and views neither's.
    ///
    /// # Errors
    /// Containerd does not answer.
    pub fn snapshots_in_use(&self) -> Result<Vec<String>> {
        let mut client = SnapshotsClient::new(self.channel.clone());
        let request = ListSnapshotsRequest { snapshotter: SNAPSHOTTER.to_owned(), filters: Vec::new() };
        let request = with_namespace!(request, NAMESPACE);
        let all: Vec<Info> = self.answer("list snapshots", async {
            let mut stream = client.list(request).await?.into_inner();
            let mut all = Vec::new();
            while let Some(message) = stream.message().await? {
                all.extend(message.info);
            }
            Ok(all)
        })?;
        Ok(all.into_iter().filter(|info| info.kind() != Kind::Committed).map(|info| info.name).collect())
    }

    /// Leases, by id.
    ///
    /// # Errors
    /// Containerd does not answer.
    pub fn leases(&self) -> Result<Vec<String>> {
        let mut client = LeasesClient::new(self.channel.clone());
        let request = with_namespace!(ListRequest::default(), NAMESPACE);
        let list = self.answer("list leases", async { Ok(client.list(request).await?.into_inner()) })?;
        Ok(list.leases.into_iter().map(|lease| lease.id).collect())
    }

    fn answer<T>(&self, act: &str, asking: impl Future<Output = Result<T>>) -> Result<T> {
        answer(&self.runtime, act, asking)
    }
}

fn answer<T>(runtime: &Runtime, act: &str, asking: impl Future<Output = Result<T>>) -> Result<T> {
    let answered = runtime.block_on(async { tokio::time::timeout(ANSWER_LIMIT, asking).await });
    answered.with_context(|| format!("{act}: no answer"))?.with_context(|| act.to_owned())
}
