//! Exec and attach: versions of the protocol, the streams of a session, its last word, sizes of the terminal.
//!
//! Source: `k8s.io/cri-streaming/pkg/streaming/remotecommand`, `k8s.io/apimachinery/pkg/util/remotecommand`.

mod channel;
mod last_word;
mod options;
mod resize;
mod session;
mod version;

use std::time::Duration;

pub use channel::Channel;
pub use last_word::Outcome;
pub use options::{NothingAsked, Options};
pub use resize::{Sizes, TerminalSize};
pub use session::{Joined, Session, Streams};
pub use version::Version;

/// How long a client may take to open the streams of its session, from the upgrade of the connection on.
pub const STREAM_CREATION_TIMEOUT: Duration = Duration::from_secs(30);
