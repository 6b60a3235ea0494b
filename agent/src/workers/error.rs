//! Why work was not done.

use std::{io, time::Duration};

use jiff::Timestamp;

/// Why a piece of work has no answer.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The same hangs already, and is not begun again.
    #[error(
        "{what}: still waiting since {since:.0} for {path} (process {process}): see to the file system or device it is on"
    )]
    Hangs {
        /// What is being done.
        what: String,
        /// On what.
        path: String,
        /// Since when.
        since: Timestamp,
        /// By which process.
        process: u32,
    },
    /// All that the pod may have at once hang, or are at work.
    #[error("{what}: not begun within {} s, since {bound} others of the pod are not done", within.as_secs())]
    Waited {
        /// What is to be done.
        what: String,
        /// How long it waited.
        within: Duration,
        /// How many there may be.
        bound: usize,
    },
    /// Too many hang on the node.
    #[error(
        "{what}: not begun, since {bound} processes of the agent are waiting for file systems that do not answer"
    )]
    TooMany {
        /// What is to be done.
        what: String,
        /// How many there may be.
        bound: usize,
    },
    /// A worker could not be started, or ended within its work.
    #[error("{what}: {act} a worker process")]
    Process {
        /// What is to be done.
        what: String,
        /// What was tried.
        act: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}
