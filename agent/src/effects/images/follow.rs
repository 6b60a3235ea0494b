//! Images of the node, listed when one has come or gone. Containerd's events tell of that.

use std::time::Duration;

use berth_core::cluster::node::Image;
use containerd_client::services::v1::SubscribeRequest;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::listed::{Weighed, list_images};
use crate::{causes::with_causes, runtime::Containerd};

/// How often images are listed though no event came: one may have been lost.
const LIST_EVERY: Duration = Duration::from_secs(300);
/// How long events are gathered before a list: a pull makes several.
const GATHERED: Duration = Duration::from_secs(1);
/// Between two tries to hear of events.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Lists them until the agent stops.
pub async fn follow_images(containerd: Containerd, images: watch::Sender<Option<Vec<Image>>>) {
    let mut weighed = Weighed::default();
    loop {
        let request = SubscribeRequest { filters: vec!["topic~=\"^/images/\"".to_owned()] };
        let mut client = containerd.events();
        // A stream without events does not begin, so the list cannot wait for it.
        list(&containerd, &mut weighed, &images).await;
        let stream = timeout(LIST_EVERY, client.subscribe(request)).await;
        if let Ok(Ok(answer)) = stream {
            let mut stream = answer.into_inner();
            loop {
                list(&containerd, &mut weighed, &images).await;
                match timeout(LIST_EVERY, stream.message()).await {
                    Ok(Ok(Some(_event))) => gather(&mut stream).await,
                    Ok(Ok(None) | Err(_)) => break,
                    Err(_elapsed) => {}
                }
            }
        }
        sleep(AGAIN_AFTER).await;
    }
}

/// Takes what comes within a moment.
async fn gather(stream: &mut tonic::Streaming<containerd_client::types::Envelope>) {
    let all = async { while matches!(stream.message().await, Ok(Some(_))) {} };
    // That more may come is the point.
    drop(timeout(GATHERED, all).await);
}

async fn list(containerd: &Containerd, weighed: &mut Weighed, images: &watch::Sender<Option<Vec<Image>>>) {
    match list_images(containerd, weighed).await {
        Ok(found) => {
            images.send_if_modified(|known| {
                let is_new = known.as_ref() != Some(&found);
                *known = Some(found);
                is_new
            });
        }
        Err(error) => tracing::debug!(error = with_causes(&error), "images cannot be listed now"),
    }
}
