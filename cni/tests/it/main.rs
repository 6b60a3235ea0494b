//! The runtime against a plugin program that fails in every way it is told to.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in what it shares with others")]

mod add;
mod cli;
mod del;
mod disk;
mod fixture;
mod gc;
mod invoke;
mod locking;
mod netns;
mod verbs;
