//! Hostile input for tests of everything that reads bytes from outside.
//!
//! A test takes [`seeds`] and for each of them mutates inputs of a [`Corpus`]. The same seed makes the same input on
//! every machine: `SEED=n` repeats one, `SEEDS=n` runs that many. An input that has shown a defect is added to the
//! corpus, in a file named after the defect, so that later mutations begin there.
#![forbid(unsafe_code)]

mod corpus;
mod mutate;
mod random;
mod seeds;

pub use corpus::Corpus;
pub use mutate::{cuts, mutate};
pub use random::Random;
pub use seeds::seeds;
