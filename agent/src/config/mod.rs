//! Settings: the kubelet's configuration files and flags, Berth's own document, and facts of the machine, made into one
//! checked [`Config`].

mod settings;

pub use settings::{Cni, Config, OciRuntime};
