//! The server over real connections, with an API server that answers as a real one.

mod access;
mod api;
mod bounds;
mod client;
mod page;
pub(super) mod pki;
mod ports;
mod presented;
mod protocols;
mod reviews;
mod strangers;
mod taken;
mod world;
