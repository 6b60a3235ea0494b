//! Manifests: from what people write to what the core works with.
mod names;
pub use names::{
    is_dns_label, is_dns_subdomain, is_env_name, is_label_text, is_port_name, is_qualified_name,
};
