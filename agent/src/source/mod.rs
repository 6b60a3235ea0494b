//! Where desired pods come from. Each source says the whole of what it wants, whenever that changes.

pub mod file;
