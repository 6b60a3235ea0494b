//! A ttrpc client on Tokio, for the agent.
//!
//! One task owns a connection and ends with the last handle to it, or with the connection, which fails everything that
//! waits with [`CallError::Lost`]. Every queue is bounded. A [`StreamReceiver`] that is not read stops the reading of
//! its whole connection, so nothing is dropped; [`ShimClient`] gives each stream a connection of its own.

mod call;
mod connection;
mod shim;
#[cfg(test)]
mod tests;

pub use call::{CallError, Client, StreamReceiver, StreamSender};
pub use shim::{AttachReceiver, AttachSender, ShimClient};
