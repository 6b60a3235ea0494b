//! Reading container logs in the form of the CRI: `<time> <stdout|stderr> <P|F> <text>`.
//!
//! Logs lie in directories that others could have written into; files are opened beneath the log root without following
//! any symbolic link (CVE-2025-0750, CVE-2026-53489). A log goes on in the files that it was rotated into, compressed or not.

mod changes;
mod file;
mod line;
mod place;
mod record;
mod shown;
mod since;
mod tail;

pub use changes::{Changes, Watcher};
pub use file::{LogFile, LogFileError, Progress, Select};
pub use line::{Line, Lines, TEXT_MAX};
pub use record::{Record, Stream};
pub use shown::Shown;

#[cfg(test)]
mod tests;
