//! SPDY/3.1, the server's end of a connection.
//!
//! [`Connection`] takes what was read ([`feed`](Connection::feed)), says what it means ([`poll`](Connection::poll)) and
//! holds what is to be written ([`output`](Connection::output)). Clients open streams; a server of these protocols opens
//! none.
//!
//! # Flow control
//!
//! The peers that exist (the API server and kubectl, both with `moby/spdystream`) do none: they never send SETTINGS or
//! WINDOW_UPDATE, ignore those that they get, and send and take as TCP lets them. Others may do as the protocol says. So
//! a connection announces its windows to everybody, and
//!
//! * keeps to the windows of a peer once it has shown that it has any, by SETTINGS with an initial window or by a
//!   WINDOW_UPDATE; to the window of the connection as a whole, by a WINDOW_UPDATE of stream 0;
//! * has such a peer keep to the windows of this end: one that sends beyond a stream's loses the stream, and beyond that
//!   of the connection, the connection;
//! * holds any other by not reading: [`holds_reading`](Connection::holds_reading) says when. That holds all streams of
//!   the connection, of which one is slow. Upstream does so too.
//!
//! # What clients of Kubernetes do
//!
//! They open their streams one by one, each after the reply to the one before: a stream is accepted when it is opened, not
//! when all are there. They wait half a minute for that. They drop data that comes before the reply. They end their half
//! of an error stream of port-forward at once, and never that of the output of exec, so those streams are open until the
//! connection ends. A server that has said all finishes its streams, says GOAWAY, and closes the socket once everything
//! was written.
//!
//! Source: the SPDY protocol, draft 3.1; `github.com/moby/spdystream`.

mod connection;
mod deflate;
mod dictionary;
mod error;
mod event;
mod frame;
mod headers;
mod inflate;
mod input;
mod limits;
mod output;
mod stream;
mod window;

pub use connection::Connection;
pub use error::ConnectionError;
pub use event::{Event, GoAwayStatus, ResetStatus, StreamId};
pub use headers::Headers;
pub use limits::Limits;
pub use output::Output;
