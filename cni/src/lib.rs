//! A CNI 1.1 runtime: loads network configurations, runs plugins, and remembers what they did.
//!
//! [`config`], [`plan`], [`result`] and [`record`] are pure: which plugins, in which order, with which environment and
//! input; what their output means in every version since 0.1.0; what is written down. [`Runtime`] carries the plans
//! out, with a deadline for each call. Rules not stated here are those of the specification (SPEC.md 1.1.0) and of
//! libcni, whose cache it shares.
//!
//! Beyond libcni: the configuration of an ADD is on disk before its first plugin runs, so DEL never depends on today's
//! file; a hung plugin is killed with its descendants; operations on one container never overlap; what a crash left can be
//! found and removed by the runtime's own records, also for networks that are no longer configured, and what is another
//! runtime's is never taken for ours.

pub mod attachment;
pub mod capability;
pub mod cidr;
pub mod config;
mod disk;
pub mod error;
pub mod gc;
mod invoke;
pub mod load;
mod locks;
pub mod name;
pub mod netns;
mod pipe;
pub mod plan;
pub mod record;
pub mod result;
pub mod runtime;
mod store;
mod sys;
#[cfg(test)]
mod testing;
pub mod version;
pub mod watch;

pub use attachment::{Attachment, AttachmentError, CniArgs, PodIdentity, TraceContext};
pub use capability::{Bandwidth, CapabilityArgs, DnsConfig, IpRange, PortMapping, Protocol};
pub use cidr::Cidr;
pub use config::{ConfigError, NetworkList, Plugin};
pub use error::{CniError, PluginError, PluginFailure, Unavailable};
pub use gc::Gc;
pub use load::{LoadError, load_dir, load_file};
pub use name::{ContainerId, InterfaceName, NameError, NetworkName, PluginType};
pub use plan::{GcPlan, ValidAttachment, Verb};
pub use record::{Key, Record};
pub use result::{AddResult, Dns, Interface, IpConfig, ResultError, Route};
pub use runtime::{Runtime, RuntimeConfig, SetupError};
pub use store::{Cached, StoreError};
pub use sys::descriptors::close_inherited_on_exec;
pub use version::{SpecVersion, VersionError};
pub use watch::{Watch, WatchError};
