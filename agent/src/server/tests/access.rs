//! Nobody is let in who may not: every route, with every wrong way to ask for it.

use std::time::Duration;

use berth_core::server::Kind;
use rcgen::{DnType, ExtendedKeyUsagePurpose};
use serde_json::Value;

use super::{
    client::{ask, request},
    pki::{Authority, Identity, Wanted},
    world::{Decides, Settings, World},
};

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";

#[tokio::test]
async fn whoever_may_is_answered_and_has_streams() {
    let world = World::start(Settings::default()).await;
    let admin = world.authority.client("admin");
    for (kind, method, path) in Kind::all_examples() {
        assert_eq!(world.ask(Some(&admin), method, path, "").await.status, 200, "{method} {path}");
        let by_token = world.ask(None, method, path, "Authorization: Bearer good-admin\r\n").await;
        assert_eq!(by_token.status, 200, "{method} {path}");
        let expected = if kind.is_stream() { 101 } else { 500 };
        assert_eq!(world.ask(Some(&admin), method, path, UPGRADE).await.status, expected, "{method} {path}");
    }
}

/// All who may not: what they show, and what they hear.
fn outsiders(world: &World) -> Vec<(&'static str, Option<Identity>, &'static str, u16)> {
    let named = |name| [(DnType::CommonName, name)];
    let client = [ExtendedKeyUsagePurpose::ClientAuth];
    let of = |names: &[(DnType, &str)], years, usages: &[ExtendedKeyUsagePurpose]| {
        Some(world.authority.sign(&Wanted { names, years, usages }))
    };
    vec![
        ("nothing", None, "", 401),
        ("another authority", Some(Authority::new().client("admin")), "", 401),
        ("it is over", of(&named("admin"), (2000, 2001), &client), "", 401),
        ("it is not yet", of(&named("admin"), (2900, 2901), &client), "", 401),
        ("of a server", of(&named("admin"), (2020, 2999), &[ExtendedKeyUsagePurpose::ServerAuth]), "", 401),
        ("no name", of(&[(DnType::OrganizationName, "system:masters")], (2020, 2999), &client), "", 401),
        ("a wrong token", None, "Authorization: Bearer bad\r\n", 401),
        ("an unknown token", None, "Authorization: Bearer unknown\r\n", 401),
        ("a token of nobody", None, "Authorization: Bearer good-\r\n", 401),
        ("a password", None, "Authorization: Basic YWRtaW46YWRtaW4=\r\n", 401),
        ("a name that is only said", None, "X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n", 401),
        ("somebody else's node", None, "Authorization: Bearer good-elsewhere\r\n", 403),
        ("may nothing", None, "Authorization: Bearer good-somebody\r\n", 403),
        ("both allowed and forbidden", None, "Authorization: Bearer good-confused\r\n", 500),
    ]
}

#[tokio::test]
async fn nobody_else_is_let_in_anywhere() {
    let world = World::start(Settings::default()).await;
    for (who, identity, headers, expected) in outsiders(&world) {
        for (_, method, path) in Kind::all_examples() {
            for upgrade in ["", UPGRADE] {
                let heard = world.ask(identity.as_ref(), method, path, &format!("{headers}{upgrade}")).await;
                assert_eq!(heard.status, expected, "{who}: {method} {path} {upgrade}");
                assert!(!heard.head.contains("location"), "{}", heard.head);
            }
        }
    }
}

/// Roles of before the fine-grained subresources name `nodes/proxy` alone.
#[tokio::test]
async fn who_may_proxy_may_what_has_a_subresource_of_its_own_since() {
    // Nothing is kept, so each is asked about anew.
    let world = World::start(Settings { keep: Duration::ZERO, ..Settings::default() }).await;
    let old = world.authority.client("old");
    for (path, status, asked) in [
        ("/pods", 200, &["pods", "proxy"][..]),
        ("/runningpods/", 200, &["pods", "proxy"]),
        ("/healthz", 200, &["healthz", "proxy"]),
        ("/configz", 200, &["configz", "proxy"]),
        ("/metrics", 403, &["metrics"]),
        ("/stats/summary", 403, &["stats"]),
        ("/logs/", 403, &["log"]),
    ] {
        world.api.state().access.clear();
        assert_eq!(world.status(Some(&old), path).await, status, "{path}");
        let state = world.api.state();
        let subresource = |spec: &Value| spec["resourceAttributes"]["subresource"].clone();
        assert_eq!(state.access.iter().map(subresource).collect::<Vec<_>>(), asked, "{path}");
    }
}

#[tokio::test]
async fn nobody_is_let_in_by_another_spelling() {
    let world = World::start(Settings::default()).await;
    let (admin, reader) = (world.authority.client("admin"), world.authority.client("reader"));
    assert_eq!(world.status(Some(&reader), "/metrics").await, 200);
    for (_, method, path) in Kind::all_examples() {
        for spelled in [
            format!("/{path}"),
            format!("/metrics/..{path}"),
            format!("/metrics/%2e%2e{path}"),
            format!("/metrics%2f..{path}"),
            format!("/.{path}"),
            format!("{path}/../metrics"),
            format!("{path}%00"),
            format!("{path}%2f"),
        ] {
            for (identity, allowed) in
                [(Some(&admin), &[404, 400][..]), (Some(&reader), &[403, 404, 400]), (None, &[401])]
            {
                for upgrade in ["", UPGRADE] {
                    let heard = world.ask(identity, method, &spelled, upgrade).await;
                    assert!(allowed.contains(&heard.status), "{method} {spelled}: {heard:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn while_nobody_can_be_asked_nobody_is_let_in() {
    for code in [500, 503, 403, 401] {
        // Nothing is kept for longer than no time at all.
        for keep in [Duration::ZERO, Duration::from_nanos(1)] {
            let world = World::start(Settings { keep, ..Settings::default() }).await;
            let admin = world.authority.client("admin");
            assert_eq!(world.status_of_token("good-admin", "/pods").await, 200);
            assert_eq!(world.status(Some(&admin), "/pods").await, 200);
            world.api.state().fails_with = Some(code);
            for (_, method, path) in Kind::all_examples().step_by(5) {
                for upgrade in ["", UPGRADE] {
                    let token = format!("Authorization: Bearer good-admin\r\n{upgrade}");
                    assert_eq!(world.ask(None, method, path, &token).await.status, 401, "{code} {path}");
                    let heard = world.ask(Some(&admin), method, path, upgrade).await;
                    assert_eq!(heard.status, 500, "{code} {path}");
                    assert!(heard.body.starts_with("Authorization error (user=admin, verb="), "{heard:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn what_was_said_is_kept_and_counts_when_nobody_can_be_asked() {
    let world = World::start(Settings::default()).await;
    for _ in 0..3 {
        assert_eq!(world.status_of_token("good-admin", "/pods").await, 200);
        assert_eq!(world.status_of_token("unknown", "/pods").await, 401);
        assert_eq!(world.status_of_token("good-somebody", "/pods").await, 403);
    }
    {
        let state = world.api.state();
        assert_eq!((state.tokens.len(), state.access.len()), (3, 3), "{:?}", state.access);
        assert_eq!(state.tokens[0], serde_json::json!({ "token": "good-admin" }));
        assert_eq!(
            state.access[0],
            serde_json::json!({
                "user": "admin", "uid": "u-1", "groups": ["testers", "system:authenticated"],
                "extra": { "example.com/a": ["b"] },
                "resourceAttributes": {
                    "verb": "get", "version": "v1", "resource": "nodes", "subresource": "pods", "name": "node-1",
                },
            })
        );
    }
    world.api.state().fails_with = Some(503);
    assert_eq!(world.status_of_token("good-admin", "/pods").await, 200);
    assert_eq!(world.status_of_token("good-admin", "/metrics").await, 500, "that was never asked");
    assert_eq!(world.status_of_token("good-other", "/pods").await, 401);
}

#[tokio::test]
async fn what_failed_is_asked_again() {
    let world = World::start(Settings::default()).await;
    for _ in 0..2 {
        assert_eq!(world.status_of_token("bad", "/pods").await, 401);
    }
    assert_eq!(world.api.state().tokens.len(), 2, "a token may be one that the API server does not know yet");
    world.api.state().fails_with = Some(500);
    assert_eq!(world.status_of_token("good-admin", "/pods").await, 401);
    assert_eq!(world.api.state().tokens.len(), 2 + 5, "it was tried so often");
    world.api.state().fails_with = None;
    assert_eq!(world.status_of_token("good-admin", "/pods").await, 200);
}

#[tokio::test]
async fn refusals_are_said_as_the_kubelet_says_them() {
    let world = World::start(Settings::default()).await;
    let unknown = world.ask(None, "GET", "/pods", "").await;
    assert_eq!((unknown.status, unknown.body.as_str()), (401, "Unauthorized"));
    let reader = world.authority.client("reader");
    let forbidden = world.ask(Some(&reader), "GET", "/pods", "").await;
    let expected = "Forbidden (user=reader, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
    assert_eq!((forbidden.status, forbidden.body.as_str()), (403, expected));
    let admin = world.authority.client("admin");
    for (path, status, body) in
        [("/x", 404, "404 page not found\n"), ("/healthz/x", 404, "404 page not found\n")]
    {
        let heard = world.ask(Some(&admin), "GET", path, "").await;
        assert_eq!((heard.status, heard.body.as_str()), (status, body));
    }
    for (path, allow) in [("/pods", "GET"), ("/stats/summary", "GET, POST")] {
        let heard = world.ask(Some(&admin), "DELETE", path, "").await;
        assert_eq!((heard.status, heard.body.as_str()), (405, "405: Method Not Allowed"));
        assert!(heard.head.contains(&format!("allow: {allow}\r\n")), "{}", heard.head);
    }
}

#[tokio::test]
async fn somebody_who_says_nothing_is_somebody_only_where_that_is_asked_for() {
    let world =
        World::start(Settings { anonymous: true, decides: Decides::AlwaysAllow, ..Settings::default() })
            .await;
    assert_eq!(world.status(None, "/pods").await, 200);
    assert_eq!(world.status_of_token("bad", "/pods").await, 401);
    assert_eq!(world.status(Some(&Authority::new().client("admin")), "/pods").await, 401);
    let world = World::start(Settings { anonymous: true, ..Settings::default() }).await;
    let heard = world.ask(None, "GET", "/pods", "").await;
    assert!(heard.status == 403 && heard.body.contains("user=system:anonymous"), "{heard:?}");
    let spec = world.api.state().access[0].clone();
    assert_eq!(spec["groups"], serde_json::json!(["system:unauthenticated"]));
}

/// A refused upgrade leaves no open way: what comes next on the connection is a request, and judged as one.
#[tokio::test]
async fn cve_2018_1002105_a_refused_upgrade_opens_nothing() {
    let world = World::start(Settings::default()).await;
    let mut stream = world.connect(None).await;
    for next in [request("POST", "/exec/ns/p/c", UPGRADE), request("GET", "/pods", "")] {
        assert_eq!(ask(&mut stream, &next).await.unwrap().status, 401);
    }
    let reader = world.authority.client("reader");
    let mut stream = world.connect(Some(&reader)).await;
    assert_eq!(ask(&mut stream, &request("POST", "/exec/ns/p/c", UPGRADE)).await.unwrap().status, 403);
    assert_eq!(ask(&mut stream, &request("GET", "/pods", "")).await.unwrap().status, 403);
    assert_eq!(ask(&mut stream, &request("GET", "/metrics", "")).await.unwrap().status, 200);
}

/// Each request of a connection is judged by itself.
#[tokio::test]
async fn who_was_let_in_once_is_asked_again() {
    let world = World::start(Settings { keep: Duration::ZERO, ..Settings::default() }).await;
    let mut stream = world.connect(None).await;
    let with = request("GET", "/pods", "Authorization: Bearer good-admin\r\n");
    assert_eq!(ask(&mut stream, &with).await.unwrap().status, 200);
    assert_eq!(ask(&mut stream, &request("GET", "/pods", "")).await.unwrap().status, 401);
    assert_eq!(ask(&mut stream, &with).await.unwrap().status, 200);
}
