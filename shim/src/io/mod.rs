//! Standard streams of containers and execs: where they lead, and the ends that the shim keeps.

mod console;
mod log_file;
mod open;
mod process;
mod uri;

pub(crate) use console::Console;
pub(crate) use log_file::LogFile;
pub(crate) use open::{ChildStreams, Owner, Prepared, Wiring, prepare};
pub(crate) use process::{Capture, Client, Early, Input, Output, ProcessIo, Relay, Role};
pub(crate) use uri::{LogOptions, StdinUri, StreamUri, UriError};

/// Bytes read at once from a container.
pub(crate) const CHUNK: usize = 16 << 10;
