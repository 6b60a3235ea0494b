//! Whether containerd answers, asked all along: what its silence means is decided in `berth_core::cluster::node`.

use std::time::Duration;

use berth_core::cluster::node::Health;
use tokio::sync::watch;

use crate::{
    clock,
    runtime::{Cause, Containerd},
};

/// How often a containerd that answers is asked: as often as the node is computed by default.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How often one is that does not, so that the node is ready again within a second of its coming back.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long an answer may take before the question counts as unanswered for now. It is still waited for.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Asks until the agent stops. What is sent changes when containerd falls silent, and when it answers again.
pub(super) async fn ask(containerd: Containerd, health: watch::Sender<Health>) {
    loop {
        let begun = clock::mono();
        let is_silent = || {
            health.send_if_modified(|health| {
                let is_new = health.silent_since.is_none();
                health.silent_since.get_or_insert(begun);
                is_new
            });
        };
        let asked = containerd.version();
        tokio::pin!(asked);
        let in_time = tokio::time::timeout(SILENT_AFTER, &mut asked).await;
        let answer = match in_time {
            Ok(answer) => answer,
            Err(_elapsed) => {
                is_silent();
                asked.await
            }
        };
        let answers = match answer {
            Ok(version) => Some(Some(version)),
            // A refusal is an answer too.
            Err(error) if matches!(error.cause(), Cause::Refused { .. }) => Some(None),
            Err(_silent) => None,
        };
        let Some(version) = answers else {
            is_silent();
            tokio::time::sleep(ASK_AGAIN).await;
            continue;
        };
        health.send_if_modified(|health| {
            let before = health.clone();
            health.silent_since = None;
            health.version = version.or_else(|| health.version.take());
            *health != before
        });
        tokio::time::sleep(ASK_EVERY).await;
    }
}
