//! The agent's own socket: what the command line asks, and what it is told.
//!
//! A unix socket that only root (and the user the agent runs as) can use, by mode 0600 and by the peer's credentials.
//! One request per connection; see [`protocol`] for the frames.

mod client;
mod exec;
mod forward;
mod object;
pub mod protocol;
mod server;
mod stalled;

pub use client::{Client, ClientError};
pub use object::{EventObject, HangingObject, Overview, PodObject, StalledLogObject};
pub use server::{Service, listen, serve};

#[cfg(test)]
mod tests;
