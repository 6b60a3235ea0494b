use http_body_util::BodyExt as _;
use serde_json::json;

use super::*;
use crate::{
    causes::with_causes,
    cluster::connection::tests::{
        Node,
        server::{Authority, Server},
        trusting, until, watch as watched, who,
    },
};

mod others;
mod refused;

/// A renewal may take a quarter of it.
const LEASE_SECONDS: u32 = 8;

/// A test of a node whose lease is kept meanwhile.
async fn while_kept(node: &str, test: impl AsyncFnOnce(&Server, &Clients)) {
    let authority = Authority::new("ours");
    let server = Server::start_http2(&authority, &["127.0.0.1"], 100).await;
    let cluster = trusting(&server.url(), &authority);
    let kubeconfig = Node::with(cluster, json!({}));
    let clients = Clients::new(kubeconfig.connection().await.unwrap());
    let (_uid, known) = watch::channel(Some("u".to_owned()));
    tokio::select! {
        () = keep(clients.clone(), node.to_owned(), LEASE_SECONDS, known) => panic!("the lease is kept"),
        () = test(&server, &clients) => {}
    }
}

/// Nothing else says so before a ping does, whose time is longer.
#[tokio::test]
async fn connections_that_are_silent_are_given_up_with_a_renewal_that_fails() {
    let test = async |server: &Server, clients: &Clients| {
        let mut watch = watched(&clients.get()).await.into_body();
        // A watch, and a lease that was read and made.
        until(|| server.requests() > 2).await;
        server.silence();
        let asked = who(&clients.get()).await.unwrap_err().to_string();
        assert!(asked.contains("was given up"), "{asked}");
        let error = watch.frame().await.unwrap().unwrap_err();
        assert!(with_causes(&error).contains("was given up"), "{error}");
        // The lease is renewed on another one.
        until(|| server.connections() > 1).await;
        who(&clients.get()).await.unwrap();
        assert_eq!(server.connections(), 2);
    };
    while_kept("n", test).await;
}

/// A server that refuses is there: another connection to it would help nobody.
#[tokio::test]
async fn connections_stay_when_renewals_are_refused() {
    let test = async |server: &Server, clients: &Clients| {
        let mut watch = watched(&clients.get()).await.into_body();
        until(|| server.requests() > 4).await;
        assert_eq!(server.connections(), 1);
        tokio::time::timeout(Duration::from_millis(10), watch.frame()).await.unwrap_err();
    };
    while_kept("refused", test).await;
}
