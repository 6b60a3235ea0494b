//! Commands whose outputs are the answer.

use std::{sync::atomic::Ordering, time::Duration};

use berth_core::{
    id::{ContainerName, PodName},
    server::{ContainerPath, PodPath},
};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout};

use super::world::{LONG, World};
use crate::server::{
    Response,
    streaming::{places::POD_MAX, run, run::NAMESPACE_MAX},
};

async fn answer(world: &World, command: &str) -> Response {
    let name = PodName { namespace: "shop".to_owned(), name: "web".to_owned() };
    let path = ContainerPath { pod: PodPath { name, uid: None }, container: ContainerName::new("app") };
    let request = Request::get(format!("/run/shop/web/app?cmd={command}")).body(()).unwrap();
    timeout(2 * LONG, run(&world.streaming, &path, request)).await.unwrap()
}

#[tokio::test]
async fn outputs_have_their_places_until_they_were_taken() {
    let world = World::start().await;
    let pod = world.streaming.view.pods().remove(0);
    for (command, status) in
        [("fail+0+err", StatusCode::OK), ("fail+3+err", StatusCode::INTERNAL_SERVER_ERROR)]
    {
        let mut held = Vec::new();
        for _ in 0..NAMESPACE_MAX {
            let given = answer(&world, command).await;
            assert_eq!(given.status(), status);
            held.push(given);
        }
        assert_eq!(answer(&world, command).await.status(), StatusCode::TOO_MANY_REQUESTS);
        let sessions: Vec<_> = (0..POD_MAX).map_while(|_| world.streaming.place(&pod).ok()).collect();
        assert_eq!(sessions.len(), POD_MAX - NAMESPACE_MAX, "each is a session too");
        drop(sessions);
        held.pop();
        assert_eq!(answer(&world, command).await.status(), status);
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_does_not_end_is_ended_and_leaves_nothing() {
    let world = World::start().await;
    let pod = world.streaming.view.pods().remove(0);
    let begun = Instant::now();
    let given = answer(&world, "cat").await;
    assert!(begun.elapsed() >= LONG, "{:?}", begun.elapsed());
    assert_eq!(world.seen.begun.lock().unwrap().len(), 1, "it was begun");
    assert_eq!(given.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let text = given.into_body().collect().await.unwrap().to_bytes();
    let expected = format!("the command ran for {} s, which is as long as it may", LONG.as_secs());
    assert!(text.starts_with(expected.as_bytes()), "{text:?}");
    let gone = async {
        while world.seen.running.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, gone).await.expect("the end of the command");
    let sessions: Vec<_> = (0..POD_MAX).map_while(|_| world.streaming.place(&pod).ok()).collect();
    assert_eq!(sessions.len(), POD_MAX, "its place is free");
}
