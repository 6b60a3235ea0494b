//! The Lease, renewed all along. Source: `k8s.io/component-helpers/apimachinery/lease/controller.go`.

use std::time::Duration;

use berth_core::cluster::{
    lease::{Holder, NAMESPACE, is_silence_given_up, renew_every, renewed},
    node::{backoff, jittered},
};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::PostParams,
    core::{ApiResource, DynamicObject},
};
use serde_json::Value;
use tokio::{sync::watch, time::Instant};

use super::keep::{chance, object, value};
use crate::cluster::{ApiError, Clients, client::within, connection};

/// Keeps the lease of a node. It begins once the node has a UID, since a lease goes away with its node.
pub(super) async fn keep(
    clients: Clients,
    node: String,
    seconds: u32,
    mut uid: watch::Receiver<Option<String>>,
) {
    let every = renew_every(seconds);
    let mut known = None;
    let mut failures = 0_u32;
    loop {
        let owner = match uid.wait_for(Option::is_some).await {
            Ok(uid) => uid.clone().unwrap_or_default(),
            // Who tells it has ended.
            Err(_closed) => return,
        };
        let begun = Instant::now();
        let holder = Holder { node: &node, uid: &owner, seconds };
        let pause = match renew(&clients, known.as_ref(), holder, every).await {
            Ok(lease) => {
                if failures > 1 {
                    tracing::info!("the node's lease is renewed again");
                }
                (known, failures) = (Some(lease), 0);
                jittered(every, chance())
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                // It may have been changed, or be gone.
                known = None;
                if failures == 2 {
                    tracing::warn!(%error, "renew the node's lease");
                }
                if error.is_unanswered() && is_silence_given_up(failures) {
                    give_up_silent(&clients, every.max(connection::SILENT));
                }
                backoff(failures, error.retry_after(), every)
            }
        };
        tokio::time::sleep_until(begun + pause).await;
    }
}

/// Renews the lease that is known, else the one that there is, else makes one.
async fn renew(
    clients: &Clients,
    known: Option<&Value>,
    holder: Holder<'_>,
    limit: Duration,
) -> Result<Value, ApiError> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(clients.get(), NAMESPACE, &ApiResource::erase::<Lease>(&()));
    let params = PostParams::default();
    let existing = match known {
        Some(known) => Some(known.clone()),
        None => within(limit, api.get_opt(holder.node)).await?.map(|lease| value(&lease)).transpose()?,
    };
    let lease = object(renewed(existing.as_ref(), holder, Timestamp::now()))?;
    let sent = match existing {
        Some(_) => within(limit, api.replace(holder.node, &params, &lease)).await?,
        None => within(limit, api.create(&params, &lease)).await?,
    };
    value(&sent)
}

/// Has requests and watches that wait for a server that is not heard begin anew.
fn give_up_silent(clients: &Clients, least: Duration) {
    let connections = clients.cut_silent(least);
    if connections > 0 {
        tracing::warn!(connections, "nothing comes from the API server: connections are made anew");
    }
}

#[cfg(test)]
mod tests;
