//! Work on files, in processes that can be given up.
//!
//! A call on a file system can hang for as long as its server or its disk likes, and a thread that hangs in one can be
//! neither ended nor left: not even the agent's own end gets rid of it. So every look at, and every change of, files of pods
//! is done by a worker: this program again, which gets its work on a socket, one piece at a time. One that does not answer in
//! time is killed and given up. Should the kernel not let go of it, it holds what it was given (its place among those of
//! its pod, and the turn at its target), and shows in `berth inspect`, until it has ended; it can do nothing more.
//!
//! A worker is kept for a moment for the next piece, as threads of a pool are. Each holds a lock on a record of its own in
//! the state directory, by which the next agent finds those that hang. See `docs/decisions/0019`.

mod earlier;
mod error;
mod frame;
mod load;
mod pool;
mod record;
mod run;
mod serve;
mod table;

pub use error::WorkError;
pub use load::Load;
pub use run::{Job, Sort, Workers};
pub use serve::{Options, serve};
pub use table::Hanging;

#[cfg(test)]
mod tests;
