//! System calls that no safe crate covers. The only place with unsafe code.

pub(crate) mod descriptors;
