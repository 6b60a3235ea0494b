//! An exchange recorded between a client and a server of github.com/containerd/ttrpc v1.2.10: what each of ours writes
//! in the place of either must be the same bytes.

use std::time::Duration;

use prost::Message;

use super::super::*;
use super::next_call;
use crate::events::TaskOom;

const CLIENT: &[u8] = include_bytes!("go_client.bin");
const SERVER: &[u8] = include_bytes!("go_server.bin");

fn text(text: &str) -> TaskOom {
    TaskOom { container_id: text.to_owned() }
}

fn call<M: Message>(method: &str, message: &M) -> Request {
    Request::of("test.Echo", method, message, Duration::ZERO)
}

#[test]
fn our_client_writes_what_gos_client_wrote() {
    let mut client = Client::default();
    let mut first = call("Unary", &text("c1"));
    let (key, value) = ("containerd-namespace-ttrpc".to_owned(), "k8s.io".to_owned());
    first.metadata.push(KeyValue { key, value });
    client.call(&first).unwrap();
    for method in ["Empty", "Fails", "Missing"] {
        client.call(&call(method, &())).unwrap();
    }
    for (method, messages) in [("Both", ["a", ""]), ("Up", ["a", ""])] {
        if method == "Up" {
            client.call_server_streaming(&call("Down", &text("b"))).unwrap();
        }
        let stream = client.call_streaming(&call(method, &())).unwrap();
        for message in messages {
            client.send(stream, &text(message).encode_to_vec()).unwrap();
        }
        client.close_send(stream).unwrap();
    }
    let stream = client.call_streaming(&call("Both", &())).unwrap();
    client.send(stream, &text("fail").encode_to_vec()).unwrap();
    assert_eq!(client.output().take(), CLIENT);

    client.feed(SERVER);
    let replies: Vec<Reply> = std::iter::from_fn(|| client.poll()).collect();
    let end = |stream, result| Reply::End { stream, result };
    let data = |stream, message: &str| Reply::Data { stream, payload: text(message).encode_to_vec() };
    let expected = [
        end(1, Ok(text("re: c1").encode_to_vec())),
        end(3, Ok(Vec::new())),
        end(5, Err(Status::new(Code::NotFound, "container \"c1\" not found"))),
        end(7, Err(Status::new(Code::Unimplemented, "method Missing"))),
        data(9, "a"),
        data(9, ""),
        end(9, Ok(Vec::new())),
        data(11, "b"),
        data(11, "b"),
        end(11, Ok(Vec::new())),
        end(13, Ok(text("2").encode_to_vec())),
        end(15, Err(Status::new(Code::Aborted, "as asked"))),
    ];
    assert_eq!(replies, expected);
    assert_eq!(client.open_streams().count(), 0);
}

#[test]
fn our_server_writes_what_gos_server_wrote() {
    let mut server = Server::default();
    server.feed(CLIENT);
    let (first, _, request) = next_call(&mut server);
    assert_eq!(request.metadata[0].value, "k8s.io");
    assert_eq!(request.message::<TaskOom>().unwrap(), text("c1"));
    server.respond(first, Ok(text("re: c1").encode_to_vec()));
    let (empty, ..) = next_call(&mut server);
    server.respond(empty, Ok(Vec::new()));
    let (fails, ..) = next_call(&mut server);
    server.respond(fails, Err(Status::new(Code::NotFound, "container \"c1\" not found")));
    let (missing, ..) = next_call(&mut server);
    server.respond(missing, Err(Status::new(Code::Unimplemented, "method Missing")));

    assert_eq!(next_call(&mut server).1, Mode::ClientOpen);
    while let Some(Event::Data { stream, payload }) = server.poll() {
        server.send(stream, &payload).unwrap();
    }
    server.finish(9);
    let (down, mode, request) = next_call(&mut server);
    assert_eq!(mode, Mode::ClientClosed);
    server.send(down, &request.payload).unwrap();
    server.send(down, &request.payload).unwrap();
    server.finish(down);
    let (up, ..) = next_call(&mut server);
    let messages =
        std::iter::from_fn(|| server.poll()).take_while(|event| matches!(event, Event::Data { .. }));
    let count = messages.count();
    server.respond(up, Ok(text(&count.to_string()).encode_to_vec()));
    let (both, ..) = next_call(&mut server);
    assert_eq!(server.poll(), Some(Event::Data { stream: both, payload: text("fail").encode_to_vec() }));
    server.respond(both, Err(Status::new(Code::Aborted, "as asked")));
    assert_eq!(server.poll(), None);
    assert_eq!(server.output().take(), SERVER);
}
