//! YAML and JSON documents as people write them, read without mercy.
//!
//! A document is parsed into a tree in which every node knows its file and line, and typed values are read from the tree
//! by a deserializer that refuses what it does not know. So every error, also those found long after parsing, names the
//! file, the line and the field. JSON is read as the part of YAML that it is.
//!
//! Scalars resolve as in the API machinery's YAML (go-yaml with the 1.1 schema): `yes` and `on` are booleans, `0644` is
//! octal. A string field takes only strings, as the API server does.

mod deserialize;
mod fault;
mod scalar;
mod tree;

pub use deserialize::{read, read_noting};
pub use fault::{Fault, Faults, Place, suggestion};
pub use tree::{BYTES_MAX, Entry, Node, Number, Value, parse};

#[cfg(test)]
mod tests;
