//! Effects, performed: one file per port, straight lines without policy.
//!
//! Every effect is idempotent at every half-way point: it looks at what is there, makes what is missing, and answers the
//! same as the first time. What to do about a failure is the core's business; here it only gets its kind and its words.

mod cgroups;
mod dirs;
mod end;
mod failure;
mod host;
mod host_files;
mod image;
mod image_root;
mod image_volumes;
mod kinds;
mod lanes;
mod look;
mod mount_source;
mod network;
mod perform;
mod prepare;
mod pull;
mod rootfs;
mod runtime;
mod runtime_text;
mod sub_path;
mod termination;
mod unpack;
mod volumes;
mod wire;
mod work;

pub use host::Host;
pub use kinds::KINDS;
pub use lanes::Lanes;
pub use perform::start;
pub use rootfs::AccountsCache;
pub use work::perform_work;
