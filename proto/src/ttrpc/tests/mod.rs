//! Frames on literals, whole exchanges against bytes that Go's implementation wrote, and properties of any input.

mod exchange;
mod frames;
mod go;
mod properties;

use super::{Client, Event, MessageType, Request, Server};

/// A frame as it goes over the wire.
fn wire(stream: u32, kind: MessageType, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    super::encode(stream, kind, super::Flags(flags), payload, &mut out).unwrap();
    out
}

fn request(method: &str) -> Request {
    Request { service: "test.Echo".to_owned(), method: method.to_owned(), ..Request::default() }
}

/// Gives each end what the other has written.
fn exchange(client: &mut Client, server: &mut Server) {
    server.feed(&client.output().take());
    client.feed(&server.output().take());
}

/// The next event, which must be a call.
fn next_call(server: &mut Server) -> (u32, super::Mode, Request) {
    match server.poll() {
        Some(Event::Call { stream, mode, request }) => (stream, mode, request),
        other => panic!("expected a call, found {other:?}"),
    }
}
