//! Standard streams of containers and execs: where they lead, and the ends that the shim keeps.

mod compress;
mod console;
mod log;
mod log_file;
mod logger;
mod open;
mod process;
mod raw_file;
mod uri;
mod writer;

pub(crate) use compress::compress_rotated;
pub(crate) use console::{CONSOLE_DIR, Console, remove_consoles};
pub(crate) use log::Log;
pub(crate) use log_file::LogFile;
pub(crate) use logger::{Answer, Logger, Owner, READY_MS_MAX};
pub(crate) use open::{ChildStreams, Prepared, Wiring, check_file, prepare};
pub(crate) use process::{Capture, Client, Early, Input, Output, ProcessIo, RELAY_BYTES_MAX, Relay, Role};
pub(crate) use raw_file::{Copy, RawFile};
pub(crate) use uri::{LogOptions, StdinUri, StreamUri, UriError};
pub(crate) use writer::{Clock, Writer, Writing};

/// Bytes read at once from a container.
pub(crate) const CHUNK: usize = 16 << 10;
