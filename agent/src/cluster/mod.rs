//! The node in its cluster: everything that speaks with the API server.
//!
//! What is to be said, and when, is decided in `berth_core::cluster`; here are connections, watches and requests.

mod answers;
pub mod certificates;
mod client;
mod connection;
mod error;
mod head;
mod lenient;
mod lines;
mod list;
mod measured;
pub mod node;
mod pods;
mod recorder;
mod refused;
mod reports;
mod requests;
mod sinks;
mod watch;

pub use client::{Clients, within};
pub use connection::ConnectError;
pub use error::ApiError;
pub use head::Unread;
pub use measured::request_families;
pub use pods::PodLoop;
pub use recorder::{Recorder, send_events};
pub use reports::Reports;
pub use requests::REQUESTS;
pub use sinks::Sinks;
pub use watch::{Seen, Watched};
