//! The generated modules, nested as their packages are.

#![expect(
    unreachable_pub,
    clippy::struct_excessive_bools,
    reason = "generated, and shaped by the definitions"
)]

include!("gen/mod.rs");
