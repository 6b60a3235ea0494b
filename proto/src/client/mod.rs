//! A ttrpc client on Tokio, for the agent.
//!
//! One task owns a connection and ends with the last handle to it, or with the connection, which fails everything that
//! waits with [`CallError::Lost`]. Every queue is bounded. A [`StreamReceiver`] that is not read stops the reading of
//! its whole connection, so nothing is dropped. Streams with processes are flow-controlled where the shim knows that
//! ([`ShimClient::share`]), and share a connection; with an older shim each has one of its own.

mod abandoned;
mod attach;
mod call;
mod connection;
mod flow;
mod shim;
#[cfg(test)]
mod tests;

pub use attach::{AttachReceiver, AttachSender};
pub use call::{CallError, Client, StreamReceiver, StreamSender};
pub use shim::ShimClient;
