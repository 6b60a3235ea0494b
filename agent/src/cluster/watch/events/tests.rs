use std::{
    thread::{self, ThreadId},
    time::Duration,
};

use kube::{client::Body, core::WatchEvent};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::*;

/// Where an object was read, and its name.
#[derive(Debug)]
struct Noted {
    name: String,
    on: ThreadId,
}

impl<'de> Deserialize<'de> for Noted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        Ok(Self { name: object["name"].as_str().unwrap().to_owned(), on: thread::current().id() })
    }
}

fn line(name: &str, bytes: usize) -> String {
    let object = json!({ "name": name, "padding": "x".repeat(bytes) });
    format!("{}\n", json!({ "type": "ADDED", "object": object }))
}

#[tokio::test]
async fn large_events_are_read_elsewhere_and_in_their_order() {
    let all = [("a", 0), ("b", AT_ONCE_BYTES), ("c", 10), ("d", 8 << 20), ("e", 9 << 20), ("f", 0)];
    let text: String = all.iter().map(|(name, bytes)| line(name, *bytes)).collect();
    let client = kube::Client::new(
        tower::service_fn(|_: http::Request<Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
        }),
        "default",
    );
    let mut clients = Clients::new(client);
    let mut events = Events::<Noted>::of(Lines::of(Body::from(text.into_bytes())));
    let (mut found, here) = (Vec::new(), thread::current().id());
    while found.len() < all.len() {
        // Whoever waits for it does something else meanwhile.
        let until = Instant::now() + Duration::from_secs(60);
        match tokio::time::timeout(Duration::from_millis(1), events.next(until, &mut clients)).await {
            Ok(Ok(Next::Line(Read::Event(WatchEvent::Added(noted)), _))) => {
                found.push((noted.name, noted.on == here));
            }
            Ok(other) => panic!("{other:?}"),
            Err(_elsewhere) => {}
        }
    }
    let wanted = all.map(|(name, bytes)| (name.to_owned(), bytes < AT_ONCE_BYTES));
    assert_eq!(found, wanted);
    let end = events.next(Instant::now() + Duration::from_secs(60), &mut clients).await;
    assert!(matches!(end, Ok(Next::End)), "{end:?}");
    assert!(events.has_told);
}
