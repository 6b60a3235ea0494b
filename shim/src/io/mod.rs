//! Standard streams of containers and execs: where they lead, and the ends that the shim keeps.

mod console;
mod log_file;
mod logger;
mod open;
mod process;
mod raw_file;
mod uri;

pub(crate) use console::Console;
pub(crate) use log_file::LogFile;
pub(crate) use logger::{Answer, Logger, Owner, READY_MS_MAX};
pub(crate) use open::{ChildStreams, Prepared, Wiring, prepare};
pub(crate) use process::{Capture, Client, Early, Input, Output, ProcessIo, Relay, Role};
pub(crate) use raw_file::RawFile;
pub(crate) use uri::{LogOptions, StdinUri, StreamUri, UriError};

/// Bytes read at once from a container.
pub(crate) const CHUNK: usize = 16 << 10;
