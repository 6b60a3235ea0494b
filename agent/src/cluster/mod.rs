//! The node in its cluster: everything that speaks with the API server.
//!
//! What is to be said, and when, is decided in `berth_core::cluster`; here are connections, watches and requests.

pub mod certificates;
mod client;
mod error;
pub mod node;
mod pods;
mod recorder;
mod reports;
mod requests;
mod sinks;
mod watch;

pub use client::{Clients, ConnectError};
pub use error::ApiError;
pub use pods::PodLoop;
pub use recorder::{Recorder, send_events};
pub use reports::Reports;
pub use sinks::Sinks;
pub use watch::{Seen, Watched};
