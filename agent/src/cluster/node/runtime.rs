//! Whether containerd answers, asked all along: what its silence means is decided in `berth_core::cluster::node`.

use std::time::Duration;

use berth_core::cluster::node::Health;
use tokio::sync::watch;

use crate::{
    clock,
    runtime::{CallError, Cause, Containerd},
};

/// How often a containerd that answers is asked: as often as the node is computed by default.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How often one is that does not, so that the node is ready again within a second of its coming back.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long an answer may take before the question counts as unanswered for now. It is still waited for.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Asks until the agent stops. What is sent changes when containerd falls silent, and when it answers again.
pub(super) async fn ask(containerd: Containerd, health: watch::Sender<Health>) {
    let version = move || {
        let containerd = containerd.clone();
        async move { containerd.version().await }
    };
    ask_by(version, health).await;
}

/// The same by what asks for the version.
async fn ask_by<F>(version: impl Fn() -> F, health: watch::Sender<Health>)
where
    F: Future<Output = Result<String, CallError>>,
{
    loop {
        let begun = clock::mono();
        let is_silent = || {
            health.send_if_modified(|health| {
                let is_new = health.silent_since.is_none();
                health.silent_since.get_or_insert(begun);
                is_new
            });
        };
        let asked = version();
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
        let Some(told) = answers else {
            is_silent();
            tokio::time::sleep(ASK_AGAIN).await;
            continue;
        };
        health.send_if_modified(|health| {
            let before = health.clone();
            health.silent_since = None;
            health.version = told.or_else(|| health.version.take());
            *health != before
        });
        tokio::time::sleep(ASK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{Instant, sleep, timeout};
    use tonic::Code;

    use super::*;

    /// What containerd does when it is asked.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Does {
        Answers,
        /// The same after five seconds.
        Dawdles,
        Refuses,
        IsAway,
    }

    use Does::{Answers, Dawdles, IsAway, Refuses};

    async fn answer(does: Does) -> Result<String, CallError> {
        if does == Dawdles {
            sleep(Duration::from_secs(5)).await;
        }
        let cause = match does {
            Answers | Dawdles => return Ok("v2.1.0".to_owned()),
            Refuses => Cause::Refused { code: Code::Unimplemented, message: String::new() },
            IsAway => Cause::Unreachable("connection refused".to_owned()),
        };
        Err(CallError::new("ask the version of", "", cause))
    }

    /// What is told within half a minute of a containerd that does these, and the last of them again and again: after how many tenths of
    /// a second, whether it is silent, and whether its version is known.
    async fn told(all: &[Does]) -> Vec<(u128, bool, bool)> {
        let (health, mut heard) = watch::channel(Health::default());
        let (began, asked) = (Instant::now(), AtomicUsize::new(0));
        let version = || answer(all[asked.fetch_add(1, Ordering::Relaxed).min(all.len() - 1)]);
        let mut told = Vec::new();
        let hearing = async {
            while heard.changed().await.is_ok() {
                let health = heard.borrow_and_update();
                let tenths = began.elapsed().as_millis() / 100;
                told.push((tenths, health.silent_since.is_some(), health.version.is_some()));
            }
        };
        let both = async { tokio::join!(ask_by(version, health), hearing) };
        timeout(Duration::from_secs(30), both).await.unwrap_err();
        told
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_told_once_and_its_end_within_a_second() {
        for (does, expected) in [
            (&[Answers][..], &[(0, false, true)][..]),
            (&[IsAway, IsAway, IsAway, Answers], &[(0, true, false), (15, false, true)]),
            (&[Answers, IsAway, Answers], &[(0, false, true), (100, true, true), (105, false, true)]),
            (&[Dawdles, Answers], &[(10, true, false), (50, false, true)]),
            // A refusal is an answer, and tells no version.
            (&[Refuses], &[]),
            (&[Answers, Refuses], &[(0, false, true)]),
            (&[IsAway, Refuses, Answers], &[(0, true, false), (5, false, false), (105, false, true)]),
        ] {
            assert_eq!(told(does).await, expected, "{does:?}");
        }
    }
}
