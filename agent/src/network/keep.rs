//! The configuration as it changes: whether pods can be wired is asked anew, and told to the loop.

use std::time::Duration;

use berth_cni::{LoadError, Watch};
use berth_core::{derived::network::upkeep, event::Event};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{Network, NetworkError, PLUGINS_WITHIN};
use crate::causes::with_causes;

impl Network {
    /// Watches the configuration and tells whether pods can be wired; removes what is left over. `cidrs` are the ranges of addresses that
    /// the cluster gives the node. Runs until the agent stops.
    pub async fn keep(self, events: mpsc::Sender<Event>, cidrs: watch::Receiver<Vec<String>>) {
        tokio::select! {
            () = self.keep_looking(&events, cidrs) => {}
            () = self.keep_collecting() => {}
        }
    }

    async fn keep_looking(&self, events: &mpsc::Sender<Event>, mut cidrs: watch::Receiver<Vec<String>>) {
        let mut moved = self.0.plugins.changes();
        let mut conf_dir = self.0.plugins.conf_dir();
        let mut watch = Watch::new(&conf_dir).await.ok();
        let (mut has_changed, mut last) = (false, None);
        let (mut configured, mut unmade) = (Vec::new(), None);
        loop {
            let mut asked = self.status().await;
            let given = cidrs.borrow_and_update().clone();
            // Where others have put one, theirs counts; one that goes later is not made again.
            if given != configured {
                match asked {
                    Err(NetworkError::Load(_)) if self.make_conf(&given, &mut unmade).await => {
                        configured = given;
                        asked = self.status().await;
                    }
                    // Whether there is one is not known, or none could be made: looked at anew.
                    Err(NetworkError::Load(_) | NetworkError::Unanswered(_)) => {}
                    Ok(()) | Err(_) => configured = given,
                }
            }
            self.0.readiness.send_replace(Some(asked.as_ref().map(drop).map_err(condition)));
            let ready = asked.map_err(|error| with_causes(&error));
            if has_changed {
                tracing::info!(is_ready = ready.is_ok(), "network configuration has changed");
            }
            if last.as_ref() != Some(&ready) {
                match &ready {
                    Ok(()) => tracing::info!("network is ready"),
                    Err(why) => tracing::warn!(why, "network is not ready"),
                }
                if events.send(Event::NetworkReady(ready.clone())).await.is_err() {
                    return;
                }
            }
            let again = upkeep::look_after(ready.is_ok());
            last = Some(ready);
            let mut has_moved = false;
            // All of them are cancel safe: what has changed and was not told is told by the same watch.
            has_changed = tokio::select! {
                has_changed = changed_or_elapsed(&mut watch, again) => has_changed,
                // One that was changed is looked at anew.
                Ok(()) = moved.changed() => {
                    has_moved = true;
                    false
                }
                Ok(()) = cidrs.changed() => false,
            };
            if has_moved {
                conf_dir = self.0.plugins.conf_dir();
                watch = None;
            }
            if watch.is_none() {
                watch = Watch::new(&conf_dir).await.ok();
            }
        }
    }

    async fn status(&self) -> Result<(), NetworkError> {
        let list = self.load().await?;
        let runtime = self.0.plugins.attaching(&self.0.runtime);
        self.call(runtime.status(&list, Instant::now() + PLUGINS_WITHIN)).await
    }
}

/// Why the network is not ready, as go-cni says it to containerd's CRI: tools look for it in the node's condition.
fn condition(error: &NetworkError) -> String {
    match error {
        NetworkError::Load(LoadError::NoConfig(_)) => "cni plugin not initialized".to_owned(),
        error => with_causes(error),
    }
}

/// Waits for a change of the configuration, or until it is time; whether there was one. A watch that breaks is given up.
async fn changed_or_elapsed(watch: &mut Option<Watch>, again: Duration) -> bool {
    let Some(watching) = watch else {
        tokio::time::sleep(again).await;
        return false;
    };
    match tokio::time::timeout(again, watching.changed()).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(
                error = with_causes(&error),
                "changes of the network configuration are not seen at once"
            );
            *watch = None;
            false
        }
        Err(_elapsed) => false,
    }
}
