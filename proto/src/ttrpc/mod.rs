//! ttrpc without I/O: frames, statuses, and the two ends of a connection as state machines.
//!
//! The protocol is `PROTOCOL.md` of github.com/containerd/ttrpc, version 1.2. A connection multiplexes streams by id;
//! the end that connected opens them with odd, growing ids. Bytes read from the socket are given to [`Client::feed`] or
//! [`Server::feed`], what they mean is taken from `poll`, and bytes to write wait in [`Output`].

mod client;
mod frame;
mod output;
mod server;
mod status;
#[cfg(test)]
mod tests;

pub use client::{Client, ClientError, Reply};
pub use frame::{Decoder, Flags, Frame, FrameError, HEADER_LEN, MESSAGE_LEN_MAX, MessageType, encode};
pub use output::Output;
pub use server::{Event, Mode, STREAMS_MAX, Server};
pub use status::{Code, Status};

pub use crate::generated::ttrpc::{KeyValue, Request, Response};
