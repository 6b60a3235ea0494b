//! How processes are begun, and where.

use std::sync::Arc;

use berth_core::id::SandboxId;
use berth_proto::{
    EXEC_BY_COMMAND, FLOW_CONTROL,
    shim::{AttachStart, ExecStart, attach_input::What},
};
use tokio::time::timeout;

use super::{
    client::{SPDY, UPGRADE, WebSocket, ask, spdy},
    world::{LONG, SANDBOX, World},
};
use crate::config::{Handler, PodRuntime};

const V5: &str = "v5.channel.k8s.io";

#[tokio::test]
async fn processes_are_begun_as_the_query_and_the_container_say() {
    let exec = |container: &str, stdin, terminal| {
        let (container_id, command) = (container.to_owned(), vec!["cat".to_owned()]);
        What::Exec(ExecStart { container_id, stdin, command, terminal, ..ExecStart::default() })
    };
    let attach = |container: &str, [stdin, stdout, stderr]: [bool; 3]| {
        What::Attach(AttachStart { container_id: container.to_owned(), stdin, stdout, stderr })
    };
    let all = "input=1&output=1&error=1";
    let rows = [
        (format!("exec/shop/web/app?command=cat&{all}"), exec("app", true, false)),
        ("exec/shop/web/app?command=cat&output=1".to_owned(), exec("app", false, false)),
        // Whether it has a terminal and reads is for who asks to say, whatever the container's own has.
        (format!("exec/shop/web/closed?command=cat&tty=1&{all}"), exec("closed", true, true)),
        ("exec/shop/web/tty?command=cat&error=1".to_owned(), exec("tty", false, false)),
        (format!("attach/shop/web/app?{all}"), attach("app", [true, true, true])),
        ("attach/shop/web/app?output=1".to_owned(), attach("app", [false, true, false])),
        ("attach/shop/web/app?input=1".to_owned(), attach("app", [true, false, false])),
        ("attach/shop/web/app?error=1".to_owned(), attach("app", [false, false, true])),
        (format!("attach/shop/web/app?tty=1&{all}"), attach("app", [true, true, false])),
        (format!("attach/shop/web/once?{all}"), attach("once", [true, true, true])),
        (format!("attach/shop/web/closed?{all}"), attach("closed", [false, true, true])),
        // What a terminal shows comes as standard output, whatever the query says.
        (format!("attach/shop/web/tty?{all}"), attach("tty", [true, true, false])),
        (format!("attach/shop/web/once-tty?tty=1&{all}"), attach("once-tty", [true, true, false])),
    ];
    for version in [EXEC_BY_COMMAND, FLOW_CONTROL] {
        let world = World::with_shim(version).await;
        for (target, expected) in &rows {
            let client = WebSocket::open(world.address, &format!("/{target}"), V5).await;
            let begun = async {
                loop {
                    if let Some(begun) = world.seen.begun.lock().unwrap().pop() {
                        break begun;
                    }
                    tokio::task::yield_now().await;
                }
            };
            assert_eq!(timeout(LONG, begun).await.unwrap(), *expected, "{target}");
            drop(client);
        }
    }
}

/// Those have no way to ask for streams. Ports need none.
#[tokio::test]
async fn shims_of_others_are_not_asked_for_streams() {
    let world = World::start().await;
    let handler = Handler::of(PodRuntime::named("io.containerd.runc.v2"));
    world.streaming.handlers.keep(&SandboxId::from_known(SANDBOX), Arc::new(handler));
    let headers = [UPGRADE, SPDY, ("x-stream-protocol-version", "v4.channel.k8s.io")];
    let talk = async {
        for (target, headers) in [
            ("/exec/shop/web/app?command=cat&output=1", &headers[..]),
            ("/attach/shop/web/app?output=1", &headers),
            ("/run/shop/web/app?cmd=cat", &[]),
        ] {
            let answer = ask(world.address, "POST", target, headers).await;
            assert_eq!(answer.status, 501, "{target}");
            let text = answer.text().await;
            assert!(text.starts_with("the containers of pod shop/web run under a shim of others"), "{text}");
        }
        spdy(world.address, "/portForward/shop/web", "portforward.k8s.io").await;
    };
    timeout(LONG, talk).await.unwrap();
    assert!(world.seen.begun.lock().unwrap().is_empty());
}
