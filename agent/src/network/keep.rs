//! The configuration as it changes: whether pods can be wired is asked anew, and told to the loop.

use std::path::PathBuf;

use berth_cni::{LoadError, NetworkList};
use berth_core::{derived::network::upkeep, event::Event};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};

use super::{Network, NetworkError, PLUGINS_WITHIN, changes::Changes};
use crate::causes::with_causes;

/// What plugins are asked for their STATUS of.
#[derive(Debug, PartialEq)]
struct Question {
    list: NetworkList,
    bin_dirs: Vec<PathBuf>,
}

impl Network {
    /// Watches the configuration and tells whether pods can be wired; removes what is left over. `cidrs` are the ranges of addresses that
    /// the cluster gives the node. Runs until the agent stops.
    pub async fn keep(self, events: mpsc::Sender<Event>, cidrs: watch::Receiver<Vec<String>>) {
        tokio::select! {
            () = self.keep_looking(&events, cidrs) => {}
            () = self.keep_collecting() => {}
            () = self.tell_unheard(&events) => {}
        }
    }

    /// Tells when it is not known for too long whether pods can be wired. Runs until the agent stops.
    pub(super) async fn tell_unheard(&self, events: &mpsc::Sender<Event>) {
        sleep(upkeep::UNHEARD_AFTER).await;
        if self.0.readiness.borrow().is_none() {
            tracing::warn!("the network has not answered; pods that are to be wired are tried");
            // Fails only when the loop has ended. What is heard meanwhile is told after it.
            drop(events.send(Event::NetworkUnheard).await);
        }
        std::future::pending::<()>().await;
    }

    async fn keep_looking(&self, events: &mpsc::Sender<Event>, cidrs: watch::Receiver<Vec<String>>) {
        let mut changes = Changes::new(self.0.plugins.changes(), cidrs);
        let mut last = None;
        let (mut configured, mut unmade) = (Vec::new(), None);
        loop {
            let mut asked = self.status(&mut changes).await;
            let given = changes.cidrs();
            // Where others have put one, theirs counts; one that goes later is not made again.
            if given != configured {
                match asked {
                    Err(NetworkError::Load(_)) if self.make_conf(&given, &mut unmade).await => {
                        configured = given;
                        asked = self.status(&mut changes).await;
                    }
                    // Whether there is one is not known, or none could be made: looked at anew.
                    Err(NetworkError::Load(_) | NetworkError::Unanswered(_)) => {}
                    Ok(()) | Err(_) => configured = given,
                }
            }
            let told = asked.as_ref().map(drop).map_err(condition);
            self.0.readiness.send_replace(Some(told.clone()));
            let ready = asked.map_err(|error| with_causes(&error));
            if changes.take_conf_changed() {
                tracing::info!(is_ready = ready.is_ok(), "network configuration has changed");
            }
            if last.as_ref() != Some(&ready) {
                match &ready {
                    Ok(()) => tracing::info!("network is ready"),
                    Err(why) => tracing::warn!(why, "network is not ready"),
                }
                if events.send(Event::NetworkReady(told)).await.is_err() {
                    return;
                }
            }
            let again = upkeep::look_after(ready.is_ok());
            last = Some(ready);
            drop(timeout(again, changes.next()).await);
        }
    }

    /// Whether plugins are content. They are asked anew when a change makes it another question; any other change takes nothing from the
    /// time that they have.
    async fn status(&self, changes: &mut Changes) -> Result<(), NetworkError> {
        let mut question = self.question(changes).await?;
        loop {
            let other = {
                let runtime = self.0.plugins.attaching(&self.0.runtime);
                let answer = runtime.status(&question.list, Instant::now() + PLUGINS_WITHIN);
                let mut answer = Box::pin(self.call(answer));
                loop {
                    tokio::select! {
                        answer = &mut answer => return answer,
                        () = changes.next() => {}
                    }
                    let now = self.question(changes).await;
                    if now.as_ref().ok() != Some(&question) {
                        break now;
                    }
                }
            };
            question = other?;
        }
    }

    /// As it is now.
    async fn question(&self, changes: &mut Changes) -> Result<Question, NetworkError> {
        changes.follow(self.0.plugins.conf_dir()).await;
        Ok(Question { list: self.load().await?, bin_dirs: self.0.plugins.bin_dirs() })
    }
}

/// Why the network is not ready, as go-cni says it to containerd's CRI: tools look for it in the node's condition.
fn condition(error: &NetworkError) -> String {
    match error {
        NetworkError::Load(LoadError::NoConfig(_)) => "cni plugin not initialized".to_owned(),
        error => with_causes(error),
    }
}
