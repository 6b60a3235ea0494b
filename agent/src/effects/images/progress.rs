//! The progress of pulls: what containerd tells of each on a stream, until one stalls.

use std::time::Duration;

use berth_core::{
    failure::Failure,
    image::transfer::{Part, Transfer},
    time::Mono,
};
use containerd_client::{services::v1::ListStatusesRequest, types::transfer::Progress};
use jiff::Timestamp;
use prost::Message;
use prost_types::Any;
use tokio::sync::mpsc;
use tonic::Streaming;

use super::{
    host::Host,
    stream::{self, Stream},
};
use crate::{
    clock::mono,
    runtime::{Containerd, on_time},
};

/// How long the stream is looked at, however late it is: what lies there was told in time.
const LOOK: Duration = Duration::from_secs(1);

/// A stream on which containerd tells of one pull.
pub(super) struct ProgressStream {
    /// What keeps it open.
    _ours: mpsc::Sender<Any>,
    theirs: Streaming<Any>,
}

/// Opens a stream and waits until containerd knows it by its id.
pub(super) async fn open(
    containerd: &Containerd,
    reference: &str,
) -> Result<(String, ProgressStream), Failure> {
    let act = "open a progress stream for";
    let Stream { id, ours, theirs } = stream::open(containerd, "berth-pull", act, reference).await?;
    Ok((id, ProgressStream { _ours: ours, theirs }))
}

/// Returns when the pull is stalled, with how long nothing has moved.
pub(super) async fn stalled(host: &Host, mut stream: ProgressStream, patience: Duration) -> Duration {
    let mut transfer = Transfer::begun(mono());
    let mut others_moved = None;
    loop {
        let due = transfer.stalls_at(others_moved, patience);
        let left = due.map_or(Duration::MAX, |due| due.since(mono()).max(LOOK));
        match on_time(left, listen(&mut transfer, &mut stream)).await {
            Some(Heard::Movement) => {}
            // The stream ends with the transfer, whose own end is what counts.
            Some(Heard::End) => std::future::pending().await,
            None => {
                others_moved = fetched_at(&host.containerd).await.max(others_moved);
                if transfer.stalls_at(others_moved, patience).is_some_and(|due| due <= mono()) {
                    return mono().since(transfer.moved());
                }
            }
        }
    }
}

/// When containerd last got a byte for any of its clients that share this namespace; `None` where that is not known.
async fn fetched_at(containerd: &Containerd) -> Option<Mono> {
    let mut client = containerd.content();
    let request = ListStatusesRequest::default();
    let downloads = containerd.call("list", "downloads", client.list_statuses(request)).await.ok()?.statuses;
    let moved = downloads.into_iter().filter_map(|one| one.updated_at);
    let last = moved.filter_map(|at| Timestamp::new(at.seconds, at.nanos).ok()).max()?;
    // One in the future, by a clock that was set back, is of now.
    let ago = Duration::try_from(Timestamp::now().duration_since(last)).unwrap_or_default();
    Some(Mono(mono().0.saturating_sub(ago)))
}

/// What was heard on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Movement,
    End,
}

/// Returns when the pull has moved, or when nothing will be told any more.
async fn listen(transfer: &mut Transfer, stream: &mut ProgressStream) -> Heard {
    loop {
        match stream.theirs.message().await {
            Ok(Some(any)) if hear(transfer, &any) => return Heard::Movement,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return Heard::End,
        }
    }
}

/// Takes what containerd told; whether that is movement. Source: containerd, `core/transfer/local/progress.go`.
fn hear(transfer: &mut Transfer, any: &Any) -> bool {
    let Ok(told) = Progress::decode(any.value.as_slice()) else { return false };
    let part = match told.event.as_str() {
        "waiting" | "downloading" if told.total > 0 && told.progress >= told.total => Part::Fetched,
        "waiting" | "downloading" => {
            Part::Awaited { bytes: u64::try_from(told.progress).unwrap_or_default() }
        }
        "complete" | "already exists" | "extracting" | "extracted" => Part::There,
        _ => return transfer.went_on(mono()),
    };
    transfer.told(&told.name, part, mono())
}

#[cfg(test)]
mod tests {
    use containerd_client::to_any;
    use tokio::time::timeout;

    use super::*;
    use crate::runtime::fake::{Ending, Fake};

    /// How long a stream that says no more is listened to.
    const SILENCE: Duration = Duration::from_secs(2);
    /// A bound that is not reached.
    const LONG: Duration = Duration::from_secs(30);

    const PATIENCE: Duration = Duration::from_secs(300);

    fn said(event: &str, progress: i64, total: i64) -> Any {
        let name = if total == 0 { "image" } else { "layer" }.to_owned();
        to_any(&Progress { event: event.to_owned(), name, progress, total, ..Progress::default() })
    }

    /// What containerd 2.1 and 2.3 tell, in order, whether that is movement and whether something is awaited after it.
    #[test]
    fn the_words_of_containerd() {
        let mut transfer = Transfer::begun(mono());
        for (told, is_movement, awaits) in [
            (said("Resolving from OCI Registry (localhost:5000/busybox:1)", 0, 0), true, true),
            (said("fetching image content", 0, 0), true, true),
            (said("waiting", 0, 100), true, true),
            (said("downloading", 40, 100), true, true),
            (said("downloading", 100, 100), true, true),
            (said("complete", 100, 100), true, false),
            (said("extracting", 0, 100), false, false),
            (said("extracted", 100, 100), false, false),
            (said("waiting", 0, -1), true, true),
            (said("downloading", 40, -1), true, true),
            (said("already exists", 100, 100), true, false),
            (said("saved", 0, 0), true, false),
        ] {
            assert_eq!(hear(&mut transfer, &told), is_movement, "{told:?}");
            assert_eq!(transfer.stalls_at(None, PATIENCE).is_some(), awaits, "{told:?}");
        }
    }
    /// A stream that says no more is told from one that ends, however it ends: the answer to the pull tells its end.
    #[tokio::test]
    async fn a_stream_that_says_no_more_is_told_from_one_that_ends() {
        let layer = |progress| Progress { total: 100, ..progress_of("downloading", progress) };
        let messages = [Any::default(), to_any(&layer(1)), to_any(&layer(2)), to_any(&layer(2))];
        for ending in Ending::MIDWAY.into_iter().chain([Ending::Whole]) {
            let fake = Fake::answering(&messages, ending).await;
            let (_, mut stream) = open(&fake.containerd, "image").await.unwrap();
            let mut transfer = Transfer::begun(mono());
            if ending == Ending::Stalls {
                for bytes in [1, 2] {
                    let heard = timeout(LONG, listen(&mut transfer, &mut stream)).await;
                    assert_eq!(heard.ok(), Some(Heard::Movement), "to {bytes} bytes");
                }
                let heard = timeout(SILENCE, listen(&mut transfer, &mut stream)).await;
                assert_eq!(heard.ok(), None, "it says no more");
                continue;
            }
            let to_its_end = async { while listen(&mut transfer, &mut stream).await != Heard::End {} };
            assert!(timeout(LONG, to_its_end).await.is_ok(), "{ending:?}");
        }
    }

    fn progress_of(event: &str, progress: i64) -> Progress {
        Progress { event: event.to_owned(), name: "layer".to_owned(), progress, ..Progress::default() }
    }
}
