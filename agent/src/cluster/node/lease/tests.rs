use http_body_util::BodyExt as _;
use serde_json::json;

use super::*;
use crate::{
    causes::with_causes,
    cluster::connection::tests::{
        Node, data,
        server::{Authority, Server},
        until, watch as watched, who,
    },
};

mod others;

/// A renewal may take a quarter of it.
const LEASE_SECONDS: u32 = 8;

/// Nothing else says so before a ping does, whose time is longer.
#[tokio::test]
async fn connections_that_are_silent_are_given_up_with_a_renewal_that_fails() {
    let authority = Authority::new("ours");
    let server = Server::start_http2(&authority, &["127.0.0.1"], 100).await;
    let cluster = json!({ "server": server.url(), "certificate-authority-data": data(&authority.pem()) });
    let node = Node::with(cluster, json!({}));
    let clients = Clients::new(node.connection().await.unwrap());
    let (_uid, known) = watch::channel(Some("u".to_owned()));
    let keeping = keep(clients.clone(), "n".to_owned(), LEASE_SECONDS, known);
    let test = async {
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
    tokio::select! {
        () = keeping => panic!("the lease is kept"),
        () = test => {}
    }
}

/// A server that refuses is there: another connection to it would help nobody.
#[tokio::test]
async fn connections_stay_when_renewals_are_refused() {
    let authority = Authority::new("ours");
    let server = Server::start_http2(&authority, &["127.0.0.1"], 100).await;
    let cluster = json!({ "server": server.url(), "certificate-authority-data": data(&authority.pem()) });
    let node = Node::with(cluster, json!({}));
    let clients = Clients::new(node.connection().await.unwrap());
    let (_uid, known) = watch::channel(Some("u".to_owned()));
    let keeping = keep(clients.clone(), "refused".to_owned(), LEASE_SECONDS, known);
    let test = async {
        let mut watch = watched(&clients.get()).await.into_body();
        until(|| server.requests() > 4).await;
        assert_eq!(server.connections(), 1);
        tokio::time::timeout(Duration::from_millis(10), watch.frame()).await.unwrap_err();
    };
    tokio::select! {
        () = keeping => panic!("the lease is kept"),
        () = test => {}
    }
}
