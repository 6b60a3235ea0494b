//! The node's CSINode, seen to once for each Node object. One that goes while its node stays is made again when an agent begins anew, and
//! not before, as under the kubelet.

use std::time::Duration;

use berth_core::cluster::{
    csi_node::{Ask, CsiNode, Failure, Origin, Owner, Tries, first, next},
    node::backoff,
};
use k8s_openapi::api::storage::v1::CSINode;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
    core::{ApiResource, DynamicObject},
};
use serde_json::Value;
use tokio::sync::watch;

use super::keep::{object, value};
use crate::{
    clock,
    cluster::{ApiError, Clients, client::within},
};

/// How long the API server may take to answer, and the longest pause after what has failed.
const LIMIT: Duration = Duration::from_secs(10);

/// The task and what it owns.
#[derive(Debug)]
pub(super) struct Initializer {
    pub(super) clients: Clients,
    /// Name of the node.
    pub(super) node: String,
    /// UID of the Node object that this agent has made.
    pub(super) made: watch::Receiver<Option<String>>,
    /// What has become of the CSINode.
    pub(super) state: watch::Sender<CsiNode>,
}

impl Initializer {
    /// Sees to that of each Node object whose UID is told, until nobody tells of any.
    pub(super) async fn run(self, mut uid: watch::Receiver<Option<String>>) {
        loop {
            let owner = match uid.wait_for(Option::is_some).await {
                Ok(uid) => uid.clone().unwrap_or_default(),
                // Who tells it has ended.
                Err(_closed) => return,
            };
            let initialized = async {
                self.initialize(&owner).await;
                std::future::pending::<()>().await;
            };
            let told_another = async {
                let other = uid.wait_for(|now| now.as_deref() != Some(owner.as_str())).await;
                other.is_ok()
            };
            tokio::select! {
                () = initialized => {}
                is_told = told_another => if !is_told { return },
            }
        }
    }

    /// Asks until it is there.
    async fn initialize(&self, uid: &str) {
        if self.state.borrow().is_there(uid) {
            return;
        }
        let owner = Owner { node: &self.node, uid };
        let mut tries = Tries::new(clock::mono());
        let mut ask = first(owner, self.origin(uid));
        self.state.send_replace(tries.state(uid));
        loop {
            match self.answer(&ask).await {
                Ok(found) => {
                    tries.succeeded(&ask);
                    match next(&ask, owner, found.as_ref()) {
                        Some(following) => ask = following,
                        None => break,
                    }
                }
                Err(error) => {
                    let why = error.to_string();
                    let failure = Failure { why: &why, is_away: error.is_away(), at: clock::mono() };
                    let failures = tries.failed(&ask, failure);
                    tell(&error, failures);
                    self.state.send_replace(tries.state(uid));
                    tokio::time::sleep(backoff(failures, error.retry_after(), LIMIT)).await;
                    // It may have been carried out all the same.
                    ask = Ask::Read;
                }
            }
        }
        tracing::info!(node = self.node, "the node has its CSINode");
        self.state.send_replace(CsiNode::There { owner: uid.to_owned() });
    }

    fn origin(&self, uid: &str) -> Origin {
        if self.made.borrow().as_deref() == Some(uid) { Origin::Made } else { Origin::Found }
    }

    /// The object of the answer, where there is one.
    async fn answer(&self, ask: &Ask) -> Result<Option<Value>, ApiError> {
        let resource = ApiResource::erase::<CSINode>(&());
        let api: Api<DynamicObject> = Api::all_with(self.clients.get(), &resource);
        let (name, params) = (self.node.as_str(), PostParams::default());
        let answer = match ask {
            Ask::Read => match within(LIMIT, api.get(name)).await {
                Ok(found) => Some(found),
                // Nor is there one where the server does not know the kind.
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error),
            },
            Ask::Make(new) => {
                let new = object(new.clone())?;
                Some(within(LIMIT, api.create(&params, &new)).await?)
            }
            Ask::Replace(new) => {
                let new = object(new.clone())?;
                Some(within(LIMIT, api.replace(name, &params, &new)).await?)
            }
            Ask::Remove(uid) => match within(LIMIT, api.delete(name, &removal(uid))).await {
                Err(error) if !error.is_not_found() => return Err(error),
                Ok(_) | Err(_) => None,
            },
        };
        let Some(answer) = answer else { return Ok(None) };
        if answer.name_any() != self.node || answer.uid().is_none() {
            return Err(ApiError::Unusable("it is about another object".to_owned()));
        }
        value(&answer).map(Some)
    }
}

fn tell(error: &ApiError, failures: u32) {
    if failures == 1 {
        tracing::warn!(%error, "the node has no CSINode yet; it is tried again");
    } else {
        tracing::debug!(%error, failures, "the node has no CSINode yet");
    }
}

/// Of the one of this UID, and of no other.
fn removal(uid: &str) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

#[cfg(test)]
mod tests;
