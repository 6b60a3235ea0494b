//! Streams that containerd knows by an id, which a pull names.

use std::time::Duration;

use berth_core::failure::Failure;
use containerd_client::{services::v1::StreamInit, to_any};
use prost_types::Any;
use tokio::sync::mpsc;
use tonic::Streaming;

use crate::{
    clock::mono,
    runtime::{CallError, Cause, Containerd},
};

/// How long containerd may take to open one.
const WITHIN: Duration = Duration::from_secs(10);
/// Messages to containerd that may wait.
const WAITING_MAX: usize = 4;

/// A stream that is open until this is dropped.
pub(super) struct Stream {
    pub(super) id: String,
    pub(super) ours: mpsc::Sender<Any>,
    pub(super) theirs: Streaming<Any>,
}

/// Opens a stream and waits until containerd knows it by its id, which begins with `kind`. An error says that `act` failed for `target`.
pub(super) async fn open(
    containerd: &Containerd,
    kind: &str,
    act: &'static str,
    target: &str,
) -> Result<Stream, Failure> {
    // No two are opened in one nanosecond, whereas agents in namespaces of their own have the same process id.
    let id = format!("{kind}-{}", mono().0.as_nanos());
    let (ours, mut outgoing) = mpsc::channel(WAITING_MAX);
    // The first message is the stream's name.
    drop(ours.send(to_any(&StreamInit { id: id.clone() })).await);
    let messages = futures::stream::poll_fn(move |context| outgoing.poll_recv(context));
    let mut client = containerd.streams();
    let open = async {
        let mut theirs = client.stream(messages).await?.into_inner();
        theirs.message().await?;
        Ok(theirs)
    };
    let failed = |cause| Failure::from(CallError::new(act, target, cause));
    let theirs = tokio::time::timeout(WITHIN, open)
        .await
        .map_err(|_elapsed| failed(Cause::Timeout(WITHIN)))?
        .map_err(|status: tonic::Status| failed(Cause::from(status)))?;
    Ok(Stream { id, ours, theirs })
}
