use std::sync::atomic::{AtomicUsize, Ordering};

use berth_core::cluster::spread::STREAMS_MAX;
use http::{Request, Response};
use kube::client::Body;

use super::*;

/// A connection whose clients are told apart by the namespace that they begin with, and how many were made.
fn connection(name: &'static str) -> (Connection, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let client = |namespace: String| {
        let service = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
        });
        Client::new(service, namespace)
    };
    let counted = Arc::clone(&made);
    let further = Box::new(move || {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        if number == 3 { Err("no more".to_owned()) } else { Ok(client(format!("{name}-{number}"))) }
    });
    (Connection { client: client(name.to_owned()), further, made_from: None }, made)
}

/// Who carries each of so many watches.
fn carried(clients: &mut Clients, places: &mut [Option<Place>]) -> Vec<String> {
    let mut all: Vec<String> =
        places.iter_mut().map(|place| clients.take_place(place).default_namespace().to_owned()).collect();
    all.dedup();
    all
}

#[tokio::test]
async fn many_watches_are_spread_over_clients_that_go_when_they_carry_none() {
    let (connection, made) = connection("a");
    let mut clients = Clients::new(connection);
    let mut places: Vec<Option<Place>> = (0..2 * STREAMS_MAX + 1).map(|_| None).collect();
    assert_eq!(carried(&mut clients, &mut places), ["a-0", "a-1", "a-2"]);
    assert_eq!(carried(&mut clients, &mut places), ["a-0", "a-1", "a-2"], "each stays where it is");
    assert_eq!((clients.get().default_namespace(), made.load(Ordering::SeqCst)), ("a", 3));
    let known = |clients: &Clients| clients.receiver.borrow().spread().clients.len();
    places.truncate(1);
    assert_eq!(known(&clients), 1);
    // Where no more can be made, they share the first one.
    places.extend((0..STREAMS_MAX).map(|_| None));
    assert_eq!(carried(&mut clients, &mut places), ["a-0", "a"]);
    drop(places);
    assert_eq!(known(&clients), 1, "one stays for the next watch");
}

#[tokio::test]
async fn all_are_replaced_together() {
    let ((first, _), (second, made)) = (connection("a"), connection("b"));
    let mut clients = Clients::new(first);
    let mut places: Vec<Option<Place>> = (0..=STREAMS_MAX).map(|_| None).collect();
    assert_eq!(carried(&mut clients, &mut places), ["a-0", "a-1"]);
    let before = Arc::downgrade(&clients.receiver.borrow());
    clients.replace(second);
    clients.replaced().await;
    assert_eq!(clients.get().default_namespace(), "b");
    assert_eq!(carried(&mut clients, &mut places), ["b-0", "b-1"]);
    assert_eq!(made.load(Ordering::SeqCst), 2);
    assert!(before.upgrade().is_none(), "nothing keeps those before");
}
