//! Leases on what images are unpacked into: while one lasts, containerd's garbage collection takes nothing of that; with its
//! end it takes what was left half made.
//!
//! A lease bears the run directory of its agent. Those that a killed agent has left, or one whose containerd did not answer when
//! they were to end, go when the next one begins and before the next image is unpacked; containerd ends any after a day.

use std::{collections::HashMap, time::Duration};

use containerd_client::services::v1::{CreateRequest, DeleteRequest, ListRequest};
use jiff::Timestamp;
use tonic::Request;

use super::{
    host::Host,
    leases::{InUse, LeasesInUse},
};
use crate::{
    causes::with_causes,
    clock::mono,
    runtime::{CallError, Containerd, labels::RUN_DIR},
};

/// When containerd ends it, in RFC 3339.
const EXPIRES: &str = "containerd.io/gc.expire";
/// How long one lasts at most: as those of containerd's own clients.
const LASTS: Duration = Duration::from_secs(24 * 3600);
/// Names the lease of a request.
const HEADER: &str = "containerd-lease";

/// Ends the leases of a run directory that nobody uses any more. They stay when containerd does not answer.
pub async fn end_unused(containerd: &Containerd, run_dir: &str, in_use: &LeasesInUse) {
    if let Err(error) = try_to_end_unused(containerd, run_dir, in_use).await {
        tracing::warn!(error = with_causes(&error), "leases of images that were cut off stay for now");
    }
}

async fn try_to_end_unused(
    containerd: &Containerd,
    run_dir: &str,
    in_use: &LeasesInUse,
) -> Result<(), CallError> {
    let list = ListRequest { filters: vec![format!("labels.{RUN_DIR:?}=={run_dir:?}")] };
    let mut client = containerd.leases();
    let leases = containerd.call("list leases of", run_dir, client.list(list)).await?.leases;
    for lease in leases.iter().filter(|lease| !in_use.has(&lease.id)) {
        tracing::info!(lease = lease.id, "an image that was being unpacked was cut off");
        end(containerd, &lease.id, Leaves::HalfMade).await?;
    }
    Ok(())
}

/// What a lease leaves when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaves {
    /// Layers that something refers to.
    Kept,
    /// What nothing refers to; it is gone when the lease has ended.
    HalfMade,
}

/// A lease, in use as long as this lives.
#[derive(Debug)]
pub(super) struct Lease(InUse);

impl Lease {
    /// Takes a new one.
    pub(super) async fn take(host: &Host) -> Result<Self, CallError> {
        let run_dir = &host.node().paths.run;
        end_unused(&host.containerd, run_dir, &host.leases).await;
        // No two are taken in one nanosecond. It is in use before containerd has it: another one that begins must not end it.
        let lease = Self(host.leases.mark(format!("berth-unpack-{}", mono().0.as_nanos())));
        let labels = [
            (RUN_DIR.to_owned(), run_dir.clone()),
            (EXPIRES.to_owned(), (Timestamp::now() + LASTS).to_string()),
        ];
        let id = &lease.0.id;
        let create = CreateRequest { id: id.clone(), labels: HashMap::from(labels) };
        let mut client = host.containerd.leases();
        host.containerd.call("take lease", id, client.create(create)).await?;
        Ok(lease)
    }

    /// A key that nobody else uses for a snapshot.
    pub(super) fn key(&self, chain_id: &str) -> String {
        format!("{} {chain_id}", self.0.id)
    }

    /// A request whose result the lease covers.
    pub(super) fn with<T>(&self, message: T) -> Request<T> {
        under(&self.0.id, message)
    }

    /// Ends it. Where that fails, it is ended before the next one is taken.
    pub(super) async fn end(self, host: &Host, leaves: Leaves) {
        if let Err(error) = end(&host.containerd, &self.0.id, leaves).await {
            tracing::warn!(lease = self.0.id, error = with_causes(&error), "a lease stays for now");
        }
    }
}

/// A request whose result a lease covers.
pub(super) fn under<T>(lease: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Ok(id) = lease.parse() {
        request.metadata_mut().insert(HEADER, id);
    }
    request
}

/// Ends a lease, if there is one.
pub(super) async fn end(containerd: &Containerd, id: &str, leaves: Leaves) -> Result<(), CallError> {
    let mut client = containerd.leases();
    let delete = DeleteRequest { id: id.to_owned(), sync: leaves == Leaves::HalfMade };
    match containerd.call("end lease", id, client.delete(delete)).await {
        Err(error) if !error.is_not_found() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}
