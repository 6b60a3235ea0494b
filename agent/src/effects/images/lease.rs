//! A lease on what an image is unpacked into: while it lasts, containerd's garbage collection takes nothing of that; with its
//! end it takes what was left half made.
//!
//! A lease bears the run directory of its agent. The next agent there ends those that a killed one has left, and containerd
//! ends any after a day.

use std::{collections::HashMap, time::Duration};

use containerd_client::services::v1::{CreateRequest, DeleteRequest, ListRequest};
use jiff::Timestamp;
use tonic::Request;

use super::host::Host;
use crate::{
    clock::mono,
    runtime::{CallError, Containerd, labels::RUN_DIR},
};

/// When containerd ends it, in RFC 3339.
const EXPIRES: &str = "containerd.io/gc.expire";
/// How long one lasts at most: as those of containerd's own clients.
const LASTS: Duration = Duration::from_secs(24 * 3600);
/// Names the lease of a request.
const HEADER: &str = "containerd-lease";

/// A lease.
#[derive(Debug)]
pub(super) struct Lease {
    id: String,
}

impl Lease {
    /// Takes a new one.
    pub(super) async fn take(host: &Host) -> Result<Self, CallError> {
        // No two are taken in one nanosecond.
        let id = format!("berth-unpack-{}", mono().0.as_nanos());
        let labels = [
            (RUN_DIR.to_owned(), host.node().paths.run.clone()),
            (EXPIRES.to_owned(), (Timestamp::now() + LASTS).to_string()),
        ];
        let create = CreateRequest { id: id.clone(), labels: HashMap::from(labels) };
        let mut client = host.containerd.leases();
        host.containerd.call("take lease", &id, client.create(create)).await?;
        Ok(Self { id })
    }

    /// A key that nobody else uses for a snapshot.
    pub(super) fn key(&self, chain_id: &str) -> String {
        format!("{} {chain_id}", self.id)
    }

    /// A request whose result the lease covers.
    pub(super) fn with<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Ok(id) = self.id.parse() {
            request.metadata_mut().insert(HEADER, id);
        }
        request
    }

    /// Ends it; nothing that was left half made is there afterwards.
    pub(super) async fn end(self, host: &Host) -> Result<(), CallError> {
        end(&host.containerd, self.id).await
    }
}

/// Ends the leases that an earlier agent of this run directory has left.
///
/// # Errors
/// Containerd does not answer.
pub async fn end_leases(containerd: &Containerd, run_dir: &str) -> Result<(), CallError> {
    let list = ListRequest { filters: vec![format!("labels.{RUN_DIR:?}=={run_dir:?}")] };
    let mut client = containerd.leases();
    for lease in containerd.call("list leases of", run_dir, client.list(list)).await?.leases {
        tracing::info!(lease = lease.id, "an earlier agent was unpacking an image");
        end(containerd, lease.id).await?;
    }
    Ok(())
}

async fn end(containerd: &Containerd, id: String) -> Result<(), CallError> {
    let mut client = containerd.leases();
    let delete = DeleteRequest { id: id.clone(), sync: true };
    match containerd.call("end lease", &id, client.delete(delete)).await {
        Err(error) if !error.is_not_found() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}
