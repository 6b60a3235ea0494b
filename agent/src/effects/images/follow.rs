//! Images of the node, listed when one has come or gone. Containerd's events tell of that.

use std::time::Duration;

use berth_core::cluster::node::Image;
use containerd_client::services::v1::SubscribeRequest;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    forget::{There, forget},
    listed::{Listed, list_images},
};
use crate::{
    causes::with_causes,
    effects::{PullsUnderWay, image_ids::Weighed},
    runtime::Containerd,
};

/// How often images are listed though no event came: one may have been lost.
const LIST_EVERY: Duration = Duration::from_secs(300);
/// How long events are gathered before a list: a pull makes several.
const GATHERED: Duration = Duration::from_secs(1);
/// Between two tries to hear of events.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Lists them until the agent stops. What was kept of pulls goes with their images.
pub async fn follow_images(
    containerd: Containerd,
    pulls: PullsUnderWay,
    root: String,
    images: watch::Sender<Option<Vec<Image>>>,
) {
    let mut follower = Follower { containerd, pulls, root, images, weighed: Weighed::default() };
    let containerd = follower.containerd.clone();
    loop {
        let request = SubscribeRequest { filters: vec!["topic~=\"^/images/\"".to_owned()] };
        let mut client = containerd.events();
        // A stream without events does not begin, so the list cannot wait for it.
        follower.list().await;
        let stream = timeout(LIST_EVERY, client.subscribe(request)).await;
        if let Ok(Ok(answer)) = stream {
            let mut stream = answer.into_inner();
            loop {
                follower.list().await;
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

/// Who lists, and what is known from one time to the next.
struct Follower {
    containerd: Containerd,
    pulls: PullsUnderWay,
    /// The root directory.
    root: String,
    images: watch::Sender<Option<Vec<Image>>>,
    weighed: Weighed,
}

impl Follower {
    async fn list(&mut self) {
        self.pulls.list_begins();
        let Listed { images, is_whole } = match list_images(&self.containerd, &mut self.weighed).await {
            Ok(listed) => listed,
            Err(error) => {
                return tracing::debug!(error = with_causes(&error), "images cannot be listed now");
            }
        };
        let there = is_whole.then(|| There::of(&images));
        let is_new = self.images.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(&images);
            *known = Some(images);
            is_new
        });
        if let Some(there) = there.filter(|_| is_new) {
            forget(&self.pulls, &self.root, there).await;
        }
    }
}
